#include "core/fit/checkpoint.h"

#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "core/artifact/safetensors.h"
#include "core/artifact/safetensors_writer.h"
#include "core/base/file.h"
#include "core/base/status_macros.h"
#include "core/fit/partial_file.h"

namespace kvbridge::fit {
namespace {

constexpr char kFormat[] = "kvbridge-accumulate-checkpoint";

absl::StatusOr<uint64_t> Number(const std::map<std::string, std::string>& metadata,
                                const std::string& key, absl::string_view what) {
  const auto it = metadata.find(key);
  uint64_t value = 0;
  if (it == metadata.end() || !absl::SimpleAtoi(it->second, &value)) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": metadata ", key, ": expected a count"));
  }
  return value;
}

}  // namespace

absl::Status WriteCheckpoint(const std::filesystem::path& path, const Checkpoint& checkpoint) {
  const std::map<std::string, artifact::StShape> shapes = {
      {"state", {artifact::StDType::kF64, {static_cast<int64_t>(checkpoint.state.size())}}}};
  KVB_ASSIGN_OR_RETURN(
      const artifact::StLayout layout,
      artifact::LayOutSafeTensors(shapes, {{"format", kFormat},
                                           {"schema", "1"},
                                           {"fingerprint", checkpoint.fingerprint},
                                           {"step", absl::StrCat(checkpoint.step)},
                                           {"block", absl::StrCat(checkpoint.block)}}));
  KVB_ASSIGN_OR_RETURN(const auto file, PartialFile::Create(path, layout.file_bytes));
  KVB_RETURN_IF_ERROR(file->WriteAt(0, std::as_bytes(std::span(layout.header))));
  KVB_RETURN_IF_ERROR(file->WriteAt(layout.offsets.at("state"), std::as_bytes(checkpoint.state)));
  return file->Commit();
}

absl::StatusOr<Checkpoint> ReadCheckpoint(const std::filesystem::path& path,
                                          absl::string_view fingerprint) {
  const std::string what = path.filename().string();
  KVB_ASSIGN_OR_RETURN(auto mapped, base::MappedFile::Open(path));
  KVB_ASSIGN_OR_RETURN(const auto file, artifact::SafeTensors::Parse(mapped->bytes(), what));
  const std::map<std::string, std::string>& metadata = file.metadata();
  const auto member = [&](const std::string& key) {
    const auto it = metadata.find(key);
    return it == metadata.end() ? std::string() : it->second;
  };
  if (member("format") != kFormat || member("schema") != "1") {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": expected a ", kFormat, " of schema 1, got something else"));
  }
  if (member("fingerprint") != fingerprint) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": it belongs to other shards, models or options; overwrite to begin anew"));
  }
  Checkpoint checkpoint{std::string(fingerprint), 0, 0, {}, mapped};
  KVB_ASSIGN_OR_RETURN(checkpoint.step, Number(metadata, "step", what));
  KVB_ASSIGN_OR_RETURN(checkpoint.block, Number(metadata, "block", what));
  KVB_ASSIGN_OR_RETURN(const artifact::StTensor* state, file.Find("state"));
  if (state->dtype != artifact::StDType::kF64 || state->shape.size() != 1 ||
      reinterpret_cast<uintptr_t>(state->data.data()) % alignof(double) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": state: expected F64 of rank 1"));
  }
  checkpoint.state = {reinterpret_cast<const double*>(state->data.data()),
                      state->data.size() / sizeof(double)};
  return checkpoint;
}

}  // namespace kvbridge::fit
