#include "client/cpp/header.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "client/cpp/chunk_source.h"
#include "proto/kvbridge/v1/traceparent.h"

namespace kvbridge::client {
namespace {

// The view's geometry as the wire says it, or an error where the caller's spec says another.
template <typename Byte>
absl::Status StateGeometry(const CacheView<Byte>& view, absl::string_view field,
                           v1::ModelSpec* spec) {
  v1::KvGeometry& geometry = *spec->mutable_geometry();
  const auto agree = [&](absl::string_view name, int64_t stated, int64_t seen) -> absl::Status {
    if (stated == 0 || stated == seen) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "header.", field, ".geometry.", name, ": expected ", seen, " (the view's), got ", stated));
  };
  const CacheShape& shape = view.shape;
  for (const absl::Status& status :
       {agree("layers", geometry.layers(), shape.layers),
        agree("kv_heads", geometry.kv_heads(), shape.kv_heads),
        agree("head_dim", geometry.head_dim(), shape.head_dim),
        agree("element_type", geometry.element_type(), shape.element_type)}) {
    if (!status.ok()) return status;
  }
  geometry.set_layers(shape.layers);
  geometry.set_kv_heads(shape.kv_heads);
  geometry.set_head_dim(shape.head_dim);
  geometry.set_element_type(shape.element_type);
  return absl::OkStatus();
}

absl::Status CheckTrace(const TransferOptions& options) {
  const std::string& parent = options.traceparent;
  const std::string& state = options.tracestate;
  if (!parent.empty() && !wire::ParseTraceparent(parent).has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "traceparent: expected W3C's version-trace-span-flags in lower-case hexadecimal, got ",
        parent.size(), " bytes of another shape"));
  }
  if (!wire::IsTracestate(state) || (parent.empty() && !state.empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat("tracestate: expected at most ", wire::kMaxTracestate,
                     " printable ASCII characters beside a traceparent, got ", state.size(),
                     parent.empty() ? " bytes without one" : " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::TransferHeader> MakeHeader(const TransferOptions& options,
                                              const SourceView& source, const TargetView& target) {
  if (absl::Status status = Validate(source, "source"); !status.ok()) return status;
  if (absl::Status status = CheckTrace(options); !status.ok()) return status;
  const bool elsewhere = options.header.target_selection().has_pool();
  if (absl::Status status =
          elsewhere ? Validate(target.shape, "target") : Validate(target, "target");
      !status.ok()) {
    return status;
  }
  if (source.row_bytes() > kMaxChunkBytes) {
    return absl::InvalidArgumentError(absl::StrCat("source: expected at most ", kMaxChunkBytes,
                                                   " bytes per token and layer, got ",
                                                   source.row_bytes()));
  }
  v1::TransferHeader header = options.header;
  if (absl::Status status = StateGeometry(source, "source", header.mutable_source());
      !status.ok()) {
    return status;
  }
  if (absl::Status status = StateGeometry(target, "target", header.mutable_target());
      !status.ok()) {
    return status;
  }
  v1::KvSelection& selection = *header.mutable_source_selection();
  if (selection.tokens() == 0) selection.set_tokens(source.shape.tokens);
  if (selection.tokens() < 0 || selection.tokens() > source.shape.tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("header.source_selection.tokens: expected 1 to ", source.shape.tokens,
                     " (source.shape.tokens), got ", selection.tokens()));
  }
  if (selection.key_state() == v1::KEY_STATE_UNSPECIFIED) {
    selection.set_key_state(v1::KEY_STATE_ROPED);
  }
  v1::TransferLimits& limits = *header.mutable_limits();
  if (target.shape.tokens < selection.tokens() &&
      (limits.max_covered_tokens() == 0 || limits.max_covered_tokens() > target.shape.tokens)) {
    limits.set_max_covered_tokens(target.shape.tokens);
  }
  return header;
}

int64_t MostCovered(const v1::TransferHeader& header) {
  const int64_t tokens = header.source_selection().tokens();
  const v1::TransferLimits& limits = header.limits();
  const int64_t prompt = header.prompt_tokens() > 0 ? header.prompt_tokens() : tokens;
  int64_t covered = std::min(tokens, prompt - std::max(1, limits.native_tail()));
  if (limits.max_covered_tokens() > 0) covered = std::min(covered, limits.max_covered_tokens());
  return std::max<int64_t>(0, covered);
}

int64_t FirstNewToken(const TransferOptions& options, const v1::TransferHeader& header) {
  if (options.prefix == nullptr) return header.first_token();
  if (options.prefix->hops != header.hops() + 1) return 0;
  const int64_t common = LongestCommonPrefix(options.prefix->token_ids, options.token_ids);
  return std::min(common, MostCovered(header));
}

}  // namespace kvbridge::client
