#include "server/convert_memory.h"

#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include <unistd.h>

#include "core/base/status_macros.h"
#include "server/convert.h"

namespace kvbridge::server {
namespace {

memory::PoolPlane ToPlane(const v1::PoolPlane& plane) {
  return {.region_id = plane.region_id(),
          .base_offset = plane.base_offset(),
          .page_stride = plane.page_stride(),
          .token_stride = plane.token_stride(),
          .head_stride = plane.head_stride(),
          .scales = {plane.scales().begin(), plane.scales().end()}};
}

}  // namespace

memory::RegionRequest ToRegionRequest(const v1::RegisterRegionRequest& request) {
  memory::RegionRequest out{.bytes = request.bytes(),
                            .ticket = request.ticket(),
                            .shm_name = request.shm_name(),
                            .writable = request.writable()};
  if (request.has_numa_node()) out.numa_node = request.numa_node();
  return out;
}

absl::StatusOr<memory::PoolSpec> ToPoolSpec(const v1::RegisterPoolRequest& request) {
  memory::PoolSpec spec;
  KVB_ASSIGN_OR_RETURN(spec.model, ToModelSpec(request.model(), "model"));
  spec.tokens_per_page = request.tokens_per_page();
  spec.pages = request.pages();
  const int32_t layers = spec.model.geometry.layers;
  for (const auto& [name, planes] :
       {std::pair("keys", &request.keys()), std::pair("values", &request.values())}) {
    if (planes->size() == layers) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": expected ", layers, ", one per layer, got ", planes->size()));
  }
  for (int32_t layer = 0; layer < layers; ++layer) {
    spec.planes.push_back(ToPlane(request.keys(layer)));
    spec.planes.push_back(ToPlane(request.values(layer)));
  }
  return spec;
}

memory::RegistryOptions ToRegistryOptions(const v1::Config& config) {
  const v1::MemoryConfig& memory = config.memory();
  memory::RegistryOptions options;
  options.max_bytes = static_cast<uint64_t>(memory.max_bytes());
  options.max_sessions = memory.max_sessions();
  options.lease = ToDuration(memory.lease());
  options.ticket_life = ToDuration(memory.ticket_life());
  options.huge_pages = memory.huge_pages();
  for (const v1::NamedShmConfig& shm : memory.named_shm()) {
    options.named_shm.push_back({.tenant = shm.tenant(),
                                 .prefix = shm.prefix(),
                                 .uid = shm.has_uid() ? shm.uid() : geteuid()});
  }
  const auto or_all = [](int64_t bytes, int64_t all) {
    return static_cast<uint64_t>(bytes == 0 ? all : bytes);
  };
  const uint64_t others = or_all(memory.max_tenant_bytes(), memory.max_bytes());
  std::map<std::string, uint64_t, std::less<>> own;
  for (const v1::TenantConfig& tenant : config.tenants()) {
    own[tenant.name()] = or_all(tenant.max_memory_bytes(), static_cast<int64_t>(others));
  }
  options.tenant_bytes = [others, own = std::move(own)](absl::string_view tenant) {
    const auto it = own.find(std::string_view(tenant.data(), tenant.size()));
    return it == own.end() ? others : it->second;
  };
  return options;
}

v1::RegisterRegionResponse ToProto(const memory::RegionGrant& grant) {
  v1::RegisterRegionResponse out;
  out.set_region_id(grant.region_id);
  out.set_generation(grant.generation);
  out.set_ticket(grant.ticket);
  return out;
}

v1::RegisterPoolResponse ToProto(const memory::PoolGrant& grant) {
  v1::RegisterPoolResponse out;
  out.set_pool_id(grant.pool_id);
  out.set_generation(grant.generation);
  return out;
}

v1::ListResponse ToProto(const memory::MemoryRegistry::Owned& owned) {
  v1::ListResponse out;
  out.mutable_region_ids()->Assign(owned.region_ids.begin(), owned.region_ids.end());
  out.mutable_pool_ids()->Assign(owned.pool_ids.begin(), owned.pool_ids.end());
  return out;
}

}  // namespace kvbridge::server
