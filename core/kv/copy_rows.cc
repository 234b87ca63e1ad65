#include "core/kv/copy_rows.h"

#include <cstring>

#include "core/tensor/dtype.h"

namespace kvbridge::kv {

void CopyRows(const KvView& from, int32_t layer, Component c, TokenRange range, const KvView& to,
              int64_t to_begin) {
  const int64_t from_head = from.plane(layer, c).head_stride;
  const int64_t to_head = to.plane(layer, c).head_stride;
  const int64_t head_bytes = from.head_dim * static_cast<int64_t>(tensor::ByteSize(from.dtype));
  const bool whole_rows = from_head == head_bytes && to_head == head_bytes;
  const int64_t pieces = whole_rows ? 1 : from.kv_heads;
  const auto piece_bytes = static_cast<size_t>(head_bytes * from.kv_heads / pieces);
  for (int64_t token = range.begin; token < range.end; ++token, ++to_begin) {
    const std::byte* source = from.Row(layer, c, token);
    std::byte* target = to.Row(layer, c, to_begin);
    for (int64_t i = 0; i < pieces; ++i) {
      std::memcpy(target + i * to_head, source + i * from_head, piece_bytes);
    }
  }
}

}  // namespace kvbridge::kv
