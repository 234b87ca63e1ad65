#include "core/artifact/fit_r2.h"

#include <algorithm>
#include <vector>

namespace kvbridge::artifact {
namespace {

using base::Json;

// The member, or null.
const Json& At(const Json& json, const char* member) {
  static const Json kNull;
  const auto it = json.is_object() ? json.find(member) : json.end();
  return it == json.end() ? kNull : *it;
}

R2 Over(const std::vector<const Json*>& layers) {
  const bool told = std::all_of(layers.begin(), layers.end(),
                                [](const Json* layer) { return layer->is_number(); });
  if (layers.empty() || !told) return {};
  R2 out{.min = layers[0]->get<double>(), .mean = 0};
  for (const Json* layer : layers) {
    out.min = std::min(out.min, layer->get<double>());
    out.mean += layer->get<double>() / static_cast<double>(layers.size());
  }
  return out;
}

R2 Fitted(const Json& calibration, const char* component) {
  std::vector<const Json*> layers;
  for (const Json& layer : At(calibration, "layers")) {
    const Json& fit = At(layer, component);
    const Json& held_out = At(fit, "r2_held_out");
    layers.push_back(held_out.is_number() ? &held_out : &At(fit, "r2_in_sample"));
  }
  return Over(layers);
}

R2 Prototype(const Json& calibration, const char* list) {
  std::vector<const Json*> layers;
  for (const Json& layer : At(At(calibration, "prototype"), list)) layers.push_back(&layer);
  return Over(layers);
}

}  // namespace

FitR2 FitR2Of(const Provenance& provenance) {
  const Json& calibration = provenance.calibration;
  if (At(calibration, "prototype").is_object()) {
    return {Prototype(calibration, "fit_key_r2"), Prototype(calibration, "fit_value_r2")};
  }
  return {Fitted(calibration, "key"), Fitted(calibration, "value")};
}

}  // namespace kvbridge::artifact
