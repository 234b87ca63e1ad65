#include "core/fit/shard.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "core/artifact/spec_json.h"
#include "core/base/status_macros.h"
#include "core/kv/positions.h"
#include "core/model/compat.h"
#include "core/rope/rope_table.h"
#include "core/tensor/convert.h"

namespace kvbridge::fit {
namespace internal {

using artifact::SafeTensors;
using artifact::StDType;
using artifact::StTensor;

namespace {

constexpr std::pair<StDType, tensor::DType> kRowDTypes[] = {{StDType::kBf16, tensor::DType::kBf16},
                                                            {StDType::kF16, tensor::DType::kF16},
                                                            {StDType::kF32, tensor::DType::kF32}};

absl::StatusOr<std::span<const std::byte>> Integers(const SafeTensors& file,
                                                    const std::string& name, int64_t count) {
  KVB_ASSIGN_OR_RETURN(const StTensor* tensor, file.Find(name, StDType::kI64, {count}));
  return tensor->data;
}

absl::StatusOr<SpecPair> ReadSpecs(const SafeTensors& file, absl::string_view what) {
  SpecPair specs;
  for (const Role role : kRoles) {
    const std::string key(Name(role));
    KVB_ASSIGN_OR_RETURN(const std::string text, Metadata(file, key, what));
    const std::string path = absl::StrCat(what, " metadata ", key);
    KVB_ASSIGN_OR_RETURN(const base::Json json, base::ParseStrictJson(text, path));
    KVB_ASSIGN_OR_RETURN(specs.of(role), artifact::SpecFromJson(json, path));
  }
  if (const auto mismatch = model::FindPairMismatch(specs.source, specs.target)) {
    return absl::FailedPreconditionError(absl::StrCat(what, ": ", mismatch->ToString()));
  }
  return specs;
}

// The rows of a side, and how many they are.
absl::Status ReadPlanes(const SafeTensors& file, absl::string_view what, Role role,
                        const model::KvGeometry& geometry, ShardContent* content) {
  ShardContent::Side& side = content->of(role);
  for (const auto& [suffix, plane] :
       {std::pair(".keys", &side.keys), std::pair(".values", &side.values)}) {
    const std::string name = absl::StrCat(Name(role), suffix);
    KVB_ASSIGN_OR_RETURN(const StTensor* tensor, file.Find(name));
    const std::vector<int64_t>& shape = tensor->shape;
    if (content->tokens == 0 && shape.size() == 4) content->tokens = shape[2];
    const std::vector<int64_t> expected = {geometry.layers, geometry.kv_heads, content->tokens,
                                           geometry.head_dim};
    if (shape != expected || content->tokens == 0) {
      return BadShard(what, absl::StrCat(name, ": expected [layers, kv_heads, rows, head_dim] ",
                                         artifact::ShapeText(expected), " with rows above 0, got ",
                                         artifact::ShapeText(shape)));
    }
    KVB_ASSIGN_OR_RETURN(plane->dtype, RowDType(*tensor, name, what));
    plane->data = tensor->data.data();
  }
  return absl::OkStatus();
}

absl::Status CheckOtherTensors(const SafeTensors& file, absl::string_view what,
                               const model::KvGeometry& target, int64_t rows) {
  constexpr absl::string_view kKnown[] = {"source.keys",   "source.values", "target.keys",
                                          "target.values", "positions",     "token_ids"};
  for (const auto& [name, tensor] : file.tensors()) {
    if (name == "row_weight.key" || name == "row_weight.value") {
      KVB_RETURN_IF_ERROR(
          file.Find(name, StDType::kF32, {target.layers, target.kv_heads, rows}).status());
    } else if (std::find(std::begin(kKnown), std::end(kKnown), name) == std::end(kKnown)) {
      return BadShard(
          what, absl::StrCat("unknown tensor \"", absl::Utf8SafeCEscape(name.substr(0, 80)), "\""));
    }
  }
  return absl::OkStatus();
}

// The positions of every row, and what tells this content from another.
absl::Status ReadPositions(const SafeTensors& file, absl::string_view what, ShardContent* content) {
  KVB_ASSIGN_OR_RETURN(const auto stored, Integers(file, "positions", content->tokens));
  KVB_ASSIGN_OR_RETURN(const auto ids, Integers(file, "token_ids", content->tokens));
  std::vector<int64_t> all(static_cast<size_t>(content->tokens));
  std::memcpy(all.data(), stored.data(), stored.size());
  for (const Role role : kRoles) {
    const auto checked = kv::Positions::Create(all, content->specs.of(role).rope.max_position);
    if (!checked.ok()) return BadShard(what, checked.status().message());
    if (checked->pads() > 0) return BadShard(what, "positions[0]: expected at least 0, got -1");
  }
  KVB_ASSIGN_OR_RETURN(crypto::Sha256 hash, crypto::Sha256::Create());
  KVB_RETURN_IF_ERROR(hash.Update(stored));
  KVB_RETURN_IF_ERROR(hash.Update(ids));
  KVB_ASSIGN_OR_RETURN(content->digest, hash.Finish());
  for (int64_t t = 0; t < content->tokens; t += content->token_stride) {
    content->positions.push_back(all[static_cast<size_t>(t)]);
  }
  return absl::OkStatus();
}

StripTable MakeTable(const rope::RopeParams& params, const std::vector<int64_t>& positions) {
  const rope::RopeTable table(params, positions);
  StripTable strip{params.rotary_dim / 2, params.pairing, {}};
  strip.values.reserve(positions.size() * 2 * static_cast<size_t>(strip.half));
  for (int64_t r = 0; r < table.tokens(); ++r) {
    const rope::RopeRow row = table.row(r);
    strip.values.insert(strip.values.end(), row.strip_cos, row.strip_cos + row.half);
    strip.values.insert(strip.values.end(), row.strip_sin, row.strip_sin + row.half);
  }
  return strip;
}

// One table per rotation that the layers differ in.
void MakeTables(const model::ModelSpec& spec, const std::vector<int64_t>& positions,
                ShardContent::Side* side) {
  std::vector<const rope::RopeParams*> made;
  for (int32_t layer = 0; layer < spec.geometry.layers; ++layer) {
    const rope::RopeParams& params = spec.rope.ForLayer(layer);
    const auto same = [&](const rope::RopeParams* other) { return *other == params; };
    const auto it = std::find_if(made.begin(), made.end(), same);
    side->layer_tables.push_back(static_cast<int32_t>(it - made.begin()));
    if (it != made.end()) continue;
    made.push_back(&params);
    side->tables.push_back(MakeTable(params, positions));
  }
}

}  // namespace

absl::Status BadShard(absl::string_view what, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", problem));
}

absl::StatusOr<tensor::DType> RowDType(const StTensor& tensor, absl::string_view name,
                                       absl::string_view what) {
  for (const auto& [stored, dtype] : kRowDTypes) {
    if (stored == tensor.dtype) return dtype;
  }
  return BadShard(
      what, absl::StrCat(name, ": expected BF16, F16 or F32, got ", artifact::Name(tensor.dtype)));
}

absl::StatusOr<std::string> Metadata(const SafeTensors& file, const std::string& key,
                                     absl::string_view what) {
  const auto it = file.metadata().find(key);
  if (it == file.metadata().end()) {
    return BadShard(what, absl::StrCat("metadata ", key, " is missing"));
  }
  return it->second;
}

absl::StatusOr<ShardContent> ParseOwnShard(const SafeTensors& file, absl::string_view what,
                                           const ShardOptions& options) {
  ShardContent content;
  content.token_stride = options.token_stride;
  KVB_ASSIGN_OR_RETURN(content.sequence_id, Metadata(file, "sequence_id", what));
  KVB_ASSIGN_OR_RETURN(content.domain, Metadata(file, "domain", what));
  KVB_ASSIGN_OR_RETURN(const std::string keys, Metadata(file, "keys", what));
  if (keys != "stripped" && keys != "roped") {
    return BadShard(what, absl::StrCat("metadata keys: expected \"stripped\" or \"roped\", got \"",
                                       absl::Utf8SafeCEscape(keys.substr(0, 40)), "\""));
  }
  KVB_ASSIGN_OR_RETURN(content.specs, ReadSpecs(file, what));
  for (const Role role : kRoles) {
    const model::ModelSpec& spec = content.specs.of(role);
    KVB_RETURN_IF_ERROR(ReadPlanes(file, what, role, spec.geometry, &content));
  }
  KVB_RETURN_IF_ERROR(CheckOtherTensors(file, what, content.specs.target.geometry, content.tokens));
  KVB_RETURN_IF_ERROR(ReadPositions(file, what, &content));
  for (const Role role : kRoles) {
    ShardContent::Side& side = content.of(role);
    side.keys_stripped = keys == "stripped";
    if (!side.keys_stripped) MakeTables(content.specs.of(role), content.positions, &side);
  }
  return content;
}

}  // namespace internal

absl::StatusOr<Shard> Shard::Open(const std::filesystem::path& path, const ShardOptions& options) {
  const std::string name = path.filename().string();
  KVB_ASSIGN_OR_RETURN(auto file, base::MappedFile::Open(path));
  KVB_ASSIGN_OR_RETURN(const auto tensors, artifact::SafeTensors::Parse(file->bytes(), name));
  KVB_ASSIGN_OR_RETURN(const std::string format, internal::Metadata(tensors, "format", name));
  KVB_ASSIGN_OR_RETURN(const std::string schema, internal::Metadata(tensors, "schema", name));
  const bool own = format == "kvbridge-shard";
  if (!own && format != "kvbridge-calibration") {
    return internal::BadShard(name,
                              absl::StrCat("metadata format: expected \"kvbridge-shard\" or "
                                           "\"kvbridge-calibration\", got \"",
                                           absl::Utf8SafeCEscape(format.substr(0, 40)), "\""));
  }
  if (schema != "1") {
    return internal::BadShard(name,
                              absl::StrCat("metadata schema: expected \"1\", got \"",
                                           absl::Utf8SafeCEscape(schema.substr(0, 40)), "\""));
  }
  KVB_ASSIGN_OR_RETURN(ShardContent content,
                       own ? internal::ParseOwnShard(tensors, name, options)
                           : internal::ParsePrototypeShard(tensors, name, options));
  KVB_RETURN_IF_ERROR(file->CheckUnchanged());
  return Shard(std::move(file), name, std::move(content));
}

void Shard::ReadHead(Role role, kv::Component component, int32_t layer, int32_t head, int64_t begin,
                     int64_t end, bool strip, float* out, int64_t stride) const {
  const ShardContent& c = content_;
  const ShardContent::Side& side = c.of(role);
  const model::KvGeometry& geometry = c.specs.of(role).geometry;
  const bool keys = component == kv::Component::kKey;
  const ShardContent::Plane& plane = keys ? side.keys : side.values;
  const bool rotate = strip && keys && !side.keys_stripped;
  const StripTable* table = rotate ? &side.tables[side.layer_tables[layer]] : nullptr;

  const auto dim = static_cast<size_t>(geometry.head_dim);
  const int64_t row_bytes = geometry.head_dim * int64_t(tensor::ByteSize(plane.dtype));
  const int64_t kept = rows() / c.batch;  // of a batch element
  for (int64_t r = begin; r < end; ++r, out += stride) {
    const int64_t element = r / kept, token = r % kept * c.token_stride;
    const int64_t index =
        ((layer * c.batch + element) * geometry.kv_heads + head) * c.tokens + token;
    tensor::DecodeRow(plane.dtype, plane.data + index * row_bytes, 1, out, dim);
    if (rotate) rope::StripRope(table->row(r), out, 1, geometry.head_dim);
  }
}

}  // namespace kvbridge::fit
