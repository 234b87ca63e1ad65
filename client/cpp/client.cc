#include "client/cpp/client.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/cpp/answer_sink.h"
#include "client/cpp/channels.h"
#include "client/cpp/chunk_buffers.h"
#include "client/cpp/chunk_source.h"
#include "client/cpp/grpc_status.h"
#include "client/cpp/header.h"
#include "client/cpp/reason_words.h"
#include "client/cpp/region_plane.h"
#include "client/cpp/steady_clock.h"
#include "client/cpp/transfer_call.h"
#include "grpcpp/channel.h"
#include "kvbridge/v1/admin.grpc.pb.h"
#include "kvbridge/v1/transfer.grpc.pb.h"
#include "proto/kvbridge/v1/traceparent.h"

namespace kvbridge::client {
namespace {

// Enough for a few transfers at once; more are allocated and given back.
constexpr size_t kIdleBuffers = 16;

// False when `stop` was requested meanwhile.
bool WaitUnlessStopped(absl::Duration wait, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, stop, absl::ToChronoNanoseconds(wait), [] { return false; });
  return !stop.stop_requested();
}

absl::Duration Jittered(absl::Duration backoff) {
  thread_local std::minstd_rand random{std::random_device{}()};
  return backoff * std::uniform_real_distribution<>(0.5, 1.0)(random);
}

template <typename Response, typename Call>
absl::StatusOr<Response> Unary(absl::Duration timeout, Call call) {
  grpc::ClientContext context;
  context.set_deadline(ToGrpcDeadline(SteadyNow() + timeout));
  Response response;
  if (const grpc::Status status = call(&context, &response); !status.ok()) {
    return FromUncancelled(status);
  }
  return response;
}

}  // namespace

class Client::Impl {
 public:
  Impl(ClientOptions options, std::unique_ptr<Channels> channels)
      : options_(std::move(options)),
        channels_(std::move(channels)),
        buffers_(std::make_shared<ChunkBuffers>(kMaxChunkBytes, kIdleBuffers)),
        regions_(options_.target, options_.staging_bytes),
        circuit_(options_.circuit.failures, options_.circuit.open_for) {}

  absl::StatusOr<TransferResult> Transfer(const TransferOptions& options, const SourceView& source,
                                          const TargetView& target, const std::stop_token& stop) {
    const absl::Time started = SteadyNow();
    auto header = MakeHeader(options, source, target);
    if (!header.ok()) {
      counters_.CountOther("error", SteadyNow() - started);
      return header.status();
    }
    const Job job = {options, source, target, stop, started + options.deadline};
    TransferResult result;
    const absl::Status status = Append(job, *std::move(header), &result);
    if (options.progress != nullptr) options.progress->Close();
    if (absl::IsCancelled(status)) {
      counters_.CountOther("cancelled", SteadyNow() - started);
      return status;
    }
    result.timings.total = SteadyNow() - started;
    counters_.CountResult(result);
    if (!result.applied() && options_.on_fallback == OnFallback::kFail) return ToStatus(result);
    return result;
  }

  absl::StatusOr<v1::PoolLocation> Locate(const TargetView& pages, const std::string& tenant,
                                          absl::Duration timeout) {
    if (pages.pool == nullptr) {
      return absl::InvalidArgumentError("pages.pool: expected a view of a Pool, got none");
    }
    auto found = regions_.Locate(channels_->Next(), tenant, pages, SteadyNow() + timeout);
    if (auto* location = std::get_if<v1::PoolLocation>(&found)) return std::move(*location);
    const auto& why = std::get<PlaneRefusal>(found);
    return absl::FailedPreconditionError(absl::StrCat(why.word, ": ", why.detail));
  }

  template <typename Response, typename Service, typename Method, typename Request>
  absl::StatusOr<Response> Call(Method method, const Request& request, absl::Duration timeout) {
    auto stub = Service::NewStub(channels_->Next());
    return Unary<Response>(timeout, [&](grpc::ClientContext* context, Response* response) {
      return ((*stub).*method)(context, request, response);
    });
  }

  absl::Status WatchEvents(
      const v1::WatchEventsRequest& request,
      const std::function<absl::Status(const v1::WatchEventsResponse&)>& on_event,
      const std::stop_token& stop) {
    grpc::ClientContext context;
    const std::stop_callback cancel(stop, [&context] { context.TryCancel(); });
    const auto stream = v1::KvBridge::NewStub(channels_->Next())->WatchEvents(&context, request);
    v1::WatchEventsResponse response;
    absl::Status refused;
    while (refused.ok() && stream->Read(&response)) {
      refused = on_event(response);
    }
    if (!refused.ok()) context.TryCancel();
    const grpc::Status ended = stream->Finish();
    if (!refused.ok()) return refused;
    return stop.stop_requested() ? absl::OkStatus() : FromUncancelled(ended);
  }

  CountersSnapshot counters() const {
    CountersSnapshot snapshot = counters_.Snapshot();
    snapshot.circuit_state = circuit_.state(Now());
    return snapshot;
  }

 private:
  absl::Time Now() const { return options_.now ? options_.now() : SteadyNow(); }

  // One transfer, as its caller gave it.
  struct Job {
    const TransferOptions& options;
    const SourceView& source;
    const TargetView& target;
    const std::stop_token& stop;
    absl::Time deadline;
  };

  // All below: CANCELLED, or OK with `result` filled in.
  //
  // Maps what comes after a prefix that is there, or everything.
  absl::Status Append(const Job& job, v1::TransferHeader header, TransferResult* result) {
    const int64_t first = FirstNewToken(job.options, header);
    const MappedPrefix* prefix = first > 0 ? job.options.prefix : nullptr;
    if (prefix == nullptr) return Guarded(job, header, result);
    if (first < MostCovered(header)) {
      v1::TransferHeader rest = header;
      rest.set_first_token(first);
      rest.set_artifact_digest(prefix->artifact_digest);
      if (absl::Status status = Guarded(job, rest, result); !status.ok()) return status;
      if (result->reason == "artifact_unavailable") {
        *result = {};
        return Guarded(job, header, result);
      }
      if (result->reason != "not_worth_it") return absl::OkStatus();
      *result = {};  // the route leaves the few new tokens to the target
    }
    result->outcome = v1::OUTCOME_APPLIED;
    result->covered_tokens = result->first_token = first;
    v1::Decision& decision = result->decision;
    decision.set_outcome(v1::OUTCOME_APPLIED);
    decision.set_covered_tokens(first);
    decision.set_artifact_digest(prefix->artifact_digest);
    decision.set_salt(prefix->salt);
    decision.set_hops(prefix->hops);
    decision.set_approximate(true);
    decision.set_route(header.route());
    return absl::OkStatus();
  }

  absl::Status Guarded(const Job& job, const v1::TransferHeader& header, TransferResult* result) {
    if (!circuit_.Admit(Now())) {
      result->reason = std::string(kCircuitOpen);
      result->reason_class = "infra";
      result->detail = absl::StrCat("not asked after ", options_.circuit.failures,
                                    " failures in a row; the last: ", LastFailure());
      return absl::OkStatus();
    }
    const absl::Status status = OnAPlane(job, header, result);
    if (!status.ok() || result->attempts == 0) {
      circuit_.Abandoned();
    } else if (IsInfraFailure(*result)) {
      KeepFailure(absl::StrCat(result->reason, ": ", result->detail));
      circuit_.Failed(Now());
    } else {
      circuit_.Succeeded();
    }
    return status;
  }

  void KeepFailure(std::string what) {
    const std::lock_guard lock(failure_mutex_);
    last_failure_ = std::move(what);
  }

  std::string LastFailure() const {
    const std::lock_guard lock(failure_mutex_);
    return last_failure_;
  }

  // Shared memory where that can be; chunks where it can't, or where it turns out to be lost.
  absl::Status OnAPlane(const Job& job, const v1::TransferHeader& header, TransferResult* result) {
    PlaneRefusal why = {"asked", "the caller chose the inline plane"};
    if (job.options.plane != PlaneChoice::kInline) {
      const bool comes_here = header.peer().empty() && !header.target_selection().has_pool();
      auto open = regions_.Open(channels_->Next(), header, job.source,
                                comes_here ? &job.target : nullptr, job.deadline);
      if (auto* passage = std::get_if<RegionPassage>(&open)) {
        bool accepted = false;
        const absl::Status status = Travel(job, header, passage, result, &accepted);
        const bool lost = status.ok() && !result->applied() && !accepted &&
                          !RegionPlane::StillThere(*passage, job.deadline);
        if (!lost) return status;
        why = {"session_lost", result->detail};
        *result = {};
      } else {
        why = std::get<PlaneRefusal>(std::move(open));
      }
      if (job.options.plane == PlaneChoice::kRegion) {
        SetFallback(absl::DataLossError(absl::StrCat("plane: shared memory was asked for; ",
                                                     why.word, ": ", why.detail)),
                    false, result);
        return absl::OkStatus();
      }
    }
    result->plane_reason = std::move(why.word);
    result->plane_detail = std::move(why.detail);
    bool accepted = false;
    return Travel(job, header, nullptr, result, &accepted);
  }

  // `passage`: of the source, and of the answer where it comes here; null = chunks.
  absl::Status Travel(const Job& job, v1::TransferHeader header, RegionPassage* passage,
                      TransferResult* result, bool* accepted) {
    Locate(job, passage, &header);
    std::optional<AnswerSink> sink;
    CallReport report;
    const absl::Status status = WithRetries(
        job, result,
        [&] {
          if (header.target_selection().has_inline_()) {
            sink.emplace(job.target, header.first_token());
          }
          return RunTransferCall(channels_->Next(),
                                 {.header = header,
                                  .deadline = job.deadline,
                                  .stop = job.stop,
                                  .options = job.options,
                                  .source = passage == nullptr ? &job.source : nullptr,
                                  .sink = sink.has_value() ? &*sink : nullptr,
                                  .buffers = buffers_});
        },
        &report);
    if (!status.ok()) return status;
    *accepted = report.accepted;
    result->plane = passage == nullptr ? v1::PLANE_INLINE : v1::PLANE_REGION;
    result->peer_plane = report.peer_plane;
    if (sink.has_value()) result->bytes_received = sink->bytes();
    if (passage != nullptr && report.decision.has_value()) passage->SetOver();
    CheckAnswer(sink, &report);
    const absl::Status end = Judge(std::move(report), job.stop, header, result);
    const bool applied = end.ok() && result->applied();
    if (!applied && sink.has_value()) sink->ZeroWritten();
    if (applied && passage != nullptr) {
      passage->Deliver(header.first_token(), result->covered_tokens);
    }
    return end;
  }

  // Says in the header where the bytes are; where the answer goes elsewhere, it does already.
  static void Locate(const Job& job, const RegionPassage* passage, v1::TransferHeader* header) {
    v1::KvSelection& source = *header->mutable_source_selection();
    v1::KvSelection& target = *header->mutable_target_selection();
    if (passage != nullptr) {
      header->set_streamed_source(job.options.progress != nullptr && job.source.pool != nullptr);
      passage->Locate(header);
    } else {
      AwaitSource(job, *header);
      source.mutable_inline_();
      StateScales(job.source, &source);
    }
    if (target.has_pool()) {
      target.clear_scales();  // pools have their own
    } else {
      target.mutable_inline_();
      StateScales(job.target, &target);
    }
  }

  static void CheckAnswer(const std::optional<AnswerSink>& sink, CallReport* report) {
    if (!report->status.ok() || report->decision->outcome() != v1::OUTCOME_APPLIED) return;
    const int64_t covered = report->decision->covered_tokens();
    if (sink.has_value()) {
      report->status = sink->CheckComplete(covered);
    } else if (covered != report->covered_tokens) {
      report->status = absl::DataLossError("decision.covered_tokens: not what was accepted");
    }
  }

  // Chunks are sent when all of the source is there.
  static void AwaitSource(const Job& job, const v1::TransferHeader& header) {
    if (job.options.progress == nullptr) return;
    const std::atomic<bool> over{false};
    job.options.progress->Beyond(header.source_selection().tokens() - 1, job.deadline, over);
  }

  // FP8 scales that a pool was described with.
  template <typename Byte>
  static void StateScales(const CacheView<Byte>& view, v1::KvSelection* selection) {
    if (view.pool == nullptr || selection->scales_size() > 0) return;
    const auto& scales = view.pool->layout().scales;
    selection->mutable_scales()->Add(scales.begin(), scales.end());
  }

  // `run` until an attempt counts: what no server has accepted is tried again.
  template <typename Run>
  absl::Status WithRetries(const Job& job, TransferResult* result, Run run, CallReport* report) {
    absl::Duration backoff = options_.retry.initial_backoff;
    for (;;) {
      ++result->attempts;
      *report = run();
      const bool may_repeat =
          absl::IsUnavailable(report->status) && !report->accepted && !report->decision.has_value();
      const absl::Duration wait = Jittered(backoff);
      if (!may_repeat || result->attempts >= options_.retry.max_attempts ||
          SteadyNow() + wait >= job.deadline) {
        return absl::OkStatus();
      }
      if (!WaitUnlessStopped(wait, job.stop))
        return absl::CancelledError("cancelled by the caller");
      backoff = std::min(backoff * 2, options_.retry.max_backoff);
    }
  }

  // Believes the server's decision only when the call ended in order and the answer is whole.
  static absl::Status Judge(CallReport report, const std::stop_token& stop,
                            const v1::TransferHeader& header, TransferResult* result) {
    result->bytes_sent = report.bytes_sent;
    result->timings = report.timings;
    if (auto span = wire::ParseTraceparent(report.traceparent)) {
      result->trace_id = std::move(span->trace_id);
      result->span_id = std::move(span->span_id);
    }
    if (report.decision.has_value()) result->decision = *std::move(report.decision);
    const v1::Decision& decision = result->decision;
    if (report.status.ok() && decision.outcome() == v1::OUTCOME_UNSPECIFIED) {
      report.status = absl::DataLossError("decision.outcome: expected an outcome, got none");
    }
    if (report.status.ok() && decision.outcome() == v1::OUTCOME_APPLIED) {
      result->outcome = v1::OUTCOME_APPLIED;
      result->covered_tokens = decision.covered_tokens();
      result->first_token = header.first_token();
      return absl::OkStatus();
    }
    if (stop.stop_requested()) return absl::CancelledError("cancelled by the caller");
    if (!report.status.ok()) {
      SetFallback(report.status, report.accepted, result);
      return absl::OkStatus();
    }
    result->outcome = decision.outcome();
    result->reason = ReasonWord(decision.reason());
    result->reason_class = ReasonClassWord(decision.reason_class());
    result->detail = decision.detail();
    return absl::OkStatus();
  }

  const ClientOptions options_;
  const std::unique_ptr<Channels> channels_;
  const std::shared_ptr<ChunkBuffers> buffers_;
  RegionPlane regions_;
  Circuit circuit_;
  Counters counters_;
  mutable std::mutex failure_mutex_;
  std::string last_failure_;  // guarded by failure_mutex_
};

absl::StatusOr<std::unique_ptr<Client>> Client::Create(ClientOptions options) {
  if (options.retry.max_attempts < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("retry.max_attempts: expected at least 1, got ", options.retry.max_attempts));
  }
  if (options.circuit.failures < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("circuit.failures: expected at least 1, got ", options.circuit.failures));
  }
  auto channels = Channels::Create({.target = options.target,
                                    .count = options.channels,
                                    .connect_timeout = options.connect_timeout,
                                    .tls = options.tls,
                                    .token = options.token});
  if (!channels.ok()) return channels.status();
  return std::unique_ptr<Client>(
      new Client(std::make_unique<Impl>(std::move(options), *std::move(channels))));
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

absl::StatusOr<TransferResult> Client::Transfer(const TransferOptions& options,
                                                const SourceView& source, const TargetView& target,
                                                std::stop_token stop) {
  return impl_->Transfer(options, source, target, stop);
}

absl::StatusOr<v1::PoolLocation> Client::Locate(const TargetView& pages, const std::string& tenant,
                                                absl::Duration timeout) {
  return impl_->Locate(pages, tenant, timeout);
}

absl::StatusOr<v1::PlanResponse> Client::Plan(const v1::PlanRequest& request,
                                              absl::Duration timeout) {
  return impl_->Call<v1::PlanResponse, v1::KvBridge>(&v1::KvBridge::Stub::Plan, request, timeout);
}

absl::StatusOr<v1::HealthResponse> Client::Health(absl::string_view route, absl::Duration timeout) {
  v1::HealthRequest request;
  request.set_route(std::string(route));
  return impl_->Call<v1::HealthResponse, v1::KvBridge>(&v1::KvBridge::Stub::Health, request,
                                                       timeout);
}

absl::StatusOr<v1::GetCapabilitiesResponse> Client::GetCapabilities(absl::Duration timeout) {
  return impl_->Call<v1::GetCapabilitiesResponse, v1::KvBridge>(
      &v1::KvBridge::Stub::GetCapabilities, v1::GetCapabilitiesRequest(), timeout);
}

absl::StatusOr<v1::ArtifactInfo> Client::LoadArtifact(absl::string_view route,
                                                      absl::string_view path,
                                                      absl::Duration timeout) {
  v1::LoadArtifactRequest request;
  request.set_route(std::string(route));
  request.set_path(std::string(path));
  auto response = impl_->Call<v1::LoadArtifactResponse, v1::Admin>(&v1::Admin::Stub::LoadArtifact,
                                                                   request, timeout);
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_artifact());
}

absl::Status Client::UnloadArtifact(absl::string_view route, absl::Duration timeout) {
  v1::UnloadArtifactRequest request;
  request.set_route(std::string(route));
  return impl_
      ->Call<v1::UnloadArtifactResponse, v1::Admin>(&v1::Admin::Stub::UnloadArtifact, request,
                                                    timeout)
      .status();
}

absl::StatusOr<v1::ListArtifactsResponse> Client::ListArtifacts(absl::Duration timeout) {
  return impl_->Call<v1::ListArtifactsResponse, v1::Admin>(&v1::Admin::Stub::ListArtifacts,
                                                           v1::ListArtifactsRequest(), timeout);
}

absl::StatusOr<v1::SetRouteResponse> Client::SetRoute(const v1::SetRouteRequest& request,
                                                      absl::Duration timeout) {
  return impl_->Call<v1::SetRouteResponse, v1::Admin>(&v1::Admin::Stub::SetRoute, request, timeout);
}

absl::Status Client::WatchEvents(
    absl::string_view route,
    const std::function<absl::Status(const v1::WatchEventsResponse&)>& on_event,
    std::stop_token stop) {
  v1::WatchEventsRequest request;
  request.set_route(std::string(route));
  return impl_->WatchEvents(request, on_event, stop);
}

CountersSnapshot Client::counters() const { return impl_->counters(); }

}  // namespace kvbridge::client
