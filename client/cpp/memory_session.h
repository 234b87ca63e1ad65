// A lease with one server, and what that server has mapped of this process. Heartbeats keep it;
// once it has ended, for whatever reason, it is of no more use and another one is opened.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/cpp/pool.h"
#include "client/cpp/shared_region.h"
#include "kvbridge/v1/memory.grpc.pb.h"

namespace kvbridge::client {

// Thread contract: any thread.
class MemorySession {
 public:
  // `socket`: the server's side socket. Errors are the server's, UNAVAILABLE or DEADLINE_EXCEEDED.
  static absl::StatusOr<std::unique_ptr<MemorySession>> Open(
      const std::shared_ptr<grpc::Channel>& channel, const std::string& tenant, std::string socket,
      absl::Time deadline);
  ~MemorySession();  // the server lets go of everything
  MemorySession(const MemorySession&) = delete;
  MemorySession& operator=(const MemorySession&) = delete;

  // As far as this side knows.
  bool alive() const;

  // Where a pool is in this session; registers it, and the regions it lies in, when it isn't yet.
  // The pool is kept until the session ends or it is forgotten.
  absl::StatusOr<v1::PoolLocation> Locate(const std::shared_ptr<const Pool>& pool,
                                          absl::Time deadline);
  // The server lets go of the pool's regions, and of every pool that lies in them.
  void Forget(const Pool& pool);
  // Asks the server whether it knows the session; one that it does not is dead from now on.
  bool StillKnown(absl::Time deadline);

 private:
  class Stream;
  using RegionPtr = std::shared_ptr<const SharedRegion>;

  MemorySession(const std::shared_ptr<grpc::Channel>& channel, std::string socket);
  absl::StatusOr<std::string> Register(const RegionPtr& region, absl::Time deadline);

  const std::unique_ptr<v1::Memory::Stub> stub_;
  const std::string socket_;
  std::unique_ptr<Stream> stream_;
  std::string id_;
  std::mutex mutex_;  // guards both maps, and is held while something is registered
  std::map<RegionPtr, std::string> regions_;
  std::map<std::shared_ptr<const Pool>, v1::PoolLocation> pools_;
};

}  // namespace kvbridge::client
