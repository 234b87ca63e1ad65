#include "client/cpp/cache_view.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace kvbridge::client {
namespace {

// As kvbridge.v1.KvGeometry says.
constexpr int32_t kMaxCount = 4096;

absl::Status CheckCount(absl::string_view field, absl::string_view name, int32_t value) {
  if (value >= 1 && value <= kMaxCount) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ".shape.", name, ": expected 1 to ", kMaxCount, ", got ", value));
}

}  // namespace

size_t ElementBytes(v1::ElementType type) {
  switch (type) {
    case v1::ELEMENT_TYPE_F32:
      return 4;
    case v1::ELEMENT_TYPE_BF16:
    case v1::ELEMENT_TYPE_F16:
      return 2;
    case v1::ELEMENT_TYPE_F8_E4M3:
      return 1;
    default:
      return 0;
  }
}

Strides HeadMajorStrides(const CacheShape& shape) {
  const auto dim = static_cast<int64_t>(shape.head_dim * ElementBytes(shape.element_type));
  return {.layer = shape.kv_heads * shape.tokens * dim, .token = dim, .head = shape.tokens * dim};
}

Strides TokenMajorStrides(const CacheShape& shape) {
  const auto dim = static_cast<int64_t>(shape.head_dim * ElementBytes(shape.element_type));
  return {.layer = shape.tokens * shape.kv_heads * dim, .token = shape.kv_heads * dim, .head = dim};
}

absl::Status Validate(const CacheShape& shape, absl::string_view field) {
  if (ElementBytes(shape.element_type) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ".shape.element_type: expected a known type, got ",
                     static_cast<int>(shape.element_type)));
  }
  for (const auto& [name, value] : {std::pair<absl::string_view, int32_t>{"layers", shape.layers},
                                    {"kv_heads", shape.kv_heads},
                                    {"head_dim", shape.head_dim}}) {
    if (absl::Status status = CheckCount(field, name, value); !status.ok()) return status;
  }
  if (shape.tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ".shape.tokens: expected at least 1, got ", shape.tokens));
  }
  return absl::OkStatus();
}

template <typename Byte>
absl::Status Validate(const CacheView<Byte>& view, absl::string_view field) {
  const CacheShape& shape = view.shape;
  if (absl::Status status = Validate(shape, field); !status.ok()) return status;
  if (view.planes.size() != 2 * static_cast<size_t>(shape.layers)) {
    return absl::InvalidArgumentError(absl::StrCat(field, ".planes: expected ", 2 * shape.layers,
                                                   " addresses, got ", view.planes.size()));
  }
  for (size_t i = 0; i < view.planes.size(); ++i) {
    if (view.planes[i] == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ".planes[", i, "]: expected an address, got null"));
    }
  }
  if (!view.pages.empty()) {
    const int64_t slots = static_cast<int64_t>(view.pages.size()) * view.tokens_per_page;
    if (view.tokens_per_page < 1 || slots < shape.tokens ||
        slots - shape.tokens >= view.tokens_per_page) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ".pages: expected those of ", shape.tokens, " tokens, got ",
                       view.pages.size(), " of ", view.tokens_per_page));
    }
  }
  const auto head_bytes = static_cast<int64_t>(view.head_bytes());
  if (shape.kv_heads > 1 && std::abs(view.head_stride) < head_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(field, ".head_stride: expected at least ",
                                                   head_bytes, " bytes, got ", view.head_stride));
  }
  if (shape.tokens > 1 && std::abs(view.token_stride) < head_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(field, ".token_stride: expected at least ",
                                                   head_bytes, " bytes, got ", view.token_stride));
  }
  return absl::OkStatus();
}

template absl::Status Validate(const CacheView<std::byte>& view, absl::string_view field);
template absl::Status Validate(const CacheView<const std::byte>& view, absl::string_view field);

}  // namespace kvbridge::client
