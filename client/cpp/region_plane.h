// Shared memory as the way of a transfer's bytes: page tables travel, bytes stay where they lie or
// are copied once each way. Where that can't be it says why, and the caller sends chunks.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"

#include "client/cpp/cache_view.h"
#include "client/cpp/memory_session.h"
#include "client/cpp/staging.h"
#include "kvbridge/v1/transfer.pb.h"

namespace kvbridge::client {

// Why a transfer does not go through shared memory.
struct PlaneRefusal {
  std::string word;    // of a closed list: docs/metrics.md
  std::string detail;  // one sentence for a person
};

// One transfer's way through shared memory. Closed when destroyed.
class RegionPassage {
 public:
  RegionPassage(RegionPassage&&) = default;
  RegionPassage& operator=(RegionPassage&&) = delete;
  ~RegionPassage();

  // Says in the header where the bytes are.
  void Locate(v1::TransferHeader* header) const;
  // After an applied transfer: brings tokens [begin, end) to where the caller wants them.
  void Deliver(int64_t begin, int64_t end) const;
  // The server has ended the call in order: it reads and writes no more.
  void SetOver() { over_ = true; }

 private:
  friend class RegionPlane;
  RegionPassage() = default;
  absl::StatusOr<TargetView> Stage(const v1::ModelSpec& model, const v1::KvSelection& selection,
                                   int64_t tokens);

  std::shared_ptr<MemorySession> session_;
  Staging* staging_ = nullptr;
  std::vector<std::shared_ptr<const Pool>> taken_;
  v1::PoolLocation source_;
  std::optional<v1::PoolLocation> target_;  // none: the answer takes another way
  TargetView staged_;                       // no planes: the answer lies where the caller wants it
  const TargetView* wanted_ = nullptr;
  bool over_ = false;
};

// Thread contract: any thread.
class RegionPlane {
 public:
  // `target`: of the client; another host's has no shared memory.
  RegionPlane(const std::string& target, size_t staging_bytes);

  // Opens a session where there is none, and copies what does not lie in a pool, but for tokens
  // before header.first_token. `target`: null where the answer takes another way. Both views are
  // borrowed until the passage is closed.
  std::variant<RegionPassage, PlaneRefusal> Open(const std::shared_ptr<grpc::Channel>& channel,
                                                 const v1::TransferHeader& header,
                                                 const SourceView& source, const TargetView* target,
                                                 absl::Time deadline);
  // Of a pool's pages, for transfers of others.
  std::variant<v1::PoolLocation, PlaneRefusal> Locate(const std::shared_ptr<grpc::Channel>& channel,
                                                      const std::string& tenant,
                                                      const TargetView& pages, absl::Time deadline);
  // Whether the server still knows the passage's session.
  static bool StillThere(const RegionPassage& passage, absl::Time deadline) {
    return passage.session_->StillKnown(deadline);
  }

 private:
  struct Tenant {
    std::shared_ptr<MemorySession> session;
    PlaneRefusal refusal;  // of the last attempt to open one
    absl::Time retry_at = absl::InfinitePast();
  };
  using SessionOrRefusal = std::variant<std::shared_ptr<MemorySession>, PlaneRefusal>;

  SessionOrRefusal Session(const std::shared_ptr<grpc::Channel>& channel, const std::string& tenant,
                           absl::Time deadline);
  static SessionOrRefusal OpenSession(const std::shared_ptr<grpc::Channel>& channel,
                                      const std::string& tenant, absl::Time deadline);

  const bool same_host_;
  Staging staging_;
  std::mutex mutex_;  // guards tenants_, and is held while a session is opened
  std::map<std::string, Tenant> tenants_;
};

}  // namespace kvbridge::client
