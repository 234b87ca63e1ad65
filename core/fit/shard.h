// One calibration shard: the caches that two models made of the same tokens.
//
// Own format, a safetensors file: `source.keys`, `source.values` [layers, kv_heads, rows, head_dim]
// BF16, F16 or F32, `target.*` the same, `positions` and `token_ids` [rows] I64, optionally
// `row_weight.key` and `row_weight.value` [target layers, target kv_heads, rows] F32, which are
// checked but not used. Metadata: format "kvbridge-shard", schema "1", sequence_id, domain, keys
// "stripped" or "roped", source and target (ModelSpec JSON, spec_json.h).
//
// The Python prototype's format ("kvbridge-calibration", schema "1") is read too: `source.keys` and
// `source.values` [layers, batch, kv_heads, tokens, head_dim], `source.rope_cos` and
// `source.rope_sin` [tokens, rotary_dim] or [batch, tokens, rotary_dim] with the attention factor
// in them, `target.*` the same; metadata sequence_id, {source,target}_keys_are_content and
// {source,target}_interleaved ("true" or "false"). It states no positions: they are read off the
// tables, which must be what the models' rotation gives at those positions, the same for both.
// Other tensors are refused in either format.
//
// Rows are what a regression sees: keys un-rotated, with the attention factor divided out (divided
// by cos^2 + sin^2, not only turned back), values as they are; FP32.
//
// Thread contract: immutable; any thread may read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "core/artifact/safetensors.h"
#include "core/base/file.h"
#include "core/crypto/sha256.h"
#include "core/kv/kv_view.h"
#include "core/model/model_spec.h"
#include "core/rope/rope_row.h"
#include "core/tensor/dtype.h"

namespace kvbridge::fit {

enum class Role : uint8_t { kSource, kTarget };
inline constexpr Role kRoles[] = {Role::kSource, Role::kTarget};
constexpr absl::string_view Name(Role r) { return r == Role::kSource ? "source" : "target"; }

struct SpecPair {
  model::ModelSpec source;
  model::ModelSpec target;

  const model::ModelSpec& of(Role r) const { return r == Role::kSource ? source : target; }
  model::ModelSpec& of(Role r) { return r == Role::kSource ? source : target; }
  friend bool operator==(const SpecPair&, const SpecPair&) = default;
};

struct ShardOptions {
  // What prototype shards, which do not say, were captured from. Without it their geometry comes
  // from the tensors and their RoPE from the tables. Not for shards of our own.
  std::optional<SpecPair> declared;
  int64_t token_stride = 1;  // every stride-th token of what the file holds
};

// Un-rotation of every row: [rows][strip_cos, strip_sin][half].
struct StripTable {
  int32_t half = 0;
  rope::Pairing pairing = rope::Pairing::kHalf;
  std::vector<float> values;

  rope::RopeRow row(int64_t r) const {
    const float* at = values.data() + r * 2 * half;
    return {at, at + half, at, at + half, half, pairing};
  }
};

// What a file holds, checked; pointers go into the file.
struct ShardContent {
  struct Plane {
    tensor::DType dtype = tensor::DType::kF32;
    const std::byte* data = nullptr;  // [layers, batch, kv_heads, tokens, head_dim]
  };
  // One model's half.
  struct Side {
    Plane keys;
    Plane values;
    bool keys_stripped = false;
    std::vector<StripTable> tables;     // empty when stripped, or when nothing tells the rotation
    std::vector<int32_t> layer_tables;  // [layers] -> tables
  };

  std::string sequence_id;
  std::string domain;  // "" where the format has none
  SpecPair specs;
  int64_t batch = 1;
  int64_t tokens = 0;              // of a batch element, in the file
  int64_t token_stride = 1;        // of the rows, in tokens
  std::vector<int64_t> positions;  // [rows], batch element by batch element; increasing within one
  crypto::Digest digest{};         // of token ids and positions, or of the first layer's values
  Side source;
  Side target;

  Side& of(Role r) { return r == Role::kSource ? source : target; }
  const Side& of(Role r) const { return r == Role::kSource ? source : target; }
};

class Shard {
 public:
  // INVALID_ARGUMENT names the file and what in it is malformed; NOT_FOUND and the like as
  // MappedFile::Open; FAILED_PRECONDITION for a pair that no map may join.
  static absl::StatusOr<Shard> Open(const std::filesystem::path& path,
                                    const ShardOptions& options = {});

  const std::string& name() const { return name_; }  // of the file
  const ShardContent& content() const { return content_; }
  int64_t rows() const { return static_cast<int64_t>(content_.positions.size()); }
  uint64_t file_bytes() const { return file_->size(); }

  // out[(r - begin) * stride + d] for rows [begin, end) of one head. `strip` un-rotates keys that
  // are not yet un-rotated; it needs their tables. Values that are not finite come out as they are.
  void ReadHead(Role role, kv::Component component, int32_t layer, int32_t head, int64_t begin,
                int64_t end, bool strip, float* out, int64_t stride) const;

  // DATA_LOSS when the file changed since Open.
  absl::Status CheckUnchanged() const { return file_->CheckUnchanged(); }

 private:
  Shard(std::shared_ptr<const base::MappedFile> file, std::string name, ShardContent content)
      : file_(std::move(file)), name_(std::move(name)), content_(std::move(content)) {}

  std::shared_ptr<const base::MappedFile> file_;
  std::string name_;
  ShardContent content_;
};

namespace internal {

// The two formats. `what` names the file in errors.
absl::StatusOr<ShardContent> ParseOwnShard(const artifact::SafeTensors& file,
                                           absl::string_view what, const ShardOptions& options);
absl::StatusOr<ShardContent> ParsePrototypeShard(const artifact::SafeTensors& file,
                                                 absl::string_view what,
                                                 const ShardOptions& options);

// A floating-point tensor's element type; INVALID_ARGUMENT for others.
absl::StatusOr<tensor::DType> RowDType(const artifact::StTensor& tensor, absl::string_view name,
                                       absl::string_view what);
// The value of a metadata key that must be there.
absl::StatusOr<std::string> Metadata(const artifact::SafeTensors& file, const std::string& key,
                                     absl::string_view what);
// INVALID_ARGUMENT "<what>: <problem>".
absl::Status BadShard(absl::string_view what, absl::string_view problem);

}  // namespace internal
}  // namespace kvbridge::fit
