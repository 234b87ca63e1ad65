#include "core/evidence/yaml_json.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include <yaml-cpp/yaml.h>

#include "core/base/status_macros.h"

namespace kvbridge::evidence {
namespace {

using base::Json;

constexpr size_t kMaxBytes = size_t{64} << 10;
constexpr int kMaxDepth = 8;

Json Scalar(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return text;  // it was quoted
  if (text == "true" || text == "false") return text == "true";
  if (text == "null" || text == "~") return nullptr;
  int64_t integer = 0;
  if (absl::SimpleAtoi(text, &integer)) return integer;
  double number = 0;
  if (absl::SimpleAtod(text, &number) && std::isfinite(number)) return number;
  return text;
}

absl::StatusOr<Json> Convert(const YAML::Node& node, const std::string& path, int depth) {
  if (depth > kMaxDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": nested deeper than ", kMaxDepth, " levels"));
  }
  if (node.IsNull()) return Json(nullptr);
  if (node.IsScalar()) return Scalar(node);
  if (node.IsSequence()) {
    Json list = Json::array();
    for (const YAML::Node& item : node) {
      KVB_ASSIGN_OR_RETURN(Json value,
                           Convert(item, absl::StrCat(path, "[", list.size(), "]"), depth + 1));
      list.push_back(std::move(value));
    }
    return list;
  }
  Json object = Json::object();
  for (const auto& entry : node) {
    if (!entry.first.IsScalar()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": expected a scalar as key"));
    }
    const std::string& key = entry.first.Scalar();
    const std::string at = absl::StrCat(path, ".", key.substr(0, 64));
    if (object.contains(key)) return absl::InvalidArgumentError(at + ": the key is there twice");
    KVB_ASSIGN_OR_RETURN(object[key], Convert(entry.second, at, depth + 1));
  }
  return object;
}

}  // namespace

absl::StatusOr<Json> JsonFromYaml(absl::string_view text, absl::string_view what) {
  if (text.size() > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": expected at most ", kMaxBytes, " bytes, got ", text.size()));
  }
  // yaml-cpp reports by exceptions; they end here.
  try {
    return Convert(YAML::Load(std::string(text)), std::string(what), 0);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", error.what()));
  }
}

}  // namespace kvbridge::evidence
