#include "tests/integration/region_client.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include <sys/socket.h>
#include <sys/un.h>

#include "core/memory/fd_packet.h"
#include "gtest/gtest.h"
#include "server/convert.h"

namespace kvbridge::server {
namespace {

constexpr uint64_t kPageBytes = 4096;

void SetPlane(const memory::PoolPlane& plane, v1::PoolPlane* out) {
  out->set_region_id(plane.region_id);
  out->set_base_offset(plane.base_offset);
  out->set_page_stride(plane.page_stride);
  out->set_token_stride(plane.token_stride);
  out->set_head_stride(plane.head_stride);
}

}  // namespace

kv::KvView PagedCache::View(int64_t tokens, const std::vector<int32_t>& pages) const {
  const model::KvGeometry& geometry = spec.model.geometry;
  kv::KvView view{.dtype = geometry.dtype,
                  .layers = geometry.layers,
                  .kv_heads = geometry.kv_heads,
                  .head_dim = geometry.head_dim,
                  .tokens = tokens,
                  .tokens_per_page = spec.tokens_per_page,
                  .pages = pages,
                  .planes = {}};
  for (const memory::PoolPlane& plane : spec.planes) {
    view.planes.push_back({.base = region.bytes().data() + plane.base_offset,
                           .page_stride = plane.page_stride,
                           .token_stride = plane.token_stride,
                           .head_stride = plane.head_stride,
                           .scales = plane.scales});
  }
  return view;
}

void PagedCache::Locate(const std::vector<int32_t>& pages, v1::KvSelection* selection) const {
  v1::PoolLocation& pool = *selection->mutable_pool();
  pool.set_pool_id(pool_id);
  pool.set_generation(generation);
  pool.mutable_pages()->Assign(pages.begin(), pages.end());
}

RegionClient::RegionClient(ServerHarness* harness, std::string tenant)
    : harness_(*harness),
      tenant_(std::move(tenant)),
      stub_(v1::Memory::NewStub(harness->Connect())),
      stream_(stub_->OpenSession(&context_)) {
  EXPECT_TRUE(Heartbeat());
}

RegionClient::~RegionClient() {
  if (stream_ == nullptr) return;
  stream_->WritesDone();
  v1::OpenSessionResponse response;
  while (stream_->Read(&response)) {
  }
  stream_->Finish();
}

bool RegionClient::Heartbeat() {
  v1::OpenSessionRequest request;
  request.set_tenant(tenant_);
  v1::OpenSessionResponse response;
  if (!stream_->Write(request) || !stream_->Read(&response)) return false;
  session_id_ = response.session_id();
  return true;
}

void RegionClient::Drop() {
  context_.TryCancel();
  stream_->Finish();
  stream_.reset();
}

memory::UniqueFd RegionClient::Claim(const std::string& ticket) {
  grpc::ClientContext context;
  v1::GetCapabilitiesResponse capabilities;
  const auto status = v1::KvBridge::NewStub(harness_.Connect())
                          ->GetCapabilities(&context, v1::GetCapabilitiesRequest(), &capabilities);
  EXPECT_TRUE(status.ok()) << status.error_message();
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  capabilities.memory_socket().copy(name.sun_path, sizeof(name.sun_path) - 1);
  const memory::UniqueFd side(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(side.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  const std::string magic("KVBFD\0\0\1", 8);
  EXPECT_TRUE(memory::SendPacket(side, magic + "C" + session_id_ + ticket));
  memory::FdPacket answer;
  EXPECT_EQ(memory::ReceivePacket(side, answer), memory::Received::kPacket);
  EXPECT_EQ(answer.data, std::string(1, '\0'));
  return answer.fds.empty() ? memory::UniqueFd() : std::move(answer.fds[0]);
}

Region RegionClient::Allocate(uint64_t bytes, bool writable) {
  v1::RegisterRegionRequest request;
  request.set_session_id(session_id_);
  request.set_bytes((bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
  request.set_writable(writable);
  Region region;
  if (named_) {
    static std::atomic<int> next = 0;
    region.segment = std::make_unique<memory::ClientShm>(absl::StrCat(memory::ShmPrefix(), next++),
                                                         request.bytes());
    EXPECT_TRUE(region.segment->ok());
    request.set_shm_name(region.segment->name());
  }
  v1::RegisterRegionResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub_->RegisterRegion(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  region.id = response.region_id();
  region.generation = response.generation();
  if (!named_) {
    region.map = std::make_unique<memory::ClientMap>(Claim(response.ticket()), request.bytes());
    EXPECT_TRUE(region.map->ok());
  }
  std::fill(region.bytes().begin(), region.bytes().end(), Region::kStale);
  return region;
}

std::unique_ptr<PagedCache> RegionClient::MakePool(const model::ModelSpec& model,
                                                   const memory::EngineLayout& layout,
                                                   int32_t pages, int32_t tokens_per_page,
                                                   bool writable) {
  const model::KvGeometry& geometry = model.geometry;
  auto cache = std::make_unique<PagedCache>();
  cache->region = Allocate(geometry.token_bytes() * int64_t{pages} * tokens_per_page, writable);
  cache->spec = SpecOf(layout,
                       {.layers = geometry.layers,
                        .pages = pages,
                        .slots = tokens_per_page,
                        .heads = geometry.kv_heads,
                        .dim = geometry.head_dim},
                       cache->region.id);
  cache->spec.model = model;
  v1::RegisterPoolRequest request;
  request.set_session_id(session_id_);
  *request.mutable_model() = ToProto(model);
  request.set_tokens_per_page(tokens_per_page);
  request.set_pages(pages);
  for (size_t i = 0; i < cache->spec.planes.size(); ++i) {
    SetPlane(cache->spec.planes[i], i % 2 == 0 ? request.add_keys() : request.add_values());
  }
  v1::RegisterPoolResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub_->RegisterPool(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  cache->pool_id = response.pool_id();
  cache->generation = response.generation();
  return cache;
}

v1::UnregisterResponse RegionClient::Unregister(const std::string& id) {
  v1::UnregisterRequest request;
  request.set_session_id(session_id_);
  request.set_id(id);
  v1::UnregisterResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub_->Unregister(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

}  // namespace kvbridge::server
