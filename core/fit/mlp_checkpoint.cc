#include "core/fit/mlp_checkpoint.h"

#include <cstring>
#include <map>
#include <span>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "core/artifact/safetensors.h"
#include "core/artifact/safetensors_writer.h"
#include "core/base/file.h"
#include "core/base/status_macros.h"

namespace kvbridge::fit {
namespace {

using artifact::StDType;
using artifact::StTensor;
using Metadata = std::map<std::string, std::string>;

constexpr char kFormat[] = "kvbridge-network";

StTensor Bits(const std::vector<uint16_t>& bits, std::vector<int64_t> shape) {
  return {StDType::kBf16, std::move(shape), std::as_bytes(std::span(bits))};
}

absl::Status Take(const artifact::SafeTensors& file, const std::string& name,
                  const std::vector<int64_t>& shape, std::vector<uint16_t>* out) {
  KVB_ASSIGN_OR_RETURN(const StTensor* tensor, file.Find(name, StDType::kBf16, shape));
  out->resize(static_cast<size_t>(tensor->elements()));
  std::memcpy(out->data(), tensor->data.data(), tensor->data.size());
  return absl::OkStatus();
}

std::string Member(const Metadata& metadata, const std::string& key) {
  const auto it = metadata.find(key);
  return it == metadata.end() ? std::string() : it->second;
}

}  // namespace

absl::Status WriteNetwork(const std::filesystem::path& path, const TrainedNetwork& network,
                          const NetworkShape& shape) {
  std::map<std::string, StTensor> tensors;
  int64_t inputs = shape.inputs;
  for (size_t i = 0; i < network.hidden.size(); ++i) {
    const int64_t width = shape.hidden[i];
    tensors[absl::StrCat("hidden.", i)] = Bits(network.hidden[i].weight, {inputs, width});
    tensors[absl::StrCat("hidden_bias.", i)] = Bits(network.hidden[i].bias, {width});
    inputs = width;
  }
  tensors["out"] = Bits(network.out, {inputs, shape.outputs});
  tensors["bias"] = Bits(network.bias, {shape.outputs});
  return artifact::WriteSafeTensors(
      path, tensors,
      {{"format", kFormat},
       {"schema", "1"},
       {"fingerprint", shape.fingerprint},
       {"linear_error", absl::StrFormat("%.17g", network.linear_error)},
       {"error", absl::StrFormat("%.17g", network.error)},
       {"epochs", absl::StrCat(network.epochs)}});
}

absl::StatusOr<TrainedNetwork> ReadNetwork(const std::filesystem::path& path,
                                           const NetworkShape& shape) {
  const std::string what = path.filename().string();
  KVB_ASSIGN_OR_RETURN(const auto mapped, base::MappedFile::Open(path));
  KVB_ASSIGN_OR_RETURN(const auto file, artifact::SafeTensors::Parse(mapped->bytes(), what));
  const Metadata& metadata = file.metadata();
  if (Member(metadata, "format") != kFormat || Member(metadata, "schema") != "1") {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": expected a ", kFormat, " of schema 1, got something else"));
  }
  if (Member(metadata, "fingerprint") != shape.fingerprint) {
    return absl::InvalidArgumentError(absl::StrCat(
        what,
        ": it belongs to other shards, another base or other options; remove it to begin anew"));
  }
  TrainedNetwork network;
  if (!absl::SimpleAtod(Member(metadata, "linear_error"), &network.linear_error) ||
      !absl::SimpleAtod(Member(metadata, "error"), &network.error) ||
      !absl::SimpleAtoi(Member(metadata, "epochs"), &network.epochs)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": metadata: expected the numbers linear_error, error and epochs"));
  }
  int64_t inputs = shape.inputs;
  for (size_t i = 0; i < shape.hidden.size(); ++i) {
    const int64_t width = shape.hidden[i];
    TrainedNetwork::Layer& layer = network.hidden.emplace_back();
    KVB_RETURN_IF_ERROR(Take(file, absl::StrCat("hidden.", i), {inputs, width}, &layer.weight));
    KVB_RETURN_IF_ERROR(Take(file, absl::StrCat("hidden_bias.", i), {width}, &layer.bias));
    inputs = width;
  }
  KVB_RETURN_IF_ERROR(Take(file, "out", {inputs, shape.outputs}, &network.out));
  KVB_RETURN_IF_ERROR(Take(file, "bias", {shape.outputs}, &network.bias));
  return network;
}

}  // namespace kvbridge::fit
