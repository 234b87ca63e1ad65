// Random calls against a registry and a model of it that is too simple to be wrong.
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/memory/registry_fixture.h"

namespace kvbridge::memory {
namespace {

constexpr uint64_t kQuota = 12 * kRegionBytes;

struct ModelSession {
  std::string tenant;
  absl::Time expires;
};
struct ModelRegion {
  std::string session;
  uint64_t bytes = 0;
};
struct ModelPool {
  std::string session;
  std::string region;
  uint64_t generation = 0;
};
struct ModelPin {
  PoolPin pin;
  std::string region;
};

class RegistryFuzz : public RegistryTest {
 protected:
  RegistryFuzz() : RegistryTest({.max_bytes = kQuota, .max_sessions = 4, .huge_pages = false}) {
    sessions_[session_] = {"ana", clock_.Now() + registry_->lease()};
  }

  size_t Draw(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random_); }
  // A key of the map, or one that never was.
  template <typename Map>
  std::string Any(const Map& map) {
    const size_t at = Draw(map.size() + 1);
    return at == map.size() ? std::string(32, 'x') : std::next(map.begin(), at)->first;
  }
  std::string AnyTenant() { return Draw(2) == 0 ? "ana" : "ben"; }
  bool Owns(const std::string& tenant, const std::string& session) const {
    const auto it = sessions_.find(session);
    return it != sessions_.end() && it->second.tenant == tenant;
  }

  void DropRegion(const std::string& id) {
    for (const auto& pin : pins_) {
      if (pin.region == id) draining_[id] = regions_[id].bytes;
    }
    std::erase_if(pools_, [&id](const auto& pool) { return pool.second.region == id; });
    regions_.erase(id);
  }
  void EndSession(const std::string& id) {
    std::vector<std::string> mine;
    for (const auto& [region, what] : regions_) {
      if (what.session == id) mine.push_back(region);
    }
    for (const std::string& region : mine) DropRegion(region);
    sessions_.erase(id);
  }
  uint64_t Draining() const {
    uint64_t bytes = 0;
    for (const auto& [id, size] : draining_) bytes += size;
    return bytes;
  }
  uint64_t Mapped() const {
    uint64_t bytes = Draining();
    for (const auto& [id, region] : regions_) bytes += region.bytes;
    return bytes;
  }

  void Open() {
    const std::string tenant = AnyTenant();
    const auto id = registry_->OpenSession(tenant);
    ASSERT_EQ(id.ok(), sessions_.size() < 4) << id.status();
    if (id.ok()) sessions_[*id] = {tenant, clock_.Now() + registry_->lease()};
  }
  void Close() {
    const std::string id = Any(sessions_);
    registry_->CloseSession(id);
    EndSession(id);
  }
  void Register() {
    const std::string tenant = AnyTenant(), session = Any(sessions_);
    const uint64_t bytes = (1 + Draw(3)) * kRegionBytes;
    const auto region =
        registry_->RegisterRegion(tenant, session, {.bytes = bytes, .writable = Draw(2) == 0});
    if (!Owns(tenant, session)) {
      ASSERT_EQ(region.status().code(), absl::StatusCode::kNotFound);
    } else if (Mapped() + bytes > kQuota) {
      ASSERT_EQ(region.status().code(), absl::StatusCode::kResourceExhausted);
    } else {
      ASSERT_TRUE(region.ok()) << region.status();
      ASSERT_TRUE(registry_->ClaimFd(session, region->ticket).ok());
      regions_[region->region_id] = {session, bytes};
    }
  }
  void Describe() {
    const std::string tenant = AnyTenant(), session = Any(sessions_), region = Any(regions_);
    const auto pool = registry_->RegisterPool(tenant, session, SmallSpec(region));
    const bool good =
        Owns(tenant, session) && regions_.contains(region) && regions_[region].session == session;
    ASSERT_EQ(pool.status().code(), good ? absl::StatusCode::kOk : absl::StatusCode::kNotFound);
    if (good) pools_[pool->pool_id] = {session, region, pool->generation};
  }
  void Unregister() {
    const bool of_region = Draw(2) == 0;
    const std::string tenant = AnyTenant(), session = Any(sessions_);
    const std::string id = of_region ? Any(regions_) : Any(pools_);
    const auto draining = registry_->Unregister(tenant, session, id);
    const bool good = Owns(tenant, session) &&
                      (of_region ? regions_.contains(id) && regions_[id].session == session
                                 : pools_.contains(id) && pools_[id].session == session);
    ASSERT_EQ(draining.status().code(), good ? absl::StatusCode::kOk : absl::StatusCode::kNotFound);
    if (!good) return;
    if (of_region) {
      DropRegion(id);
      ASSERT_EQ(*draining, draining_.contains(id));
    } else {
      pools_.erase(id);
    }
  }
  void TakePin() {
    const std::string tenant = AnyTenant(), id = Any(pools_);
    const uint64_t wrong = Draw(4) == 0 ? 1 : 0;
    const bool known = pools_.contains(id) && Owns(tenant, pools_[id].session);
    const auto pin = registry_->Pin(tenant, id, (known ? pools_[id].generation : 1) + wrong);
    ASSERT_EQ(pin.status().code(), !known       ? absl::StatusCode::kNotFound
                                   : wrong != 0 ? absl::StatusCode::kFailedPrecondition
                                                : absl::StatusCode::kOk);
    if (pin.ok()) pins_.push_back({*pin, pools_[id].region});
  }
  void DropPin() {
    if (pins_.empty()) return;
    const auto it = pins_.begin() + static_cast<std::ptrdiff_t>(Draw(pins_.size()));
    const std::string region = it->region;
    pins_.erase(it);
    for (const ModelPin& pin : pins_) {
      if (pin.region == region) return;
    }
    draining_.erase(region);
  }
  void Beat() {
    const std::string id = Any(sessions_);
    ASSERT_EQ(registry_->Heartbeat(id).ok(), sessions_.contains(id));
    if (sessions_.contains(id)) sessions_[id].expires = clock_.Now() + registry_->lease();
  }
  void Wait() {
    clock_.Advance(absl::Seconds(static_cast<int>(Draw(12))));
    registry_->Expire();
    std::vector<std::string> ended;
    for (const auto& [id, session] : sessions_) {
      if (session.expires <= clock_.Now()) ended.push_back(id);
    }
    for (const std::string& id : ended) EndSession(id);
  }

  void Step() {
    static constexpr void (RegistryFuzz::*kCalls[])() = {
        &RegistryFuzz::Open,     &RegistryFuzz::Register,   &RegistryFuzz::Register,
        &RegistryFuzz::Describe, &RegistryFuzz::Describe,   &RegistryFuzz::Describe,
        &RegistryFuzz::TakePin,  &RegistryFuzz::TakePin,    &RegistryFuzz::DropPin,
        &RegistryFuzz::Beat,     &RegistryFuzz::Unregister, &RegistryFuzz::Wait,
        &RegistryFuzz::Close};
    // Ends are rarer than beginnings, so that something builds up.
    const size_t call = Draw(std::size(kCalls));
    if (kCalls[call] == &RegistryFuzz::Close && Draw(4) != 0) return;
    (this->*kCalls[call])();
  }

  void Compare() const {
    const MemoryUse use = registry_->use();
    ASSERT_EQ(use.mapped_bytes, Mapped());
    ASSERT_EQ(use.draining_bytes, Draining());
    ASSERT_EQ(use.sessions, std::ssize(sessions_));
    ASSERT_EQ(use.regions, std::ssize(regions_));
    ASSERT_EQ(use.pools, std::ssize(pools_));
    ASSERT_EQ(use.waiting_fds, 0);
  }

  std::mt19937 random_;
  std::map<std::string, ModelSession> sessions_;
  std::map<std::string, ModelRegion> regions_;
  std::map<std::string, ModelPool> pools_;
  std::map<std::string, uint64_t> draining_;
  std::vector<ModelPin> pins_;
};

TEST_F(RegistryFuzz, AnyOrderOfCallsAgreesWithTheModel) {
  const HostState before = HostState::Now();
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    random_.seed(seed);
    for (int step = 0; step < 500; ++step) {
      ASSERT_NO_FATAL_FAILURE(Step()) << "step " << step;
      ASSERT_NO_FATAL_FAILURE(Compare()) << "step " << step;
    }
    ASSERT_EQ(static_cast<size_t>(HostState::Now().region_maps),
              static_cast<size_t>(before.region_maps) + regions_.size() + draining_.size());
  }
  pins_.clear();
  registry_.reset();
  EXPECT_EQ(HostState::Now(), before);
}

}  // namespace
}  // namespace kvbridge::memory
