#include "client/cpp/staging.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/cpp/steady_clock.h"
#include "google/protobuf/util/message_differencer.h"

namespace kvbridge::client {
namespace {

using google::protobuf::util::MessageDifferencer;

constexpr int32_t kPageTokens = 64;  // at most 63 slots past the last token have to be cleared
constexpr int64_t kLeastTokens = 256;
constexpr absl::Duration kRetryAfter = absl::Seconds(5);
constexpr int64_t kMostTokens = int64_t{1} << 27;

// So few sizes that pools are used again.
int64_t RoundUp(int64_t tokens) {
  int64_t capacity = kLeastTokens;
  while (capacity < tokens) capacity *= 2;
  return capacity;
}

size_t BytesOf(const v1::ModelSpec& model, int64_t capacity) {
  const v1::KvGeometry& geometry = model.geometry();
  return static_cast<size_t>(2 * capacity * geometry.layers()) * geometry.kv_heads() *
         geometry.head_dim() * ElementBytes(geometry.element_type());
}

bool Serves(const PoolLayout& layout, const PoolLayout& wanted) {
  return layout.pages == wanted.pages && MessageDifferencer::Equals(layout.model, wanted.model) &&
         std::equal(layout.scales.begin(), layout.scales.end(), wanted.scales.begin(),
                    wanted.scales.end(), [](const v1::LayerScales& a, const v1::LayerScales& b) {
                      return MessageDifferencer::Equals(a, b);
                    });
}

// Token-major: a row of all heads is one run.
absl::StatusOr<std::shared_ptr<const Pool>> MakePool(PoolLayout layout, size_t bytes) {
  auto region = SharedRegion::Create(bytes);
  if (!region.ok()) return region.status();
  const v1::KvGeometry& geometry = layout.model.geometry();
  layout.head_stride =
      geometry.head_dim() * static_cast<int64_t>(ElementBytes(geometry.element_type()));
  layout.token_stride = layout.head_stride * geometry.kv_heads();
  layout.page_stride = layout.token_stride * kPageTokens;
  for (int32_t plane = 0; plane < 2 * geometry.layers(); ++plane) {
    layout.planes.push_back((*region)->bytes().data() + plane * layout.page_stride * layout.pages);
  }
  return Pool::Create(std::move(layout), {*std::move(region)});
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Pool>> Staging::Take(
    const v1::ModelSpec& model, const google::protobuf::RepeatedPtrField<v1::LayerScales>& scales,
    int64_t tokens, std::vector<std::shared_ptr<const Pool>>* dropped) {
  if (tokens > kMostTokens) {
    return absl::ResourceExhaustedError(absl::StrCat("staging: ", tokens, " tokens are too many"));
  }
  const int64_t capacity = RoundUp(tokens);
  const size_t bytes = BytesOf(model, capacity);
  PoolLayout wanted;
  wanted.model = model;
  wanted.tokens_per_page = kPageTokens;
  wanted.pages = static_cast<int32_t>(capacity / kPageTokens);
  wanted.scales.assign(scales.begin(), scales.end());
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(idle_.begin(), idle_.end(), [&](const auto& pool) {
      return Serves(pool->layout(), wanted);
    });
    if (found != idle_.end()) {
      std::shared_ptr<const Pool> pool = std::move(*found);
      idle_.erase(found);
      return pool;
    }
    if (SteadyNow() < retry_at_) return refusal_;
    while (!idle_.empty() && bytes_ + bytes > max_bytes_) {
      bytes_ -= BytesOf(idle_.front()->layout().model, idle_.front()->layout().pages * kPageTokens);
      dropped->push_back(std::move(idle_.front()));
      idle_.erase(idle_.begin());
    }
    if (bytes_ + bytes > max_bytes_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("staging: expected at most ", max_bytes_, " bytes, got ", bytes_ + bytes));
    }
    bytes_ += bytes;
  }
  auto pool = MakePool(std::move(wanted), bytes);
  if (!pool.ok()) {
    const std::lock_guard lock(mutex_);
    bytes_ -= bytes;
  }
  return pool;
}

void Staging::Return(std::shared_ptr<const Pool> pool, bool reusable) {
  const std::lock_guard lock(mutex_);
  if (reusable) {
    idle_.push_back(std::move(pool));
  } else {
    bytes_ -= BytesOf(pool->layout().model, pool->layout().pages * kPageTokens);
  }
}

void Staging::Refuse(absl::Status why) {
  const std::lock_guard lock(mutex_);
  refusal_ = std::move(why);
  retry_at_ = SteadyNow() + kRetryAfter;
}

std::vector<int32_t> StagingPages(const Pool& pool, int64_t tokens) {
  const int32_t per_page = pool.layout().tokens_per_page;
  std::vector<int32_t> pages(static_cast<size_t>((tokens + per_page - 1) / per_page));
  std::iota(pages.begin(), pages.end(), 0);
  return pages;
}

void CopyTokens(const CacheView<const std::byte>& from, const TargetView& to, int64_t begin,
                int64_t end) {
  const size_t head_bytes = from.head_bytes();
  const bool dense =
      from.head_stride == to.head_stride && from.head_stride == static_cast<int64_t>(head_bytes);
  const bool same_rows = dense && from.token_stride == to.token_stride &&
                         from.token_stride == static_cast<int64_t>(from.row_bytes());
  for (size_t plane = 0; plane < from.planes.size(); ++plane) {
    for (int64_t token = begin; token < end;) {
      auto [source, source_run] = from.Row(plane, token);
      auto [target, target_run] = to.Row(plane, token);
      const int64_t run = std::min({source_run, target_run, end - token});
      token += run;
      if (same_rows) {
        std::memcpy(target, source, static_cast<size_t>(run) * from.row_bytes());
        continue;
      }
      for (int64_t i = 0; i < run; ++i, source += from.token_stride, target += to.token_stride) {
        if (dense) {
          std::memcpy(target, source, from.row_bytes());
          continue;
        }
        for (int32_t head = 0; head < from.shape.kv_heads; ++head) {
          std::memcpy(target + head * to.head_stride, source + head * from.head_stride, head_bytes);
        }
      }
    }
  }
}

}  // namespace kvbridge::client
