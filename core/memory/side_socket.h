// The unix socket over which descriptors travel between clients and the registry: gRPC carries
// bytes only. docs/wire_format.md pins its packets.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"

#include "core/memory/memory_registry.h"
#include "core/memory/unique_fd.h"

namespace kvbridge::memory {

struct SideSocketOptions {
  std::string path;
  std::vector<uint32_t> allowed_uids;  // besides this process's own
  int32_t max_connections = 64;
};

// One thread serves all connections and waits for none of them. A peer that sends what is no
// request, or does not read its answers, is closed, with every descriptor it sent; when there are
// too many connections, the one that asked longest ago is closed for the new one.
//
// Thread contract: Stop() from one thread at a time.
class SideSocket {
 public:
  // `registry` is borrowed. INVALID_ARGUMENT: the path. FAILED_PRECONDITION: somebody listens there
  // already, or something is there that is no socket. A socket that a dead server left is replaced.
  static absl::StatusOr<std::unique_ptr<SideSocket>> Start(const SideSocketOptions& options,
                                                           MemoryRegistry* registry);
  ~SideSocket() { Stop(); }
  SideSocket(const SideSocket&) = delete;
  SideSocket& operator=(const SideSocket&) = delete;

  // Closes the connections and takes the socket away from the file system. Idempotent.
  void Stop();

 private:
  struct Connection {
    UniqueFd fd;
    uint64_t last_turn = 0;  // of the loop in which it asked something
    bool admitted = false;   // its uid is allowed
  };
  SideSocket(SideSocketOptions options, MemoryRegistry* registry, UniqueFd listener, UniqueFd wake);

  void Run();
  void Accept();
  bool Admit(const UniqueFd& peer) const;
  void DropOldest();
  // False: to be closed.
  bool Serve(Connection& connection);

  const SideSocketOptions options_;
  MemoryRegistry* const registry_;
  const UniqueFd listener_;
  const UniqueFd wake_;
  // Of the loop's thread.
  std::vector<Connection> connections_;
  uint64_t turn_ = 0;
  bool pause_ = false;  // the process has no descriptor left to accept with
  std::thread thread_;
};

}  // namespace kvbridge::memory
