#include "server/pooled_cache.h"

#include <optional>

#include "absl/strings/str_cat.h"

#include "core/model/compat.h"
#include "core/tensor/dtype.h"

namespace kvbridge::server {
namespace {

using guard::Fallback;
using guard::Reason;
using guard::Refusal;

// What stands between a pool and a claim on it.
std::optional<std::string> Mismatch(const memory::PoolPin& pool, const PooledCache::Claim& claim) {
  if (auto found = model::FindMismatch(claim.model, pool.model(), "model")) {
    return found->ToString();
  }
  const tensor::DType expected = claim.model.geometry.dtype;
  const tensor::DType got = pool.model().geometry.dtype;
  if (got != expected) {
    return absl::StrCat("model.geometry.element_type: expected ", tensor::Name(expected), ", got ",
                        tensor::Name(got));
  }
  if (claim.write && !pool.writable()) return "expected writable regions, got read-only ones";
  return std::nullopt;
}

}  // namespace

std::variant<std::shared_ptr<const PooledCache>, Refusal> PooledCache::Pin(
    const memory::MemoryRegistry* registry, const Claim& claim, PoolPlace place) {
  const std::string field = absl::StrCat(claim.path, ".pool: ");
  if (registry == nullptr) {
    Refusal no = Fallback(Reason::kInvalidRequest,
                          absl::StrCat(field, "this server has no region plane (memory.socket)"));
    no.outcome = guard::Outcome::kUnsupported;
    return no;
  }
  auto pin = registry->Pin(claim.tenant, place.pool_id, place.generation);
  if (!pin.ok()) {
    return Fallback(Reason::kInvalidRequest, absl::StrCat(field, pin.status().message()));
  }
  if (const auto mismatch = Mismatch(*pin, claim)) {
    return Fallback(Reason::kInvalidRequest, absl::StrCat(field, *mismatch));
  }
  std::shared_ptr<PooledCache> cache(
      new PooledCache(field, *std::move(pin), std::move(place.pages)));
  if (absl::Status whole = cache->CheckWhole(); !whole.ok()) {
    return Fallback(Reason::kTransport, whole.message());
  }
  auto view = cache->pin_.View(claim.tokens, cache->pages_);
  if (!view.ok()) {
    return Fallback(Reason::kShapeMismatch, absl::StrCat(field, view.status().message()));
  }
  cache->view_ = *std::move(view);
  return std::shared_ptr<const PooledCache>(std::move(cache));
}

absl::Status PooledCache::CheckWhole() const {
  const absl::Status whole = pin_.CheckWhole();
  return whole.ok() ? whole : absl::DataLossError(absl::StrCat(field_, whole.message()));
}

}  // namespace kvbridge::server
