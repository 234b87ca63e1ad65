// A registry on a clock that stands still, and a client of it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/base/units.h"
#include "core/memory/memory_registry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/memory/client_memfd.h"
#include "tests/core/memory/host_state.h"
#include "tests/support/fake_clock.h"

namespace kvbridge::memory {

inline constexpr uint64_t kRegionBytes = 64 * base::kKiB;

class RegistryTest : public ::testing::Test {
 protected:
  explicit RegistryTest(const RegistryOptions& options = {.huge_pages = false}) { Start(options); }

  void Start(const RegistryOptions& options) {
    auto created = MemoryRegistry::Create(options, &clock_);
    ASSERT_TRUE(created.ok()) << created.status();
    registry_ = *std::move(created);
    session_ = *registry_->OpenSession("ana");
  }

  RegionGrant NewRegion(uint64_t bytes = kRegionBytes, bool writable = true) {
    auto grant = registry_->RegisterRegion("ana", session_, {.bytes = bytes, .writable = writable});
    EXPECT_TRUE(grant.ok()) << grant.status();
    return grant.ok() ? *grant : RegionGrant();
  }

  // One layer, two heads of 4 dims in bf16, 4 slots; K and V of a page lie side by side.
  static PoolSpec SmallSpec(const std::string& region_id, int32_t pages = 8) {
    PoolSpec spec;
    spec.model.identity.model_id = "small";
    spec.model.geometry.layers = 1;
    spec.model.geometry.kv_heads = 2;
    spec.model.geometry.head_dim = 4;
    spec.tokens_per_page = 4;
    spec.pages = pages;
    for (const uint64_t base : {0, 64}) {
      spec.planes.push_back({.region_id = region_id,
                             .base_offset = base,
                             .page_stride = 128,
                             .token_stride = 16,
                             .head_stride = 8,
                             .scales = {}});
    }
    return spec;
  }

  PoolGrant NewPool(const std::string& region_id) {
    auto grant = registry_->RegisterPool("ana", session_, SmallSpec(region_id));
    EXPECT_TRUE(grant.ok()) << grant.status();
    return grant.ok() ? *grant : PoolGrant();
  }

  absl::StatusOr<PoolPin> Pin(const PoolGrant& pool) const {
    return registry_->Pin("ana", pool.pool_id, pool.generation);
  }

  test::FakeClock clock_;
  std::unique_ptr<MemoryRegistry> registry_;
  std::string session_;
};

}  // namespace kvbridge::memory
