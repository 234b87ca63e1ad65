#include "client/cli/handoff.h"

#include <cstddef>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"

namespace kvbridge::cli {

absl::StatusOr<std::unique_ptr<Handoff>> OpenHandoff(const HandoffFlags& flags, int64_t most_tokens,
                                                     const Output& output) {
  return flags.server.address.empty() ? OpenLocalHandoff(flags, most_tokens, output)
                                      : OpenRemoteHandoff(flags);
}

artifact::CacheFile NewCache(const model::ModelSpec& spec, int64_t tokens,
                             std::span<std::byte>* bytes) {
  const model::KvGeometry& geometry = spec.geometry;
  const auto size = static_cast<size_t>(geometry.token_bytes() * tokens);
  std::shared_ptr<std::byte[]> memory = std::make_shared<std::byte[]>(size);
  if (bytes != nullptr) *bytes = {memory.get(), size};
  artifact::CacheFile cache;
  cache.spec = spec;
  cache.positions.resize(static_cast<size_t>(tokens));
  std::iota(cache.positions.begin(), cache.positions.end(), 0);
  cache.view =
      kv::DenseHeadMajorView(memory.get(), memory.get() + size / 2, geometry.dtype, geometry.layers,
                             tokens, geometry.kv_heads, geometry.head_dim);
  if (geometry.dtype == tensor::DType::kF8E4M3) {
    for (kv::Plane& plane : cache.view.planes) plane.scales = {1.0f};
  }
  cache.storage = std::move(memory);
  return cache;
}

artifact::CacheFile AnswerFor(const model::ModelSpec& target, const artifact::CacheFile& source) {
  artifact::CacheFile answer = NewCache(target, source.view.tokens);
  answer.positions = source.positions;
  answer.token_ids = source.token_ids;
  return answer;
}

std::string IdOf(const HandoffRequest& request) {
  if (!request.request_id.empty()) return request.request_id;
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(), random());
}

}  // namespace kvbridge::cli
