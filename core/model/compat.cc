#include "core/model/compat.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "core/base/status_macros.h"

namespace kvbridge::model {
namespace {

using Verdict = std::optional<Mismatch>;

// The first check that finds something ends the search, as an error status would.
#define KVB_RETURN_IF_FOUND(expr)                     \
  do {                                                \
    if (Verdict kvb_found = (expr)) return kvb_found; \
  } while (false)

constexpr double kRopeTolerance = 1e-6;

// Claimed strings come from outside: messages hold a short, printable piece of them.
std::string Text(const std::string& value) {
  return value.empty() ? "nothing" : absl::CEscape(value.substr(0, 96));
}
std::string Text(int64_t value) { return absl::StrCat(value); }
std::string Text(const std::vector<int32_t>& order) {
  return order.empty() ? "identity" : absl::StrCat("[", absl::StrJoin(order, ","), "]");
}

template <typename T>
Verdict Equal(MismatchKind kind, absl::string_view path, absl::string_view field, const T& expected,
              const T& got) {
  if (expected == got) return std::nullopt;
  return Mismatch{kind, absl::StrCat(path, field), Text(expected), Text(got)};
}

bool IsSha256(const std::string& digest) {
  return digest.size() == 64 && std::all_of(digest.begin(), digest.end(), [](unsigned char c) {
           return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
         });
}

// Names that move from commit to commit.
bool IsBranchName(const std::string& revision) {
  return revision == "main" || revision == "master" || revision == "HEAD" || revision == "latest";
}

Verdict IdentityDefect(const ModelIdentity& identity, const std::string& path) {
  const auto defect = [&](absl::string_view field, absl::string_view expected,
                          const std::string& got) {
    return Mismatch{MismatchKind::kIdentity, absl::StrCat(path, field), std::string(expected),
                    Text(got)};
  };
  if (identity.family.empty()) return defect("family", "a model family", "");
  if (identity.model_id.empty()) return defect("model_id", "a model id", "");
  if (identity.revision.empty() || IsBranchName(identity.revision)) {
    return defect("revision", "a commit or digest of the weights", identity.revision);
  }
  constexpr absl::string_view kSha256 = "a SHA-256 of 64 lower-case hex digits";
  if (!IsSha256(identity.tokenizer_sha256)) {
    return defect("tokenizer_sha256", kSha256, identity.tokenizer_sha256);
  }
  if (!identity.chat_template_sha256.empty() && !IsSha256(identity.chat_template_sha256)) {
    return defect("chat_template_sha256", kSha256, identity.chat_template_sha256);
  }
  // A shortened digest lets two images with the same placeholders pass for one another.
  if (!identity.modality_digest.empty() && !IsSha256(identity.modality_digest)) {
    return defect("modality_digest", kSha256, identity.modality_digest);
  }
  if (!identity.adapter_digest.empty()) {
    return Mismatch{MismatchKind::kUnsupported, absl::StrCat(path, "adapter_digest"), "no adapter",
                    Text(identity.adapter_digest)};
  }
  return std::nullopt;
}

bool IsPermutation(std::vector<int32_t> order, int32_t size) {
  std::sort(order.begin(), order.end());
  if (order.size() != static_cast<size_t>(size)) return false;
  for (int32_t i = 0; i < size; ++i) {
    if (order[i] != i) return false;
  }
  return true;
}

// Explicitly listing 0, 1, 2, ... says the same as listing nothing.
std::vector<int32_t> NormalOrder(const std::vector<int32_t>& order) {
  const bool identity = std::is_sorted(order.begin(), order.end());
  return identity ? std::vector<int32_t>() : order;
}

Verdict GeometryDefect(const KvGeometry& geometry, const std::string& path) {
  const auto defect = [&](absl::string_view field, std::string expected, std::string got) {
    return Mismatch{MismatchKind::kShape, absl::StrCat(path, field), std::move(expected),
                    std::move(got)};
  };
  const std::pair<absl::string_view, int32_t> counts[] = {{"layers", geometry.layers},
                                                          {"kv_heads", geometry.kv_heads},
                                                          {"head_dim", geometry.head_dim},
                                                          {"tp_degree", geometry.tp_degree}};
  for (const auto& [field, count] : counts) {
    if (count < 1) return defect(field, "a count above 0", Text(count));
  }
  if (geometry.tp_rank < 0 || geometry.tp_rank >= geometry.tp_degree) {
    return defect("tp_rank", absl::StrCat("0 to tp_degree - 1 = ", geometry.tp_degree - 1),
                  Text(geometry.tp_rank));
  }
  if (!geometry.attention.empty() &&
      geometry.attention.size() != static_cast<size_t>(geometry.layers)) {
    return defect("attention", absl::StrCat(geometry.layers, " entries, or none"),
                  Text(static_cast<int64_t>(geometry.attention.size())));
  }
  for (size_t layer = 0; layer < geometry.attention.size(); ++layer) {
    if (geometry.attention[layer] != AttentionKind::kFull) {
      return Mismatch{MismatchKind::kUnsupported, absl::StrCat(path, "attention[", layer, "]"),
                      "full", std::string(Name(geometry.attention[layer]))};
    }
  }
  if (!geometry.head_order.empty() && !IsPermutation(geometry.head_order, geometry.kv_heads)) {
    return defect("head_order", absl::StrCat("a permutation of ", geometry.kv_heads, " heads"),
                  Text(geometry.head_order));
  }
  return std::nullopt;
}

Verdict RopeDefect(const ModelSpec& spec, const std::string& path) {
  for (const auto& [layer, params] : spec.rope.layer_overrides) {
    if (layer < 0 || layer >= spec.geometry.layers) {
      return Mismatch{MismatchKind::kRope, absl::StrCat(path, "layer_overrides"),
                      absl::StrCat("layers 0 to ", spec.geometry.layers - 1), Text(layer)};
    }
  }
  const auto check = [&](const RopeParams& params, const std::string& where) -> Verdict {
    auto defect = rope::FindDefect(params, spec.geometry.head_dim);
    if (!defect) return std::nullopt;
    return Mismatch{MismatchKind::kRope, absl::StrCat(where, defect->field),
                    std::move(defect->expected), std::move(defect->got)};
  };
  KVB_RETURN_IF_FOUND(check(spec.rope.params, absl::StrCat(path, "params.")));
  for (const auto& [layer, params] : spec.rope.layer_overrides) {
    KVB_RETURN_IF_FOUND(check(params, absl::StrCat(path, "layer_overrides[", layer, "].")));
  }
  return std::nullopt;
}

Verdict IdentityDifference(const ModelIdentity& expected, const ModelIdentity& claimed,
                           const std::string& path) {
  constexpr MismatchKind kKind = MismatchKind::kIdentity;
  KVB_RETURN_IF_FOUND(Equal(kKind, path, "family", expected.family, claimed.family));
  KVB_RETURN_IF_FOUND(Equal(kKind, path, "model_id", expected.model_id, claimed.model_id));
  KVB_RETURN_IF_FOUND(Equal(kKind, path, "revision", expected.revision, claimed.revision));
  KVB_RETURN_IF_FOUND(
      Equal(kKind, path, "tokenizer_sha256", expected.tokenizer_sha256, claimed.tokenizer_sha256));
  if (!expected.chat_template_sha256.empty()) {
    KVB_RETURN_IF_FOUND(Equal(kKind, path, "chat_template_sha256", expected.chat_template_sha256,
                              claimed.chat_template_sha256));
  }
  return Equal(kKind, path, "modality_digest", expected.modality_digest, claimed.modality_digest);
}

Verdict ShardDifference(const KvGeometry& expected, const KvGeometry& got, absl::string_view path) {
  constexpr MismatchKind kKind = MismatchKind::kShape;
  KVB_RETURN_IF_FOUND(Equal<int64_t>(kKind, path, "tp_degree", expected.tp_degree, got.tp_degree));
  KVB_RETURN_IF_FOUND(Equal<int64_t>(kKind, path, "tp_rank", expected.tp_rank, got.tp_rank));
  return Equal(kKind, path, "head_order", NormalOrder(expected.head_order),
               NormalOrder(got.head_order));
}

Verdict GeometryDifference(const KvGeometry& expected, const KvGeometry& claimed,
                           const std::string& path) {
  constexpr MismatchKind kKind = MismatchKind::kShape;
  KVB_RETURN_IF_FOUND(Equal<int64_t>(kKind, path, "layers", expected.layers, claimed.layers));
  KVB_RETURN_IF_FOUND(Equal<int64_t>(kKind, path, "kv_heads", expected.kv_heads, claimed.kv_heads));
  KVB_RETURN_IF_FOUND(Equal<int64_t>(kKind, path, "head_dim", expected.head_dim, claimed.head_dim));
  return ShardDifference(expected, claimed, path);
}

Verdict NearlyEqual(const std::string& field, double expected, double got) {
  if (std::abs(expected - got) <= kRopeTolerance * std::abs(expected)) return std::nullopt;
  return Mismatch{MismatchKind::kRope, field, absl::StrCat(expected), absl::StrCat(got)};
}

Verdict RopeDifference(const RopeParams& expected, const RopeParams& claimed,
                       const std::string& path) {
  if (expected == claimed) return std::nullopt;
  constexpr MismatchKind kKind = MismatchKind::kRope;
  KVB_RETURN_IF_FOUND(
      Equal<int64_t>(kKind, path, "rotary_dim", expected.rotary_dim, claimed.rotary_dim));
  KVB_RETURN_IF_FOUND(Equal(kKind, path, "pairing", std::string(Name(expected.pairing)),
                            std::string(Name(claimed.pairing))));
  KVB_RETURN_IF_FOUND(NearlyEqual(absl::StrCat(path, "attention_factor"), expected.attention_factor,
                                  claimed.attention_factor));
  for (size_t i = 0; i < expected.inv_freq.size(); ++i) {
    KVB_RETURN_IF_FOUND(NearlyEqual(absl::StrCat(path, "inv_freq[", i, "]"), expected.inv_freq[i],
                                    claimed.inv_freq[i]));
  }
  return std::nullopt;
}

Verdict RopeDifference(const RopeSpec& expected, const RopeSpec& claimed, const std::string& path) {
  KVB_RETURN_IF_FOUND(
      RopeDifference(expected.params, claimed.params, absl::StrCat(path, "params.")));
  std::set<int32_t> overridden;
  for (const auto& [layer, params] : expected.layer_overrides) overridden.insert(layer);
  for (const auto& [layer, params] : claimed.layer_overrides) overridden.insert(layer);
  for (int32_t layer : overridden) {
    KVB_RETURN_IF_FOUND(RopeDifference(expected.ForLayer(layer), claimed.ForLayer(layer),
                                       absl::StrCat(path, "layer_overrides[", layer, "].")));
  }
  return std::nullopt;
}

}  // namespace

std::string Mismatch::ToString() const {
  return absl::StrCat(field, ": expected ", expected, ", got ", got);
}

std::optional<Mismatch> FindDefect(const ModelSpec& spec, absl::string_view path) {
  KVB_RETURN_IF_FOUND(IdentityDefect(spec.identity, absl::StrCat(path, ".identity.")));
  KVB_RETURN_IF_FOUND(GeometryDefect(spec.geometry, absl::StrCat(path, ".geometry.")));
  return RopeDefect(spec, absl::StrCat(path, ".rope."));
}

std::optional<Mismatch> FindMismatch(const ModelSpec& expected, const ModelSpec& claimed,
                                     absl::string_view path) {
  KVB_RETURN_IF_FOUND(FindDefect(claimed, path));
  KVB_RETURN_IF_FOUND(FindDefect(expected, absl::StrCat("artifact.", path)));
  KVB_RETURN_IF_FOUND(
      IdentityDifference(expected.identity, claimed.identity, absl::StrCat(path, ".identity.")));
  KVB_RETURN_IF_FOUND(
      GeometryDifference(expected.geometry, claimed.geometry, absl::StrCat(path, ".geometry.")));
  return RopeDifference(expected.rope, claimed.rope, absl::StrCat(path, ".rope."));
}

std::optional<Mismatch> FindPairMismatch(const ModelSpec& source, const ModelSpec& target) {
  KVB_RETURN_IF_FOUND(FindDefect(source, "source"));
  KVB_RETURN_IF_FOUND(FindDefect(target, "target"));
  KVB_RETURN_IF_FOUND(Equal(MismatchKind::kIdentity, "target.identity.", "tokenizer_sha256",
                            source.identity.tokenizer_sha256, target.identity.tokenizer_sha256));
  KVB_RETURN_IF_FOUND(Equal(MismatchKind::kIdentity, "target.identity.", "modality_digest",
                            source.identity.modality_digest, target.identity.modality_digest));
  return ShardDifference(source.geometry, target.geometry, "target.geometry.");
}

#undef KVB_RETURN_IF_FOUND

}  // namespace kvbridge::model
