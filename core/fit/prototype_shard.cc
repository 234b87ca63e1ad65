// The Python prototype's calibration shards. Their RoPE tables are believed only after they were
// found to be the rotation that the models declare, or a rotation at all.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/fit/shard.h"
#include "core/tensor/convert.h"

namespace kvbridge::fit::internal {
namespace {

using artifact::SafeTensors;
using artifact::StTensor;

constexpr int64_t kMaxCount = 4096;  // layers, heads, head_dim, as in a ModelSpec

absl::StatusOr<bool> Flag(const SafeTensors& file, absl::string_view what, Role role,
                          absl::string_view suffix) {
  const std::string key = absl::StrCat(Name(role), suffix);
  KVB_ASSIGN_OR_RETURN(const std::string word, Metadata(file, key, what));
  if (word == "true" || word == "false") return word == "true";
  return BadShard(what, absl::StrCat("metadata ", key, ": expected \"true\" or \"false\", got \"",
                                     absl::Utf8SafeCEscape(word.substr(0, 40)), "\""));
}

absl::Status RefuseUnknownTensors(const SafeTensors& file, absl::string_view what) {
  for (const auto& [name, tensor] : file.tensors()) {
    bool known = false;
    for (const Role role : kRoles) {
      for (const char* suffix : {".keys", ".values", ".rope_cos", ".rope_sin"}) {
        known = known || name == absl::StrCat(Name(role), suffix);
      }
    }
    if (!known) {
      return BadShard(
          what, absl::StrCat("unknown tensor \"", absl::Utf8SafeCEscape(name.substr(0, 80)), "\""));
    }
  }
  return absl::OkStatus();
}

// Geometry from the shapes of one side's tensors. The first side read sets batch and tokens.
absl::Status ReadPlanes(const SafeTensors& file, absl::string_view what, Role role,
                        model::KvGeometry* geometry, ShardContent* content) {
  ShardContent::Side& side = content->of(role);
  const std::string keys_name = absl::StrCat(Name(role), ".keys");
  KVB_ASSIGN_OR_RETURN(const StTensor* keys, file.Find(keys_name));
  const std::vector<int64_t>& shape = keys->shape;
  const auto bounded = [](int64_t n) { return n >= 1 && n <= kMaxCount; };
  if (shape.size() != 5 || !bounded(shape[0]) || !bounded(shape[2]) || !bounded(shape[4]) ||
      shape[1] < 1 || shape[3] < 1) {
    return BadShard(what, absl::StrCat(keys_name,
                                       ": expected [layers, batch, kv_heads, tokens, head_dim], "
                                       "each at least 1, got ",
                                       artifact::ShapeText(shape)));
  }
  if (content->tokens == 0) {
    content->batch = shape[1];
    content->tokens = shape[3];
  }
  if (shape[1] != content->batch || shape[3] != content->tokens) {
    return BadShard(what, absl::StrCat(keys_name, ": expected the source's ", content->batch,
                                       " batch elements of ", content->tokens, " tokens, got ",
                                       shape[1], " of ", shape[3]));
  }
  for (const auto& [suffix, plane] :
       {std::pair(".keys", &side.keys), std::pair(".values", &side.values)}) {
    const std::string name = absl::StrCat(Name(role), suffix);
    KVB_ASSIGN_OR_RETURN(const StTensor* tensor, file.Find(name));
    if (tensor->shape != shape) {
      return BadShard(what, absl::StrCat(name, ": expected ", artifact::ShapeText(shape), ", got ",
                                         artifact::ShapeText(tensor->shape)));
    }
    KVB_ASSIGN_OR_RETURN(plane->dtype, RowDType(*tensor, name, what));
    plane->data = tensor->data.data();
  }
  geometry->layers = static_cast<int32_t>(shape[0]);
  geometry->kv_heads = static_cast<int32_t>(shape[2]);
  geometry->head_dim = static_cast<int32_t>(shape[4]);
  geometry->dtype = side.keys.dtype;
  return absl::OkStatus();
}

// Cosines and sines as stored: one entry per pair and row, after the stride.
struct Tables {
  int32_t half = 0;
  rope::Pairing pairing = rope::Pairing::kHalf;
  double precision = 0;    // of an entry, relative to the attention factor
  std::vector<float> cos;  // [rows, half]
  std::vector<float> sin;
  double factor() const { return std::hypot(cos[0], sin[0]); }
};

// One table's entries at the rows that are kept, [rows, rotary_dim].
std::vector<float> KeptRows(const StTensor& tensor, tensor::DType dtype,
                            const ShardContent& content) {
  const auto width = static_cast<size_t>(tensor.shape.back());
  const bool per_element = tensor.shape.size() == 3 && tensor.shape[0] > 1;
  std::vector<float> out;
  for (int64_t b = 0; b < content.batch; ++b) {
    for (int64_t t = 0; t < content.tokens; t += content.token_stride) {
      const int64_t row = (per_element ? b * content.tokens : 0) + t;
      out.resize(out.size() + width);
      tensor::DecodeRow(dtype, tensor.data.data() + row * int64_t(width * ByteSize(dtype)), 1,
                        out.data() + out.size() - width, width);
    }
  }
  return out;
}

// Both members of a pair must have the same entry, or the table belongs to the other pairing.
absl::Status TakePairs(const std::vector<float>& stored, const std::string& name,
                       absl::string_view what, const Tables& tables, std::vector<float>* out) {
  const int32_t half = tables.half;
  const bool neighbours = tables.pairing == rope::Pairing::kInterleaved;
  for (size_t at = 0; at < stored.size(); at += 2 * static_cast<size_t>(half)) {
    for (int32_t i = 0; i < half; ++i) {
      const float one = stored[at + (neighbours ? 2 * i : i)];
      const float two = stored[at + (neighbours ? 2 * i + 1 : i + half)];
      if (!(std::abs(one - two) <= 1e-6f)) {
        return BadShard(what,
                        absl::StrCat(name, ": expected equal entries for the dimensions of a ",
                                     rope::Name(tables.pairing), " pair, got ", one, " and ", two,
                                     " for pair ", i));
      }
      out->push_back(one);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const StTensor& tensor, const std::string& name, absl::string_view what,
                        int32_t head_dim, const ShardContent& content) {
  const std::vector<int64_t>& s = tensor.shape;
  const bool rank = s.size() == 2 || (s.size() == 3 && (s[0] == 1 || s[0] == content.batch));
  if (rank && s[s.size() - 2] == content.tokens && s.back() >= 2 && s.back() % 2 == 0 &&
      s.back() <= head_dim) {
    return absl::OkStatus();
  }
  return BadShard(what, absl::StrCat(name, ": expected [", content.batch, " or 1, ", content.tokens,
                                     ", an even rotary_dim up to ", head_dim, "], got ",
                                     artifact::ShapeText(s)));
}

// nullopt when the side has no tables.
absl::StatusOr<std::optional<Tables>> ReadTables(const SafeTensors& file, absl::string_view what,
                                                 Role role, bool interleaved,
                                                 const model::KvGeometry& geometry,
                                                 const ShardContent& content) {
  const std::string names[] = {absl::StrCat(Name(role), ".rope_cos"),
                               absl::StrCat(Name(role), ".rope_sin")};
  if (!file.tensors().contains(names[0]) && !file.tensors().contains(names[1])) {
    return std::nullopt;
  }
  Tables tables;
  tables.pairing = interleaved ? rope::Pairing::kInterleaved : rope::Pairing::kHalf;
  KVB_ASSIGN_OR_RETURN(const StTensor* cos, file.Find(names[0]));
  KVB_RETURN_IF_ERROR(CheckShape(*cos, names[0], what, geometry.head_dim, content));
  KVB_RETURN_IF_ERROR(file.Find(names[1], cos->dtype, cos->shape).status());
  KVB_ASSIGN_OR_RETURN(const tensor::DType dtype, RowDType(*cos, names[0], what));
  tables.half = static_cast<int32_t>(cos->shape.back() / 2);
  tables.precision = dtype == tensor::DType::kF32    ? 1e-6
                     : dtype == tensor::DType::kBf16 ? 0x1p-8
                                                     : 0x1p-11;
  for (const auto& [name, out] :
       {std::pair(names[0], &tables.cos), std::pair(names[1], &tables.sin)}) {
    KVB_ASSIGN_OR_RETURN(const StTensor* tensor, file.Find(name));
    KVB_RETURN_IF_ERROR(TakePairs(KeptRows(*tensor, dtype, content), name, what, tables, out));
  }
  return tables;
}

absl::Status CheckDeterminants(const Tables& tables, const std::string& path,
                               absl::string_view what) {
  const double expected = tables.factor();
  for (size_t i = 0; i < tables.cos.size(); ++i) {
    const double got = std::hypot(tables.cos[i], tables.sin[i]);
    if (!(std::abs(got - expected) <= 4 * tables.precision * expected) || expected == 0) {
      const auto half = static_cast<size_t>(tables.half);
      return BadShard(
          what, absl::StrCat(path, ": expected sqrt(cos^2 + sin^2) to be one factor, ", expected,
                             ", got ", got, " at row ", i / half, ", pair ", i % half));
    }
  }
  return absl::OkStatus();
}

// A rotation from the tables alone: rows 0 and 1 must be positions 0 and 1.
absl::StatusOr<rope::RopeParams> DeriveRope(const Tables& tables, int64_t rows,
                                            const std::string& path, absl::string_view what) {
  rope::RopeParams params;
  params.rotary_dim = 2 * tables.half;
  params.pairing = tables.pairing;
  params.attention_factor = tables.factor();
  const bool starts = rows >= 2 && tables.precision < 1e-5 && tables.sin[0] == 0;
  for (int32_t i = 0; starts && i < tables.half; ++i) {
    const size_t at = static_cast<size_t>(tables.half) + i;
    params.inv_freq.push_back(std::atan2(double{tables.sin[at]}, double{tables.cos[at]}));
  }
  // Every published scaling but linear leaves the first pair at one radian per position.
  if (!starts || std::abs(params.inv_freq[0] - 1) > 1e-5) {
    return BadShard(what, absl::StrCat(path,
                                       ": expected FP32 tables that begin at positions 0 and "
                                       "1 to tell the rotation by; state the model's config"));
  }
  if (absl::Status valid = rope::Validate(params, params.rotary_dim, path); !valid.ok()) {
    return BadShard(what, valid.message());
  }
  return params;
}

// Nearest position to what every pair's angle says, the slowest first: each next one is known to
// within a fraction of its own turn.
int64_t PositionOf(const rope::RopeParams& params, const float* cos, const float* sin) {
  constexpr double kTurn = 2 * std::numbers::pi;
  double position = 0;
  for (size_t i = params.inv_freq.size(); i-- > 0;) {
    const double angle = std::atan2(double{sin[i]}, double{cos[i]});
    const double turns = std::round((position * params.inv_freq[i] - angle) / kTurn);
    position = (angle + turns * kTurn) / params.inv_freq[i];
  }
  return std::llround(position);
}

// The positions at which `params` gives these tables.
absl::StatusOr<std::vector<int64_t>> ReadPositions(const Tables& tables,
                                                   const rope::RopeParams& params,
                                                   const std::string& path,
                                                   absl::string_view what) {
  const auto half = static_cast<size_t>(tables.half);
  std::vector<int64_t> positions;
  for (size_t at = 0; at < tables.cos.size(); at += half) {
    const int64_t position = PositionOf(params, &tables.cos[at], &tables.sin[at]);
    for (size_t i = 0; i < half; ++i) {
      // Tables made in FP32 are off by their angle's rounding.
      const double angle = static_cast<double>(position) * params.inv_freq[i];
      const double slack = params.attention_factor * (4 * tables.precision + 5e-7 * angle);
      const double cos = params.attention_factor * std::cos(angle);
      const double sin = params.attention_factor * std::sin(angle);
      if (position >= 0 && std::abs(cos - tables.cos[at + i]) <= slack &&
          std::abs(sin - tables.sin[at + i]) <= slack) {
        continue;
      }
      return BadShard(what, absl::StrCat(path,
                                         ": expected the model's rotation at some position, got "
                                         "entries of none at row ",
                                         at / half, ": nearest position ", position, ", pair ", i,
                                         ", expected cos ", cos, ", got ", tables.cos[at + i]));
    }
    positions.push_back(position);
  }
  return positions;
}

absl::Status CheckIncreasing(const ShardContent& content, absl::string_view what) {
  const size_t kept = content.positions.size() / static_cast<size_t>(content.batch);
  for (size_t r = 0; r < content.positions.size(); ++r) {
    if (r % kept == 0 || content.positions[r] > content.positions[r - 1]) continue;
    return BadShard(what, absl::StrCat("rope tables: expected positions that increase, got ",
                                       content.positions[r], " after ", content.positions[r - 1],
                                       " at row ", r, " (padding?)"));
  }
  return absl::OkStatus();
}

StripTable Strip(const Tables& tables) {
  StripTable strip{tables.half, tables.pairing, {}};
  const auto half = static_cast<size_t>(tables.half);
  strip.values.resize(2 * tables.cos.size());
  for (size_t i = 0; i < tables.cos.size(); ++i) {
    const double c = tables.cos[i], s = tables.sin[i];
    float* row = strip.values.data() + i / half * 2 * half + i % half;
    row[0] = static_cast<float>(c / (c * c + s * s));
    row[half] = static_cast<float>(s / (c * c + s * s));
  }
  return strip;
}

absl::Status CheckDeclared(const model::ModelSpec& declared, const model::KvGeometry& found,
                           const std::optional<Tables>& tables, const std::string& path,
                           absl::string_view what) {
  const auto counts = [](const model::KvGeometry& g) {
    return absl::StrCat(g.layers, " layers x ", g.kv_heads, " heads x ", g.head_dim);
  };
  if (counts(declared.geometry) != counts(found)) {
    return absl::FailedPreconditionError(absl::StrCat(
        what, ": ", path, ": expected ", counts(declared.geometry), ", got ", counts(found)));
  }
  if (!tables) return absl::OkStatus();
  const rope::RopeParams& rope = declared.rope.params;
  const auto rotation = [](int32_t rotary_dim, rope::Pairing pairing) {
    return absl::StrCat("one table of ", rotary_dim, " ", rope::Name(pairing), " dimensions");
  };
  const std::string got = rotation(2 * tables->half, tables->pairing);
  if (!declared.rope.layer_overrides.empty() || rotation(rope.rotary_dim, rope.pairing) != got) {
    return absl::FailedPreconditionError(absl::StrCat(what, ": ", path, ".rope: expected ",
                                                      declared.rope.layer_overrides.empty()
                                                          ? rotation(rope.rotary_dim, rope.pairing)
                                                          : "a table for each kind of layer",
                                                      ", got ", got));
  }
  if (std::abs(tables->factor() - rope.attention_factor) >
      4 * tables->precision * rope.attention_factor) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": ", path, ".rope.attention_factor: expected ", rope.attention_factor,
                     ", got ", tables->factor()));
  }
  return absl::OkStatus();
}

// One side: its spec, declared or derived, its tables, and the positions they tell.
absl::Status ReadSide(const SafeTensors& file, absl::string_view what, Role role,
                      const std::optional<SpecPair>& declared, ShardContent* content) {
  const std::string path(Name(role));
  ShardContent::Side& side = content->of(role);
  model::ModelSpec& spec = content->specs.of(role);
  KVB_ASSIGN_OR_RETURN(side.keys_stripped, Flag(file, what, role, "_keys_are_content"));
  KVB_ASSIGN_OR_RETURN(const bool interleaved, Flag(file, what, role, "_interleaved"));
  KVB_RETURN_IF_ERROR(ReadPlanes(file, what, role, &spec.geometry, content));
  KVB_ASSIGN_OR_RETURN(const std::optional<Tables> tables,
                       ReadTables(file, what, role, interleaved, spec.geometry, *content));
  if (tables) KVB_RETURN_IF_ERROR(CheckDeterminants(*tables, path + ".rope", what));
  const int64_t rows = content->batch * ((content->tokens - 1) / content->token_stride + 1);
  if (declared) {
    KVB_RETURN_IF_ERROR(CheckDeclared(declared->of(role), spec.geometry, tables, path, what));
    spec = declared->of(role);
  } else if (tables) {
    KVB_ASSIGN_OR_RETURN(spec.rope.params, DeriveRope(*tables, rows, path + ".rope", what));
  }
  if (!tables) {
    if (declared && side.keys_stripped) return absl::OkStatus();
    return BadShard(what, absl::StrCat(path,
                                       ".rope_cos: missing, and nothing else tells how the "
                                       "keys were rotated"));
  }
  KVB_ASSIGN_OR_RETURN(std::vector<int64_t> positions,
                       ReadPositions(*tables, spec.rope.params, path + ".rope", what));
  if (!content->positions.empty() && content->positions != positions) {
    return BadShard(what, "target.rope: expected the source's positions, got others");
  }
  content->positions = std::move(positions);
  side.tables.push_back(Strip(*tables));
  side.layer_tables.assign(static_cast<size_t>(spec.geometry.layers), 0);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ShardContent> ParsePrototypeShard(const SafeTensors& file, absl::string_view what,
                                                 const ShardOptions& options) {
  ShardContent content;
  content.token_stride = options.token_stride;
  KVB_ASSIGN_OR_RETURN(content.sequence_id, Metadata(file, "sequence_id", what));
  KVB_RETURN_IF_ERROR(RefuseUnknownTensors(file, what));
  for (const Role role : kRoles) {
    KVB_RETURN_IF_ERROR(ReadSide(file, what, role, options.declared, &content));
  }
  if (content.positions.empty()) {
    // Neither side has tables: tokens are taken to follow each other.
    for (int64_t b = 0; b < content.batch; ++b) {
      for (int64_t t = 0; t < content.tokens; t += content.token_stride) {
        content.positions.push_back(t);
      }
    }
  }
  KVB_RETURN_IF_ERROR(CheckIncreasing(content, what));
  KVB_ASSIGN_OR_RETURN(const StTensor* values, file.Find("source.values"));
  KVB_ASSIGN_OR_RETURN(content.digest,
                       crypto::Sha256Of(values->data.first(values->data.size() /
                                                           static_cast<size_t>(values->shape[0]))));
  return content;
}

}  // namespace kvbridge::fit::internal
