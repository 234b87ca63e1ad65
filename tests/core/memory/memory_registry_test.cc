#include "core/memory/memory_registry.h"

#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/memory/client_memfd.h"
#include "tests/core/memory/host_state.h"
#include "tests/core/memory/registry_fixture.h"

namespace kvbridge::memory {
namespace {

using absl::StatusCode::kFailedPrecondition;
using absl::StatusCode::kInvalidArgument;
using absl::StatusCode::kNotFound;
using absl::StatusCode::kResourceExhausted;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

using MemoryRegistryTest = RegistryTest;

TEST_F(MemoryRegistryTest, NamesAnOptionThatIsNotPossible) {
  const auto message = [this](const RegistryOptions& options) {
    return std::string(MemoryRegistry::Create(options, &clock_).status().message());
  };
  EXPECT_THAT(message({.max_bytes = 0}), HasSubstr("memory.max_bytes"));
  EXPECT_THAT(message({.max_sessions = 0}), HasSubstr("memory.max_sessions"));
  EXPECT_THAT(message({.max_regions = -1}), HasSubstr("memory.max_regions"));
  EXPECT_THAT(message({.max_pools = 0}), HasSubstr("memory.max_pools"));
  EXPECT_THAT(message({.lease = absl::ZeroDuration()}), HasSubstr("memory.lease"));
  EXPECT_THAT(message({.ticket_life = -absl::Seconds(1)}), HasSubstr("memory.ticket_life"));
}

TEST_F(MemoryRegistryTest, IdsAndTicketsAreUnguessable) {
  const RegionGrant a = NewRegion(), b = NewRegion();
  for (const std::string& id : {session_, a.region_id, a.ticket, NewPool(a.region_id).pool_id}) {
    EXPECT_THAT(id, SizeIs(32));
  }
  EXPECT_NE(a.region_id, b.region_id);
  EXPECT_NE(a.ticket, b.ticket);
  EXPECT_NE(a.generation, b.generation);
}

TEST_F(MemoryRegistryTest, TheClientMapsWhatTheServerAllocatedAndBothSeeIt) {
  const RegionGrant region = NewRegion();
  const auto fd = registry_->ClaimFd(session_, region.ticket);
  ASSERT_TRUE(fd.ok()) << fd.status();
  const ClientMap client(*fd, kRegionBytes);
  ASSERT_TRUE(client.ok());
  const PoolGrant pool = NewPool(region.region_id);
  const int32_t pages[] = {7};
  const auto view = Pin(pool)->View(4, pages);
  ASSERT_TRUE(view.ok()) << view.status();
  *view->Row(0, kv::Component::kValue, 0) = std::byte{42};
  EXPECT_EQ(client.bytes()[7 * 128 + 64], std::byte{42});
}

TEST_F(MemoryRegistryTest, AClientsDescriptorComesByTicket) {
  UniqueFd fd = ClientMemfd(kRegionBytes);
  const auto ticket = registry_->DepositFd(session_, std::move(fd));
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_EQ(registry_->use().waiting_fds, 1);
  const auto region =
      registry_->RegisterRegion("ana", session_, {.bytes = kRegionBytes, .ticket = *ticket});
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ(region->ticket, "");
  EXPECT_EQ(registry_->use().waiting_fds, 0);
  EXPECT_FALSE(Pin(NewPool(region->region_id))->writable());
}

TEST_F(MemoryRegistryTest, ATicketServesOnceInItsSessionAndDirection) {
  const std::string other = *registry_->OpenSession("ana");
  const RegionGrant region = NewRegion();
  EXPECT_EQ(registry_->ClaimFd(other, region.ticket).status().code(), kNotFound);
  EXPECT_EQ(
      registry_->RegisterRegion("ana", session_, {.bytes = kRegionBytes, .ticket = region.ticket})
          .status()
          .code(),
      kNotFound)
      << "a claim's ticket is no deposit's";
  EXPECT_TRUE(registry_->ClaimFd(session_, region.ticket).ok());
  EXPECT_EQ(registry_->ClaimFd(session_, region.ticket).status().code(), kNotFound);

  const std::string ticket = *registry_->DepositFd(session_, ClientMemfd(kRegionBytes));
  EXPECT_EQ(registry_->ClaimFd(session_, ticket).status().code(), kNotFound);
  EXPECT_EQ(
      registry_->RegisterRegion("ana", other, {.bytes = kRegionBytes, .ticket = ticket}).status(),
      absl::NotFoundError("ticket: not found"));
}

TEST_F(MemoryRegistryTest, ATicketThatNoOneUsesExpiresAndItsDescriptorIsClosed) {
  const HostState before = HostState::Now();
  const std::string ticket = *registry_->DepositFd(session_, ClientMemfd(kRegionBytes));
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(registry_->RegisterRegion("ana", session_, {.bytes = kRegionBytes, .ticket = ticket})
                .status()
                .code(),
            kNotFound)
      << "before Expire() has swept";
  registry_->Expire();
  EXPECT_EQ(HostState::Now(), before);
  EXPECT_EQ(registry_->use().waiting_fds, 0);
}

TEST_F(MemoryRegistryTest, WaitingDescriptorsAreBounded) {
  for (int i = 0; i < 16; ++i) {
    ASSERT_TRUE(registry_->DepositFd(session_, ClientMemfd(4096)).ok());
  }
  const HostState before = HostState::Now();
  EXPECT_EQ(registry_->DepositFd(session_, ClientMemfd(4096)).status().code(), kResourceExhausted);
  EXPECT_EQ(registry_->RegisterRegion("ana", session_, {.bytes = kRegionBytes}).status().code(),
            kResourceExhausted)
      << "its descriptor would wait too";
  EXPECT_EQ(HostState::Now(), before);
  EXPECT_EQ(registry_->use().mapped_bytes, 0u);
  EXPECT_TRUE(registry_->DepositFd(*registry_->OpenSession("ben"), ClientMemfd(4096)).ok());
}

TEST_F(MemoryRegistryTest, ASizeThatIsNoSizeIsRefused) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{4097}, ~uint64_t{0}}) {
    EXPECT_EQ(registry_->RegisterRegion("ana", session_, {.bytes = bytes}).status().code(),
              kInvalidArgument)
        << bytes;
  }
}

TEST_F(MemoryRegistryTest, AnotherTenantsIdAnswersLikeAnUnknownOne) {
  const RegionGrant region = NewRegion();
  const PoolGrant pool = NewPool(region.region_id);
  const std::string theirs = *registry_->OpenSession("ben");
  const std::string unknown(32, '0');

  EXPECT_EQ(registry_->Pin("ben", pool.pool_id, pool.generation).status(),
            registry_->Pin("ben", unknown, 1).status());
  EXPECT_EQ(registry_->Pin("ben", pool.pool_id, pool.generation + 1).status(),
            registry_->Pin("ben", unknown, 1).status())
      << "a wrong generation must not tell that the id exists";
  EXPECT_EQ(registry_->Unregister("ben", theirs, region.region_id).status(),
            registry_->Unregister("ben", theirs, unknown).status());
  EXPECT_EQ(registry_->Unregister("ben", session_, region.region_id).status(),
            registry_->Unregister("ben", unknown, region.region_id).status());
  EXPECT_EQ(registry_->List("ben", session_).status(), registry_->List("ben", unknown).status());
  EXPECT_EQ(registry_->RegisterRegion("ben", session_, {.bytes = 4096}).status(),
            registry_->RegisterRegion("ben", unknown, {.bytes = 4096}).status());
  EXPECT_EQ(registry_->RegisterPool("ben", theirs, SmallSpec(region.region_id)).status(),
            registry_->RegisterPool("ben", theirs, SmallSpec(unknown)).status());
  EXPECT_EQ(registry_->use().regions, 1);
}

TEST_F(MemoryRegistryTest, ASessionOwnsItsRegionsAlone) {
  const RegionGrant region = NewRegion();
  const std::string second = *registry_->OpenSession("ana");
  EXPECT_EQ(registry_->Unregister("ana", second, region.region_id).status().code(), kNotFound);
  EXPECT_EQ(registry_->RegisterPool("ana", second, SmallSpec(region.region_id)).status().code(),
            kNotFound);
}

TEST_F(MemoryRegistryTest, AStaleGenerationIsRefused) {
  const PoolGrant pool = NewPool(NewRegion().region_id);
  const absl::Status status = registry_->Pin("ana", pool.pool_id, pool.generation - 1).status();
  EXPECT_EQ(status.code(), kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("generation"));
}

TEST_F(MemoryRegistryTest, ListTellsWhatASessionOwns) {
  const RegionGrant region = NewRegion();
  const PoolGrant pool = NewPool(region.region_id);
  const auto owned = registry_->List("ana", session_);
  ASSERT_TRUE(owned.ok()) << owned.status();
  EXPECT_THAT(owned->region_ids, ElementsAre(region.region_id));
  EXPECT_THAT(owned->pool_ids, ElementsAre(pool.pool_id));
}

// --- quotas

TEST_F(MemoryRegistryTest, QuotasAreCountedBeforeAnythingIsAllocated) {
  Start({.max_bytes = 3 * kRegionBytes,
         .tenant_bytes =
             [](absl::string_view tenant) {
               return tenant == "ana" ? 2 * kRegionBytes : 3 * kRegionBytes;
             },
         .huge_pages = false});
  const std::string theirs = *registry_->OpenSession("ben");
  NewRegion(2 * kRegionBytes);
  const HostState before = HostState::Now();
  const absl::Status own =
      registry_->RegisterRegion("ana", session_, {.bytes = kRegionBytes}).status();
  EXPECT_EQ(own.code(), kResourceExhausted);
  EXPECT_THAT(std::string(own.message()),
              HasSubstr("expected at most 128.0 KiB in all regions of the tenant, got 64.0 KiB on "
                        "top of 128.0 KiB"));
  const absl::Status global =
      registry_->RegisterRegion("ben", theirs, {.bytes = 2 * kRegionBytes}).status();
  EXPECT_EQ(global.code(), kResourceExhausted);
  EXPECT_THAT(std::string(global.message()), Not(HasSubstr("ana")));
  // A size near the end of the number range does not wrap into one that fits.
  EXPECT_EQ(registry_->RegisterRegion("ben", theirs, {.bytes = ~uint64_t{4095}}).status().code(),
            kResourceExhausted);
  EXPECT_EQ(HostState::Now(), before);
  EXPECT_TRUE(registry_->RegisterRegion("ben", theirs, {.bytes = kRegionBytes}).ok());
}

TEST_F(MemoryRegistryTest, CountsAreBounded) {
  Start({.max_sessions = 2, .max_regions = 2, .max_pools = 1, .huge_pages = false});
  ASSERT_TRUE(registry_->OpenSession("ben").ok());
  EXPECT_EQ(registry_->OpenSession("cleo").status().code(), kResourceExhausted);
  const RegionGrant region = NewRegion();
  NewRegion();
  EXPECT_EQ(registry_->RegisterRegion("ana", session_, {.bytes = 4096}).status().code(),
            kResourceExhausted);
  NewPool(region.region_id);
  EXPECT_EQ(registry_->RegisterPool("ana", session_, SmallSpec(region.region_id)).status().code(),
            kResourceExhausted);
}

TEST_F(MemoryRegistryTest, DrainingBytesStayCharged) {
  Start({.max_bytes = kRegionBytes, .huge_pages = false});
  const RegionGrant region = NewRegion();
  auto pin = Pin(NewPool(region.region_id));
  ASSERT_TRUE(registry_->Unregister("ana", session_, region.region_id).ok());
  EXPECT_EQ(registry_->RegisterRegion("ana", session_, {.bytes = 4096}).status().code(),
            kResourceExhausted);
  pin = absl::CancelledError();
  EXPECT_TRUE(registry_->RegisterRegion("ana", session_, {.bytes = 4096}).ok());
}

// --- the defects of the best-known shared-memory servers, those that core can have

TEST_F(MemoryRegistryTest, UnregisterDuringUseKeepsTheMemoryForWhoUsesIt) {
  const RegionGrant region = NewRegion();
  const PoolGrant pool = NewPool(region.region_id);
  const auto pin = Pin(pool);
  ASSERT_TRUE(pin.ok());
  EXPECT_TRUE(*registry_->Unregister("ana", session_, region.region_id));
  const int32_t pages[] = {0, 1};
  const auto view = pin->View(8, pages);
  ASSERT_TRUE(view.ok());
  float rows[64];
  kv::ReadRows(*view, 0, kv::Component::kKey, {0, 8}, rows);
  EXPECT_EQ(rows[0], 0);
  EXPECT_EQ(registry_->Pin("ana", pool.pool_id, pool.generation).status().code(), kNotFound)
      << "a draining pool can't be pinned again";
}

TEST_F(MemoryRegistryTest, ReleasedIsNeverAnsweredWhileMapped) {
  const HostState before = HostState::Now();
  const RegionGrant region = NewRegion();
  registry_->ClaimFd(session_, region.ticket).IgnoreError();
  auto pin = Pin(NewPool(region.region_id));
  auto copy = pin;
  EXPECT_TRUE(*registry_->Unregister("ana", session_, region.region_id)) << "draining";
  EXPECT_EQ(registry_->use().draining_bytes, kRegionBytes);
  pin = absl::CancelledError();
  EXPECT_EQ(registry_->use().draining_bytes, kRegionBytes) << "a copy still holds it";
  EXPECT_EQ(HostState::Now().region_maps, before.region_maps + 1);
  copy = absl::CancelledError();
  EXPECT_EQ(HostState::Now(), before);
  EXPECT_EQ(registry_->use().draining_bytes, 0u);
  EXPECT_EQ(registry_->use().mapped_bytes, 0u);

  const RegionGrant idle = NewRegion();
  EXPECT_FALSE(*registry_->Unregister("ana", session_, idle.region_id)) << "released at once";
  EXPECT_EQ(HostState::Now().region_maps, before.region_maps);
}

TEST_F(MemoryRegistryTest, APoolInUseDrainsWhileItsRegionStays) {
  const RegionGrant region = NewRegion();
  const PoolGrant pool = NewPool(region.region_id);
  auto pin = Pin(pool);
  EXPECT_TRUE(*registry_->Unregister("ana", session_, pool.pool_id));
  EXPECT_EQ(registry_->use().draining_bytes, 0u);
  const PoolGrant again = NewPool(region.region_id);
  EXPECT_FALSE(*registry_->Unregister("ana", session_, again.pool_id));
  pin = absl::CancelledError();
  EXPECT_EQ(registry_->use().mapped_bytes, kRegionBytes);
}

TEST_F(MemoryRegistryTest, ARegionTakesItsPoolsWithIt) {
  const RegionGrant region = NewRegion(), other = NewRegion();
  const PoolGrant pool = NewPool(region.region_id), kept = NewPool(other.region_id);
  PoolSpec both = SmallSpec(region.region_id);
  both.planes[1].region_id = other.region_id;
  ASSERT_TRUE(registry_->RegisterPool("ana", session_, both).ok());
  EXPECT_FALSE(*registry_->Unregister("ana", session_, region.region_id));
  EXPECT_EQ(Pin(pool).status().code(), kNotFound);
  EXPECT_THAT(registry_->List("ana", session_)->pool_ids, ElementsAre(kept.pool_id));
}

TEST_F(MemoryRegistryTest, AFailedRegistrationLeaksNoDescriptorAndNoMapping) {
  const HostState before = HostState::Now();
  const auto deposit = [this](UniqueFd fd) {
    return *registry_->DepositFd(session_, std::move(fd));
  };
  // Too small, unsealed, and one that is fine by itself but asked to be on a node.
  for (const RegionRequest& request :
       {RegionRequest{.bytes = 2 * kRegionBytes, .ticket = deposit(ClientMemfd(kRegionBytes))},
        RegionRequest{.bytes = kRegionBytes, .ticket = deposit(ClientMemfd(kRegionBytes, 0))},
        RegionRequest{.bytes = kRegionBytes, .numa_node = 1000}}) {
    EXPECT_EQ(registry_->RegisterRegion("ana", session_, request).status().code(),
              kInvalidArgument);
  }
  EXPECT_EQ(HostState::Now(), before);
  EXPECT_EQ(registry_->use().mapped_bytes, 0u);
  EXPECT_EQ(registry_->use().waiting_fds, 0);
}

TEST_F(MemoryRegistryTest, AnObjectThatCouldBeTruncatedAfterRegistrationIsRefused) {
  const std::string ticket = *registry_->DepositFd(session_, ClientMemfd(kRegionBytes, 0));
  const absl::Status status =
      registry_->RegisterRegion("ana", session_, {.bytes = kRegionBytes, .ticket = ticket})
          .status();
  EXPECT_EQ(status.code(), kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("F_SEAL_SHRINK"));
}

TEST_F(MemoryRegistryTest, ErrorTextsTellNoIdNoPathAndNoTenant) {
  const RegionGrant region = NewRegion();
  const PoolGrant pool = NewPool(region.region_id);
  const std::string theirs = *registry_->OpenSession("ben");
  PoolSpec outside = SmallSpec(region.region_id);
  outside.planes[0].base_offset = 2 * kRegionBytes;
  for (const absl::Status& status :
       {registry_->Pin("ben", pool.pool_id, 1).status(),
        registry_->Pin("ana", pool.pool_id, 0).status(),
        registry_->Unregister("ben", theirs, region.region_id).status(),
        registry_->RegisterPool("ana", session_, outside).status(),
        registry_->RegisterPool("ben", theirs, outside).status(),
        registry_->ClaimFd(theirs, region.ticket).status(),
        registry_->RegisterRegion("ana", session_, {.bytes = uint64_t{1} << 50}).status()}) {
    EXPECT_FALSE(status.ok());
    for (const std::string& secret :
         {region.region_id, pool.pool_id, session_, region.ticket, std::string("ana"),
          std::string("memfd:"), std::string("/proc"), std::string("0x")}) {
      EXPECT_THAT(std::string(status.message()), Not(HasSubstr(secret)));
    }
  }
}

TEST_F(MemoryRegistryTest, WhatIsRegisteredWhileAnotherDrainsIsNotItsMemory) {
  const RegionGrant old = NewRegion();
  const PoolGrant old_pool = NewPool(old.region_id);
  const auto pin = Pin(old_pool);
  ASSERT_TRUE(*registry_->Unregister("ana", session_, old.region_id));
  const RegionGrant fresh = NewRegion();
  const PoolGrant fresh_pool = NewPool(fresh.region_id);
  EXPECT_NE(fresh.region_id, old.region_id);
  EXPECT_NE(fresh.generation, old.generation);
  EXPECT_NE(fresh_pool.generation, old_pool.generation);
  EXPECT_EQ(registry_->Unregister("ana", session_, old.region_id).status().code(), kNotFound);
  const int32_t pages[] = {0};
  *Pin(fresh_pool)->View(1, pages)->Row(0, kv::Component::kKey, 0) = std::byte{1};
  EXPECT_EQ(*pin->View(1, pages)->Row(0, kv::Component::kKey, 0), std::byte{0});
}

TEST_F(MemoryRegistryTest, ALeaseThatRanOutFreesWithoutOtherTraffic) {
  const HostState before = HostState::Now();
  const RegionGrant region = NewRegion();
  NewPool(region.region_id);
  ASSERT_TRUE(registry_->DepositFd(session_, ClientMemfd(4096)).ok());
  clock_.Advance(absl::Seconds(30));
  registry_->Expire();
  EXPECT_EQ(HostState::Now(), before);
  const MemoryUse use = registry_->use();
  EXPECT_EQ(use.mapped_bytes, 0u);
  EXPECT_EQ(use.sessions + use.regions + use.pools + use.waiting_fds, 0);
}

// --- leases

TEST_F(MemoryRegistryTest, AHeartbeatExtendsTheLease) {
  const PoolGrant pool = NewPool(NewRegion().region_id);
  for (int i = 0; i < 5; ++i) {
    clock_.Advance(absl::Seconds(29));
    registry_->Expire();
    ASSERT_TRUE(registry_->Heartbeat(session_).ok());
  }
  EXPECT_TRUE(Pin(pool).ok());
}

TEST_F(MemoryRegistryTest, ASessionWhoseLeaseRanOutDoesNotComeBack) {
  const PoolGrant pool = NewPool(NewRegion().region_id);
  clock_.Advance(absl::Seconds(30));
  EXPECT_EQ(registry_->Heartbeat(session_).code(), kNotFound) << "before Expire() has swept";
  EXPECT_EQ(Pin(pool).status().code(), kNotFound);
  EXPECT_EQ(registry_->RegisterRegion("ana", session_, {.bytes = 4096}).status().code(), kNotFound);
  EXPECT_EQ(registry_->DepositFd(session_, ClientMemfd(4096)).status().code(), kNotFound);
}

TEST_F(MemoryRegistryTest, ClosingASessionReleasesAllButWhatIsPinned) {
  const HostState before = HostState::Now();
  const RegionGrant used = NewRegion();
  NewRegion();
  auto pin = Pin(NewPool(used.region_id));
  registry_->CloseSession(session_);
  EXPECT_EQ(registry_->use().mapped_bytes, kRegionBytes);
  EXPECT_EQ(registry_->use().draining_bytes, kRegionBytes);
  pin = absl::CancelledError();
  EXPECT_EQ(registry_->use().mapped_bytes, 0u);
  EXPECT_EQ(HostState::Now(), before);
  registry_->CloseSession(session_);
}

TEST_F(MemoryRegistryTest, APinOutlivesTheRegistry) {
  const HostState before = HostState::Now();
  auto pin = Pin(NewPool(NewRegion().region_id));
  ASSERT_TRUE(pin.ok());
  registry_.reset();
  const int32_t pages[] = {0};
  EXPECT_EQ(*pin->View(1, pages)->Row(0, kv::Component::kKey, 0), std::byte{0});
  pin = absl::CancelledError();
  EXPECT_EQ(HostState::Now(), before);
}

long ResidentKib() {
  std::ifstream statm("/proc/self/statm");
  long pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE) / 1024;
}

TEST_F(MemoryRegistryTest, TenThousandCyclesLeaveDescriptorsMapsAndMemoryAsTheyWere) {
  const auto cycle = [this](int i) {
    RegionRequest request{.bytes = kRegionBytes, .writable = i % 3 == 0};
    if (i % 2 == 0) request.ticket = *registry_->DepositFd(session_, ClientMemfd(kRegionBytes));
    const auto region = registry_->RegisterRegion("ana", session_, request);
    ASSERT_TRUE(region.ok()) << region.status();
    if (!region->ticket.empty()) {
      ASSERT_TRUE(registry_->ClaimFd(session_, region->ticket).ok());
    }
    const auto pool = registry_->RegisterPool("ana", session_, SmallSpec(region->region_id));
    ASSERT_TRUE(pool.ok()) << pool.status();
    auto pin = Pin(*pool);
    ASSERT_TRUE(pin.ok());
    ASSERT_TRUE(*registry_->Unregister("ana", session_, region->region_id));
  };
  for (int i = 0; i < 100; ++i) cycle(i);  // what the allocator keeps
  const HostState before = HostState::Now();
  const long resident = ResidentKib();
  for (int i = 0; i < 10'000; ++i) cycle(i);
  EXPECT_EQ(HostState::Now(), before);
  EXPECT_EQ(registry_->use().mapped_bytes, 0u);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep freed memory
  EXPECT_LT(ResidentKib() - resident, 8 * 1024);
#else
  EXPECT_GT(resident, 0);
#endif
}

TEST_F(MemoryRegistryTest, RegistrationsPinsAndEndsFromManyThreadsLeaveNothing) {
  const HostState before = HostState::Now();
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([this] {
        for (int i = 0; i < 50; ++i) {
          const std::string session = *registry_->OpenSession("ana");
          const auto region = registry_->RegisterRegion("ana", session, {.bytes = kRegionBytes});
          ASSERT_TRUE(region.ok()) << region.status();
          const auto pool = registry_->RegisterPool("ana", session, SmallSpec(region->region_id));
          ASSERT_TRUE(pool.ok()) << pool.status();
          std::jthread user([this, pool] {
            const auto pin = registry_->Pin("ana", pool->pool_id, pool->generation);
            if (!pin.ok()) return;
            const int32_t pages[] = {0};
            float row[8];
            kv::ReadRows(*pin->View(1, pages), 0, kv::Component::kKey, {0, 1}, row);
          });
          registry_->Expire();
          if (i % 2 == 0) {
            ASSERT_TRUE(registry_->Unregister("ana", session, region->region_id).ok());
          }
          registry_->CloseSession(session);
        }
      });
    }
  }
  EXPECT_EQ(HostState::Now(), before);
  EXPECT_EQ(registry_->use().mapped_bytes, 0u);
}

}  // namespace
}  // namespace kvbridge::memory
