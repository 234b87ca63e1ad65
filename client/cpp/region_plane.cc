#include "client/cpp/region_plane.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include <unistd.h>

#include "client/cpp/channels.h"
#include "client/cpp/grpc_status.h"
#include "client/cpp/steady_clock.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "kvbridge/v1/transfer.grpc.pb.h"

namespace kvbridge::client {
namespace {

constexpr absl::Duration kRetryAfter = absl::Seconds(5);  // a server that has no regions
constexpr absl::Duration kOpenWithin = absl::Seconds(10);
constexpr size_t kMaxTenants = 16;

PlaneRefusal Refusal(const absl::Status& status) {
  const auto word = [&]() -> std::string {
    switch (status.code()) {
      case absl::StatusCode::kResourceExhausted:
        return "no_room";
      case absl::StatusCode::kUnimplemented:
        return "not_offered";
      case absl::StatusCode::kNotFound:
      case absl::StatusCode::kUnavailable:
      case absl::StatusCode::kDeadlineExceeded:
        return "session_lost";
      case absl::StatusCode::kFailedPrecondition:
        return "other_host";
      default:
        return "refused";
    }
  };
  return {word(), status.ToString()};
}

absl::StatusOr<v1::PoolLocation> LocatePages(MemorySession& session,
                                             const std::shared_ptr<const Pool>& pool,
                                             const std::vector<int32_t>& pages,
                                             absl::Time deadline) {
  auto location = session.Locate(pool, deadline);
  if (location.ok()) location->mutable_pages()->Add(pages.begin(), pages.end());
  return location;
}

}  // namespace

RegionPassage::~RegionPassage() {
  for (std::shared_ptr<const Pool>& pool : taken_) {
    if (!over_) session_->Forget(*pool);
    staging_->Return(std::move(pool), over_);
  }
}

void RegionPassage::Locate(v1::TransferHeader* header) const {
  *header->mutable_source_selection()->mutable_pool() = source_;
  header->mutable_source_selection()->clear_scales();  // pools have their own
  if (target_.has_value()) *header->mutable_target_selection()->mutable_pool() = *target_;
}

void RegionPassage::Deliver(int64_t begin, int64_t end) const {
  if (staged_.planes.empty()) return;
  CacheView<const std::byte> from;
  from.shape = staged_.shape;
  from.planes.assign(staged_.planes.begin(), staged_.planes.end());
  from.token_stride = staged_.token_stride;
  from.head_stride = staged_.head_stride;
  from.pages = staged_.pages;
  from.tokens_per_page = staged_.tokens_per_page;
  from.page_stride = staged_.page_stride;
  CopyTokens(from, *wanted_, begin, end);
}

absl::StatusOr<TargetView> RegionPassage::Stage(const v1::ModelSpec& model,
                                                const v1::KvSelection& selection, int64_t tokens) {
  std::vector<std::shared_ptr<const Pool>> dropped;
  auto pool = staging_->Take(model, selection.scales(), tokens, &dropped);
  for (const auto& old : dropped) session_->Forget(*old);
  if (!pool.ok()) return pool.status();
  taken_.push_back(*pool);
  return (*pool)->Target(StagingPages(**pool, tokens), tokens);
}

RegionPlane::RegionPlane(const std::string& target, size_t staging_bytes)
    : same_host_(IsSameHost(target)), staging_(staging_bytes) {}

std::variant<RegionPassage, PlaneRefusal> RegionPlane::Open(
    const std::shared_ptr<grpc::Channel>& channel, const v1::TransferHeader& header,
    const SourceView& source, const TargetView* target, absl::Time deadline) {
  auto session = Session(channel, header.tenant(), deadline);
  if (auto* no = std::get_if<PlaneRefusal>(&session)) return std::move(*no);
  RegionPassage passage;
  passage.session_ = std::get<std::shared_ptr<MemorySession>>(std::move(session));
  passage.staging_ = &staging_;
  passage.wanted_ = target;
  const int64_t tokens = header.source_selection().tokens();
  const auto locate_staged = [&](const TargetView& staged) {
    auto location = LocatePages(*passage.session_, staged.pool, staged.pages, deadline);
    if (!location.ok()) staging_.Refuse(location.status());
    return location;
  };
  TargetView staged_source;
  if (source.pool == nullptr) {
    auto staged = passage.Stage(header.source(), header.source_selection(), tokens);
    if (!staged.ok()) return Refusal(staged.status());
    staged_source = *std::move(staged);
  }
  if (target != nullptr && target->pool == nullptr) {
    auto staged = passage.Stage(header.target(), header.target_selection(), tokens);
    if (!staged.ok()) return Refusal(staged.status());
    passage.staged_ = *std::move(staged);
  }
  auto from = source.pool == nullptr
                  ? locate_staged(staged_source)
                  : LocatePages(*passage.session_, source.pool, source.pages, deadline);
  if (!from.ok()) return Refusal(from.status());
  passage.source_ = *std::move(from);
  if (target != nullptr) {
    auto to = target->pool == nullptr
                  ? locate_staged(passage.staged_)
                  : LocatePages(*passage.session_, target->pool, target->pages, deadline);
    if (!to.ok()) return Refusal(to.status());
    passage.target_ = *std::move(to);
  }
  if (source.pool == nullptr) CopyTokens(source, staged_source, header.first_token(), tokens);
  return passage;
}

std::variant<v1::PoolLocation, PlaneRefusal> RegionPlane::Locate(
    const std::shared_ptr<grpc::Channel>& channel, const std::string& tenant,
    const TargetView& pages, absl::Time deadline) {
  auto session = Session(channel, tenant, deadline);
  if (auto* no = std::get_if<PlaneRefusal>(&session)) return std::move(*no);
  auto location = LocatePages(*std::get<std::shared_ptr<MemorySession>>(session), pages.pool,
                              pages.pages, deadline);
  if (!location.ok()) return Refusal(location.status());
  return *std::move(location);
}

RegionPlane::SessionOrRefusal RegionPlane::Session(const std::shared_ptr<grpc::Channel>& channel,
                                                   const std::string& name, absl::Time deadline) {
  if (!same_host_) return PlaneRefusal{"other_host", "the server's address is not of this host"};
  const std::lock_guard lock(mutex_);
  if (!tenants_.contains(name) && tenants_.size() >= kMaxTenants) {
    return PlaneRefusal{"no_room",
                        absl::StrCat("shared memory of more than ", kMaxTenants, " tenants")};
  }
  Tenant& tenant = tenants_[name];
  if (tenant.session != nullptr && tenant.session->alive()) return tenant.session;
  tenant.session.reset();
  const absl::Time now = SteadyNow();
  if (now < tenant.retry_at) return tenant.refusal;
  auto opened = OpenSession(channel, name, std::min(deadline, now + kOpenWithin));
  if (auto* no = std::get_if<PlaneRefusal>(&opened)) {
    tenant.refusal = *no;
    tenant.retry_at = now + kRetryAfter;
  } else {
    tenant.session = std::get<std::shared_ptr<MemorySession>>(opened);
  }
  return opened;
}

RegionPlane::SessionOrRefusal RegionPlane::OpenSession(
    const std::shared_ptr<grpc::Channel>& channel, const std::string& tenant, absl::Time deadline) {
  grpc::ClientContext context;
  context.set_deadline(ToGrpcDeadline(deadline));
  v1::GetCapabilitiesResponse server;
  const grpc::Status asked = v1::KvBridge::NewStub(channel)->GetCapabilities(&context, {}, &server);
  if (!asked.ok()) return Refusal(FromGrpcStatus(asked));
  if (server.memory_socket().empty() ||
      std::count(server.planes().begin(), server.planes().end(), v1::PLANE_REGION) == 0) {
    return PlaneRefusal{"not_offered", "the server offers no regions"};
  }
  if (access(server.memory_socket().c_str(), F_OK) != 0) {
    return PlaneRefusal{"other_host",
                        "the server's side socket is not on this host, or not visible here"};
  }
  auto session = MemorySession::Open(channel, tenant, server.memory_socket(), deadline);
  if (!session.ok()) return Refusal(session.status());
  return std::shared_ptr<MemorySession>(*std::move(session));
}

}  // namespace kvbridge::client
