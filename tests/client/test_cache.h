// A small cache in memory whose every head of every token holds bytes that name their place.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "client/cpp/cache_view.h"

namespace kvbridge::client {

enum class Layout { kHeadMajor, kTokenMajor };

class TestCache {
 public:
  TestCache(const CacheShape& shape, Layout layout)
      : shape_(shape),
        strides_(layout == Layout::kHeadMajor ? HeadMajorStrides(shape)
                                              : TokenMajorStrides(shape)) {
    const size_t bytes = static_cast<size_t>(shape.layers) * strides_.layer;
    keys_.assign(bytes, std::byte{0xee});
    values_.assign(bytes, std::byte{0xee});
  }

  SourceView source() const {
    return StridedView<SourceView, const std::byte>(shape_, keys_.data(), values_.data(), strides_);
  }
  TargetView target() {
    return StridedView<TargetView, std::byte>(shape_, keys_.data(), values_.data(), strides_);
  }

  const std::byte* Head(int layer, int component, int64_t token, int head) const {
    const auto& plane = component == 0 ? keys_ : values_;
    return plane.data() + layer * strides_.layer + token * strides_.token + head * strides_.head;
  }
  size_t head_bytes() const { return shape_.head_dim * ElementBytes(shape_.element_type); }

  static std::byte Expected(int layer, int component, int64_t token, int head, size_t at) {
    return static_cast<std::byte>(layer * 101 + component * 53 + token * 7 + head * 31 + at * 3 +
                                  1);
  }

  void Fill() {
    ForEachHead([&](int layer, int component, int64_t token, int head) {
      auto* p = const_cast<std::byte*>(Head(layer, component, token, head));
      for (size_t i = 0; i < head_bytes(); ++i) p[i] = Expected(layer, component, token, head, i);
    });
  }

  // Tokens [begin, end) hold what Fill writes.
  bool Holds(int64_t begin, int64_t end) const {
    bool holds = true;
    ForEachHead([&](int layer, int component, int64_t token, int head) {
      if (token < begin || token >= end) return;
      for (size_t i = 0; i < head_bytes(); ++i) {
        holds &=
            Head(layer, component, token, head)[i] == Expected(layer, component, token, head, i);
      }
    });
    return holds;
  }

  // Tokens [begin, end) hold this byte everywhere.
  bool IsAll(std::byte value, int64_t begin, int64_t end) const {
    bool all = true;
    ForEachHead([&](int layer, int component, int64_t token, int head) {
      if (token < begin || token >= end) return;
      for (size_t i = 0; i < head_bytes(); ++i) {
        all &= Head(layer, component, token, head)[i] == value;
      }
    });
    return all;
  }
  // Every byte is either untouched or zero.
  bool HoldsNothing() const {
    bool nothing = true;
    ForEachHead([&](int layer, int component, int64_t token, int head) {
      for (size_t i = 0; i < head_bytes(); ++i) {
        const std::byte b = Head(layer, component, token, head)[i];
        nothing &= b == kUntouched || b == std::byte{0};
      }
    });
    return nothing;
  }

  static constexpr std::byte kUntouched{0xee};

 private:
  template <typename Visit>
  void ForEachHead(Visit visit) const {
    for (int layer = 0; layer < shape_.layers; ++layer) {
      for (int component = 0; component < 2; ++component) {
        for (int64_t token = 0; token < shape_.tokens; ++token) {
          for (int head = 0; head < shape_.kv_heads; ++head) visit(layer, component, token, head);
        }
      }
    }
  }

  CacheShape shape_;
  Strides strides_;
  std::vector<std::byte> keys_;
  std::vector<std::byte> values_;
};

inline constexpr CacheShape kSmallShape = {
    .element_type = v1::ELEMENT_TYPE_BF16, .layers = 3, .kv_heads = 2, .head_dim = 8, .tokens = 10};

}  // namespace kvbridge::client
