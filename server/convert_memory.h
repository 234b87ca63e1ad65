// Between kvbridge.v1.Memory and core/memory; rules as in convert.h.
#pragma once

#include "absl/status/statusor.h"

#include "core/memory/memory_registry.h"
#include "core/memory/pool.h"
#include "kvbridge/v1/config.pb.h"
#include "kvbridge/v1/memory.pb.h"

namespace kvbridge::server {

memory::RegionRequest ToRegionRequest(const v1::RegisterRegionRequest& request);
absl::StatusOr<memory::PoolSpec> ToPoolSpec(const v1::RegisterPoolRequest& request);

// Of a validated configuration, which the result does not keep.
memory::RegistryOptions ToRegistryOptions(const v1::Config& config);

v1::RegisterRegionResponse ToProto(const memory::RegionGrant& grant);
v1::RegisterPoolResponse ToProto(const memory::PoolGrant& grant);
v1::ListResponse ToProto(const memory::MemoryRegistry::Owned& owned);

}  // namespace kvbridge::server
