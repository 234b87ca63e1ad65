#include "client/cpp/memory_session.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "client/cpp/grpc_status.h"
#include "client/cpp/side_socket.h"
#include "client/cpp/steady_clock.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"

namespace kvbridge::client {
namespace {

// Of calls that only tidy up.
constexpr absl::Duration kShort = absl::Seconds(5);

template <typename Response, typename Method, typename Request>
absl::StatusOr<Response> Call(v1::Memory::Stub& stub, Method method, const Request& request,
                              absl::Time deadline) {
  grpc::ClientContext context;
  context.set_deadline(ToGrpcDeadline(deadline));
  Response response;
  if (const grpc::Status status = (stub.*method)(&context, request, &response); !status.ok()) {
    return FromGrpcStatus(status);
  }
  return response;
}

}  // namespace

// The stream that is the lease. gRPC's threads read; one of our own beats.
class MemorySession::Stream final
    : public grpc::ClientBidiReactor<v1::OpenSessionRequest, v1::OpenSessionResponse> {
 public:
  Stream(v1::Memory::Stub& stub, const std::string& tenant) {
    request_.set_tenant(tenant);
    stub.async()->OpenSession(&context_, this);
    AddHold();  // the heart's, which writes from outside of reactions
    StartRead(&response_);
    StartWrite(&request_);
    StartCall();
    heart_ = std::thread([this] { Beat(); });
  }

  // Half-closes: the server releases what it holds, then ends the stream.
  ~Stream() override {
    {
      std::unique_lock lock(mutex_);
      closing_ = true;
      changed_.notify_all();
      if (!changed_.wait_for(lock, absl::ToChronoNanoseconds(kShort), [this] { return done_; })) {
        context_.TryCancel();
        changed_.wait(lock, [this] { return done_; });
      }
    }
    heart_.join();
  }

  bool alive() const {
    const std::lock_guard lock(mutex_);
    return !id_.empty() && !over_;
  }

  absl::StatusOr<std::string> WaitForId(absl::Time deadline) {
    std::unique_lock lock(mutex_);
    const auto known = [this] { return !id_.empty() || over_; };
    if (!changed_.wait_until(lock, ToSteady(deadline), known)) {
      return absl::DeadlineExceededError("OpenSession: no answer");
    }
    if (!id_.empty()) return id_;
    return status_.ok() ? absl::UnavailableError("OpenSession: the server ended the stream")
                        : status_;
  }

  void GiveUp() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      const std::lock_guard lock(mutex_);
      over_ = true;
      changed_.notify_all();
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      id_ = response_.session_id();
      const auto& lease = response_.lease();
      interval_ = std::max(absl::Milliseconds(10),
                           (absl::Seconds(lease.seconds()) + absl::Nanoseconds(lease.nanos())) / 3);
      changed_.notify_all();
    }
    StartRead(&response_);
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    over_ |= !ok;
    changed_.notify_all();
  }

  void OnDone(const grpc::Status& status) override {
    const std::lock_guard lock(mutex_);
    status_ = FromGrpcStatus(status);
    over_ = done_ = true;
    changed_.notify_all();
  }

  void Beat() {
    std::unique_lock lock(mutex_);
    const auto ended = [this] { return over_ || closing_; };
    while (!ended()) {
      changed_.wait(lock, [&] { return (!writing_ && !id_.empty()) || ended(); });
      changed_.wait_for(lock, absl::ToChronoNanoseconds(interval_), ended);
      if (ended() || writing_) continue;
      writing_ = true;
      request_.Clear();
      lock.unlock();
      StartWrite(&request_);
      lock.lock();
    }
    changed_.wait(lock, [this] { return !writing_ || over_; });
    lock.unlock();
    StartWritesDone();
    RemoveHold();
  }

  grpc::ClientContext context_;
  v1::OpenSessionRequest request_;    // the writer's
  v1::OpenSessionResponse response_;  // the reader's
  mutable std::mutex mutex_;          // guards all below
  std::condition_variable changed_;
  std::string id_;
  absl::Duration interval_ = absl::Seconds(1);
  absl::Status status_;
  bool writing_ = true;
  bool closing_ = false;
  bool over_ = false;  // nothing more will come
  bool done_ = false;  // gRPC has let go of this object
  std::thread heart_;
};

MemorySession::MemorySession(const std::shared_ptr<grpc::Channel>& channel, std::string socket)
    : stub_(v1::Memory::NewStub(channel)), socket_(std::move(socket)) {}

MemorySession::~MemorySession() = default;

absl::StatusOr<std::unique_ptr<MemorySession>> MemorySession::Open(
    const std::shared_ptr<grpc::Channel>& channel, const std::string& tenant, std::string socket,
    absl::Time deadline) {
  std::unique_ptr<MemorySession> session(new MemorySession(channel, std::move(socket)));
  session->stream_ = std::make_unique<Stream>(*session->stub_, tenant);
  auto id = session->stream_->WaitForId(deadline);
  if (!id.ok()) {
    session->stream_->GiveUp();
    return id.status();
  }
  session->id_ = *std::move(id);
  return session;
}

bool MemorySession::alive() const { return stream_->alive(); }

absl::StatusOr<std::string> MemorySession::Register(const RegionPtr& region, absl::Time deadline) {
  v1::RegisterRegionRequest request;
  request.set_session_id(id_);
  request.set_bytes(region->bytes().size());
  request.set_writable(region->writable());
  if (region->name().empty()) {
    const absl::Duration left = std::min(kShort, deadline - SteadyNow());
    auto ticket = DepositFd(socket_, id_, region->fd(), left);
    if (!ticket.ok()) return ticket.status();
    request.set_ticket(*std::move(ticket));
  } else {
    request.set_shm_name(region->name());
  }
  auto granted = Call<v1::RegisterRegionResponse>(*stub_, &v1::Memory::Stub::RegisterRegion,
                                                  request, deadline);
  if (!granted.ok()) return granted.status();
  return granted->region_id();
}

absl::StatusOr<v1::PoolLocation> MemorySession::Locate(const std::shared_ptr<const Pool>& pool,
                                                       absl::Time deadline) {
  const std::lock_guard lock(mutex_);
  if (const auto known = pools_.find(pool); known != pools_.end()) return known->second;
  std::vector<std::string> ids;
  for (const RegionPtr& region : pool->regions()) {
    if (!regions_.contains(region)) {
      auto id = Register(region, deadline);
      if (!id.ok()) return id.status();
      regions_[region] = *std::move(id);
    }
    ids.push_back(regions_[region]);
  }
  auto granted = Call<v1::RegisterPoolResponse>(*stub_, &v1::Memory::Stub::RegisterPool,
                                                pool->Request(id_, ids), deadline);
  if (!granted.ok()) return granted.status();
  v1::PoolLocation& location = pools_[pool];
  location.set_pool_id(granted->pool_id());
  location.set_generation(granted->generation());
  return location;
}

void MemorySession::Forget(const Pool& pool) {
  const std::lock_guard lock(mutex_);
  for (const RegionPtr& region : pool.regions()) {
    const auto known = regions_.find(region);
    if (known == regions_.end()) continue;
    v1::UnregisterRequest request;
    request.set_session_id(id_);
    request.set_id(known->second);
    // The end of the session releases it, should this fail.
    (void)Call<v1::UnregisterResponse>(*stub_, &v1::Memory::Stub::Unregister, request,
                                       SteadyNow() + kShort);
    std::erase_if(pools_, [&](const auto& entry) {
      const Pool::Regions& lies_in = entry.first->regions();
      return std::find(lies_in.begin(), lies_in.end(), region) != lies_in.end();
    });
    regions_.erase(region);
  }
}

bool MemorySession::StillKnown(absl::Time deadline) {
  if (!alive()) return false;
  v1::ListRequest request;
  request.set_session_id(id_);
  const absl::Status status = Call<v1::ListResponse>(*stub_, &v1::Memory::Stub::List, request,
                                                     std::min(deadline, SteadyNow() + kShort))
                                  .status();
  if (absl::IsNotFound(status)) stream_->GiveUp();
  return !absl::IsNotFound(status) && !absl::IsUnavailable(status);
}

}  // namespace kvbridge::client
