#include "client/cpp/client.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "client/cpp/answer_sink.h"
#include "client/cpp/channels.h"
#include "client/cpp/chunk_buffers.h"
#include "client/cpp/chunk_source.h"
#include "client/cpp/grpc_status.h"
#include "client/cpp/reason_words.h"
#include "client/cpp/transfer_call.h"
#include "grpcpp/channel.h"
#include "kvbridge/v1/admin.grpc.pb.h"
#include "kvbridge/v1/transfer.grpc.pb.h"

namespace kvbridge::client {
namespace {

// Enough for a few transfers at once; more are allocated and given back.
constexpr size_t kIdleBuffers = 16;

// The view's geometry as the wire says it, or an error where the caller's spec says another.
template <typename Byte>
absl::Status StateGeometry(const CacheView<Byte>& view, absl::string_view field,
                           v1::ModelSpec* spec) {
  v1::KvGeometry& geometry = *spec->mutable_geometry();
  const auto agree = [&](absl::string_view name, int64_t stated, int64_t seen) -> absl::Status {
    if (stated == 0 || stated == seen) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "header.", field, ".geometry.", name, ": expected ", seen, " (the view's), got ", stated));
  };
  const CacheShape& shape = view.shape;
  for (const absl::Status& status :
       {agree("layers", geometry.layers(), shape.layers),
        agree("kv_heads", geometry.kv_heads(), shape.kv_heads),
        agree("head_dim", geometry.head_dim(), shape.head_dim),
        agree("element_type", geometry.element_type(), shape.element_type)}) {
    if (!status.ok()) return status;
  }
  geometry.set_layers(shape.layers);
  geometry.set_kv_heads(shape.kv_heads);
  geometry.set_head_dim(shape.head_dim);
  geometry.set_element_type(shape.element_type);
  return absl::OkStatus();
}

absl::StatusOr<v1::TransferHeader> MakeHeader(const TransferOptions& options,
                                              const SourceView& source, const TargetView& target) {
  if (absl::Status status = Validate(source, "source"); !status.ok()) return status;
  if (absl::Status status = Validate(target, "target"); !status.ok()) return status;
  if (source.row_bytes() > kMaxChunkBytes) {
    return absl::InvalidArgumentError(absl::StrCat("source: expected at most ", kMaxChunkBytes,
                                                   " bytes per token and layer, got ",
                                                   source.row_bytes()));
  }
  v1::TransferHeader header = options.header;
  if (absl::Status status = StateGeometry(source, "source", header.mutable_source());
      !status.ok()) {
    return status;
  }
  if (absl::Status status = StateGeometry(target, "target", header.mutable_target());
      !status.ok()) {
    return status;
  }
  v1::KvSelection& selection = *header.mutable_source_selection();
  if (selection.tokens() == 0) selection.set_tokens(source.shape.tokens);
  if (selection.tokens() < 0 || selection.tokens() > source.shape.tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("header.source_selection.tokens: expected 1 to ", source.shape.tokens,
                     " (source.shape.tokens), got ", selection.tokens()));
  }
  if (selection.key_state() == v1::KEY_STATE_UNSPECIFIED) {
    selection.set_key_state(v1::KEY_STATE_ROPED);
  }
  selection.mutable_inline_();
  header.mutable_target_selection()->mutable_inline_();
  v1::TransferLimits& limits = *header.mutable_limits();
  if (target.shape.tokens < selection.tokens() &&
      (limits.max_covered_tokens() == 0 || limits.max_covered_tokens() > target.shape.tokens)) {
    limits.set_max_covered_tokens(target.shape.tokens);
  }
  return header;
}

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
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  Response response;
  if (const grpc::Status status = call(&context, &response); !status.ok()) {
    return FromGrpcStatus(status);
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
        circuit_(options_.circuit.failures, options_.circuit.open_for) {}

  absl::StatusOr<TransferResult> Transfer(const TransferOptions& options, const SourceView& source,
                                          const TargetView& target, const std::stop_token& stop) {
    const absl::Time started = absl::Now();
    auto header = MakeHeader(options, source, target);
    if (!header.ok()) {
      counters_.CountOther("error", absl::Now() - started);
      return header.status();
    }
    TransferResult result;
    if (!circuit_.Admit(Now())) {
      result.reason = std::string(kCircuitOpen);
      result.reason_class = "infra";
      result.detail = absl::StrCat("the last ", options_.circuit.failures,
                                   " transfers failed to reach the server");
    } else {
      const absl::Status status =
          TransferWithRetries(*header, started + options.deadline, source, target, stop, &result);
      if (absl::IsCancelled(status)) {
        circuit_.Abandoned();
        counters_.CountOther("cancelled", absl::Now() - started);
        return status;
      }
      ReportToCircuit(result);
    }
    result.timings.total = absl::Now() - started;
    counters_.CountResult(result);
    if (!result.applied() && options_.on_fallback == OnFallback::kFail) return ToStatus(result);
    return result;
  }

  template <typename Response, typename Service, typename Method, typename Request>
  absl::StatusOr<Response> Call(Method method, const Request& request, absl::Duration timeout) {
    auto stub = Service::NewStub(channels_->Next());
    return Unary<Response>(timeout, [&](grpc::ClientContext* context, Response* response) {
      return ((*stub).*method)(context, request, response);
    });
  }

  CountersSnapshot counters() const {
    CountersSnapshot snapshot = counters_.Snapshot();
    snapshot.circuit_state = circuit_.state(Now());
    return snapshot;
  }

 private:
  absl::Time Now() const { return options_.now ? options_.now() : absl::Now(); }

  // CANCELLED, or OK with `result` filled in.
  absl::Status TransferWithRetries(const v1::TransferHeader& header, absl::Time deadline,
                                   const SourceView& source, const TargetView& target,
                                   const std::stop_token& stop, TransferResult* result) {
    absl::Duration backoff = options_.retry.initial_backoff;
    for (;;) {
      ++result->attempts;
      AnswerSink sink(target);
      CallReport report =
          RunTransferCall(channels_->Next(), header, deadline, stop, source, buffers_, &sink);
      const bool may_repeat =
          absl::IsUnavailable(report.status) && !report.accepted && !report.decision.has_value();
      const absl::Duration wait = Jittered(backoff);
      if (may_repeat && result->attempts < options_.retry.max_attempts &&
          absl::Now() + wait < deadline) {
        if (!WaitUnlessStopped(wait, stop)) return absl::CancelledError("cancelled by the caller");
        backoff = std::min(backoff * 2, options_.retry.max_backoff);
        continue;
      }
      return Judge(std::move(report), stop, &sink, result);
    }
  }

  // Believes the server's decision only when the call ended in order and the answer is whole.
  static absl::Status Judge(CallReport report, const std::stop_token& stop, AnswerSink* sink,
                            TransferResult* result) {
    result->bytes_sent = report.bytes_sent;
    result->bytes_received = sink->bytes();
    result->timings = report.timings;
    if (report.decision.has_value()) result->decision = *std::move(report.decision);
    const v1::Decision& decision = result->decision;
    if (report.status.ok() && decision.outcome() == v1::OUTCOME_APPLIED) {
      report.status = sink->CheckComplete(decision.covered_tokens());
    }
    if (report.status.ok() && decision.outcome() == v1::OUTCOME_UNSPECIFIED) {
      report.status = absl::DataLossError("decision.outcome: expected an outcome, got none");
    }
    if (report.status.ok() && decision.outcome() == v1::OUTCOME_APPLIED) {
      result->outcome = v1::OUTCOME_APPLIED;
      result->covered_tokens = decision.covered_tokens();
      return absl::OkStatus();
    }
    sink->ZeroWritten();
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

  void ReportToCircuit(const TransferResult& result) {
    if (IsInfraFailure(result)) {
      circuit_.Failed(Now());
    } else {
      circuit_.Succeeded();
    }
  }

  const ClientOptions options_;
  const std::unique_ptr<Channels> channels_;
  const std::shared_ptr<ChunkBuffers> buffers_;
  Circuit circuit_;
  Counters counters_;
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
                                    .connect_timeout = options.connect_timeout});
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

CountersSnapshot Client::counters() const { return impl_->counters(); }

}  // namespace kvbridge::client
