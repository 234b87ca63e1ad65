// A client that keeps its caches in shared memory: a session, regions and pools, spoken through
// generated code and the side socket.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/kv/kv_view.h"
#include "core/model/model_spec.h"
#include "grpcpp/client_context.h"
#include "kvbridge/v1/memory.grpc.pb.h"
#include "kvbridge/v1/types.pb.h"
#include "tests/core/memory/client_memfd.h"
#include "tests/core/memory/client_shm.h"
#include "tests/core/memory/engine_layouts.h"
#include "tests/integration/server_harness.h"

namespace kvbridge::server {

// A region that the server allocated, or a named segment of this client's, mapped here; all bytes
// are kStale.
struct Region {
  static constexpr auto kStale = std::byte{0xEE};
  std::string id;
  uint64_t generation = 0;
  std::unique_ptr<memory::ClientShm> segment;
  std::unique_ptr<memory::ClientMap> map;  // null: the segment's

  std::span<std::byte> bytes() const { return map == nullptr ? segment->bytes() : map->bytes(); }
};

// A paged cache in a region of its own.
struct PagedCache {
  Region region;
  std::string pool_id;
  uint64_t generation = 0;
  memory::PoolSpec spec;

  // Tokens in these pages. Borrows `pages`.
  kv::KvView View(int64_t tokens, const std::vector<int32_t>& pages) const;
  void Locate(const std::vector<int32_t>& pages, v1::KvSelection* selection) const;
};

class RegionClient {
 public:
  explicit RegionClient(ServerHarness* harness, std::string tenant = "");
  ~RegionClient();  // half-closes, and waits for the stream's end

  // From now on regions are named segments.
  void NameRegions() { named_ = true; }

  const std::string& session_id() const { return session_id_; }
  v1::Memory::Stub& stub() { return *stub_; }

  // Both fail the test when they can't.
  Region Allocate(uint64_t bytes, bool writable);
  std::unique_ptr<PagedCache> MakePool(const model::ModelSpec& model,
                                       const memory::EngineLayout& layout, int32_t pages,
                                       int32_t tokens_per_page, bool writable);

  // Sends one and reads the terms; false when the session has ended.
  bool Heartbeat();
  v1::UnregisterResponse Unregister(const std::string& id);
  // As if the process were killed.
  void Drop();

 private:
  memory::UniqueFd Claim(const std::string& ticket);

  ServerHarness& harness_;
  const std::string tenant_;
  bool named_ = false;
  const std::unique_ptr<v1::Memory::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::OpenSessionRequest, v1::OpenSessionResponse>>
      stream_;
  std::string session_id_;
};

}  // namespace kvbridge::server
