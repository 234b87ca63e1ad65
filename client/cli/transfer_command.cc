// kvbridge transfer: from one cache file to another, in this process or by a server.
#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

#include "client/cli/commands.h"
#include "client/cli/local_models.h"
#include "client/cli/progress.h"
#include "client/cli/spec_convert.h"
#include "client/cli/transfer_report.h"
#include "core/artifact/cache_file.h"
#include "core/artifact/spec_json.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/status_macros.h"
#include "core/base/strict_json.h"
#include "core/device/cpu/cpu_backend.h"
#include "core/engine/local_transfer.h"
#include "google/protobuf/util/time_util.h"

namespace kvbridge::cli {
namespace {

// A lone transfer may use what a server would share.
constexpr uint64_t kWorkspaceBytes = uint64_t{4} << 30;
constexpr uint64_t kMaxSpecBytes = 1 << 20;

// The answer's memory: the target's geometry, the source's tokens.
artifact::CacheFile AnswerFor(const model::ModelSpec& target, const artifact::CacheFile& source) {
  const model::KvGeometry& geometry = target.geometry;
  const int64_t tokens = source.view.tokens;
  const size_t bytes = static_cast<size_t>(geometry.token_bytes() * tokens);
  std::shared_ptr<std::byte[]> memory = std::make_shared<std::byte[]>(bytes);
  artifact::CacheFile answer;
  answer.spec = target;
  answer.positions = source.positions;
  answer.token_ids = source.token_ids;
  answer.view =
      kv::DenseHeadMajorView(memory.get(), memory.get() + bytes / 2, geometry.dtype,
                             geometry.layers, tokens, geometry.kv_heads, geometry.head_dim);
  answer.storage = std::move(memory);
  return answer;
}

absl::Status WriteCovered(const std::string& path, int64_t covered, artifact::CacheFile answer) {
  answer.view.tokens = covered;
  answer.positions.resize(static_cast<size_t>(covered));
  if (!answer.token_ids.empty()) answer.token_ids.resize(static_cast<size_t>(covered));
  return artifact::WriteCacheFile(path, answer);
}

// Samples are drawn by it: calls that share one would all be drawn, or none.
std::string RequestId(const TransferFlags& flags) {
  if (!flags.request_id.empty()) return flags.request_id;
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(), random());
}

guard::TransferSpec LocalSpec(const TransferFlags& flags, const artifact::CacheFile& source,
                              const model::ModelSpec& target) {
  guard::TransferSpec spec;
  spec.request_id = RequestId(flags);
  spec.route = flags.route;
  spec.source = source.spec;
  spec.target = target;
  spec.tokens = source.view.tokens;
  spec.position_list = source.positions;
  spec.key_state = guard::KeyState::kRoped;
  spec.prompt_tokens = flags.prompt_tokens;
  spec.hops = flags.hops;
  spec.native_tail = flags.native_tail;
  spec.deadline = absl::Now() + absl::Seconds(flags.deadline_seconds);
  if (flags.max_latency_seconds) spec.max_latency = absl::Seconds(*flags.max_latency_seconds);
  spec.source_buffered = false;
  spec.target_buffered = false;
  return spec;
}

absl::StatusOr<TransferReport> TransferLocally(const TransferFlags& flags, const Output& output,
                                               const artifact::CacheFile& source,
                                               const std::stop_token& stop) {
  KVB_ASSIGN_OR_RETURN(auto pool, base::WorkerPool::Create({}));
  KVB_ASSIGN_OR_RETURN(auto backend, device::CpuBackend::Create(
                                         {}, pool.get(), kv::BufferPool::Create(kWorkspaceBytes)));
  const base::SystemClock clock;
  engine::TransferEngine::Options options;
  options.limits.max_tokens = std::max(options.limits.max_tokens, source.view.tokens);
  options.limits.max_inflight_bytes = kWorkspaceBytes;
  KVB_ASSIGN_OR_RETURN(
      auto engine, engine::TransferEngine::Create(
                       options, {.pool = pool.get(), .backend = backend.get(), .clock = &clock}));
  artifact::Artifact loaded;
  engine::ArtifactPin pin;
  {
    const Progress progress(absl::StrCat("loading ", flags.artifact), output.quiet());
    KVB_ASSIGN_OR_RETURN(loaded,
                         LoadLocalArtifact(flags.artifact, flags.configs, false, pool.get()));
    KVB_ASSIGN_OR_RETURN(pin.resident,
                         backend->MakeResident(loaded.mapper, device::Precision::kBf16, {}));
  }
  pin.proven = loaded.provenance.verdict() == artifact::Verdict::kPass;
  const guard::RoutePolicy policy = {.allow_unproven = flags.allow_unproven,
                                     .max_hops = flags.hops + 1};
  const model::ModelSpec& target = loaded.mapper->target;
  const artifact::CacheFile answer = AnswerFor(target, source);
  const absl::Time started = absl::Now();
  engine::Decision decision;
  {
    const Progress progress("mapping", output.quiet());
    decision = engine::RunLocal(*engine, LocalSpec(flags, source, target), policy, std::move(pin),
                                source.view, answer.view);
  }
  if (stop.stop_requested()) return absl::CancelledError("interrupted");
  TransferReport report = ReportOf(decision, source.view.tokens, absl::Now() - started);
  if (report.applied()) {
    KVB_RETURN_IF_ERROR(WriteCovered(flags.out, report.covered_tokens, answer));
    report.out = flags.out;
  }
  return report;
}

// The client's view of a head-major cache.
template <typename View, typename Byte>
View ClientView(const kv::KvView& view, v1::ElementType element_type) {
  View result;
  result.shape = {.element_type = element_type,
                  .layers = view.layers,
                  .kv_heads = view.kv_heads,
                  .head_dim = view.head_dim,
                  .tokens = view.tokens};
  for (const kv::Plane& plane : view.planes) result.planes.push_back(plane.base);
  result.token_stride = view.planes[0].token_stride;
  result.head_stride = view.planes[0].head_stride;
  return result;
}

client::PlaneChoice PlaneOf(const std::string& word) {
  if (word == "region") return client::PlaneChoice::kRegion;
  return word == "inline" ? client::PlaneChoice::kInline : client::PlaneChoice::kAuto;
}

absl::StatusOr<client::TransferOptions> RemoteOptions(const TransferFlags& flags,
                                                      const artifact::CacheFile& source,
                                                      const v1::ModelSpec& target) {
  client::TransferOptions options;
  options.deadline = absl::Seconds(flags.deadline_seconds);
  options.plane = PlaneOf(flags.plane);
  v1::TransferHeader& header = options.header;
  header.set_request_id(RequestId(flags));
  header.set_route(flags.route);
  header.set_peer(flags.peer);
  KVB_ASSIGN_OR_RETURN(*header.mutable_source(), ToProto(source.spec));
  *header.mutable_target() = target;
  header.set_prompt_tokens(flags.prompt_tokens);
  header.set_hops(flags.hops);
  header.mutable_limits()->set_native_tail(flags.native_tail);
  if (flags.max_latency_seconds) {
    *header.mutable_limits()->mutable_max_latency() =
        google::protobuf::util::TimeUtil::NanosecondsToDuration(
            static_cast<int64_t>(*flags.max_latency_seconds * 1e9));
  }
  v1::KvSelection& selection = *header.mutable_source_selection();
  selection.set_tokens(source.view.tokens);
  for (const int64_t position : source.positions) {
    selection.mutable_positions()->add_list(position);
  }
  selection.set_key_state(v1::KEY_STATE_ROPED);
  for (int32_t layer = 0; layer < source.view.layers; ++layer) {
    const auto& keys = source.view.plane(layer, kv::Component::kKey).scales;
    const auto& values = source.view.plane(layer, kv::Component::kValue).scales;
    if (keys.empty() && values.empty()) continue;
    v1::LayerScales& scales = *selection.add_scales();
    scales.mutable_key()->Add(keys.begin(), keys.end());
    scales.mutable_value()->Add(values.begin(), values.end());
  }
  return options;
}

// The target as the server's route states it, or the caller for a route that only a peer has.
absl::StatusOr<v1::ModelSpec> TargetOf(client::Client& client, const TransferFlags& flags) {
  if (!flags.target_spec.empty()) {
    KVB_ASSIGN_OR_RETURN(const std::string text, base::ReadFile(flags.target_spec, kMaxSpecBytes));
    KVB_ASSIGN_OR_RETURN(const base::Json json, base::ParseStrictJson(text, flags.target_spec));
    KVB_ASSIGN_OR_RETURN(const model::ModelSpec spec, artifact::SpecFromJson(json, "target-spec"));
    return ToProto(spec);
  }
  const std::string& route = flags.route;
  KVB_ASSIGN_OR_RETURN(const v1::GetCapabilitiesResponse capabilities,
                       client.GetCapabilities(flags.server.Timeout()));
  std::string known;
  for (const auto& info : capabilities.routes()) {
    if (info.route() == route) return info.target();
    absl::StrAppend(&known, known.empty() ? "" : ", ", info.route());
  }
  return absl::NotFoundError(
      absl::StrCat("--route: expected one of [", known, "], got ", route,
                   flags.peer.empty() ? "" : "; --target-spec states the target of a peer's"));
}

absl::StatusOr<TransferReport> TransferRemotely(const TransferFlags& flags, const Output& output,
                                                const artifact::CacheFile& source,
                                                const std::stop_token& stop) {
  KVB_ASSIGN_OR_RETURN(auto client, Connect(flags.server));
  KVB_ASSIGN_OR_RETURN(const v1::ModelSpec target, TargetOf(*client, flags));
  KVB_ASSIGN_OR_RETURN(const client::TransferOptions options, RemoteOptions(flags, source, target));
  KVB_ASSIGN_OR_RETURN(const model::ModelSpec target_spec, FromProto(target, "route.target"));
  const artifact::CacheFile answer = AnswerFor(target_spec, source);

  auto source_view = ClientView<client::SourceView, const std::byte>(
      source.view, options.header.source().geometry().element_type());
  source_view.owner = source.storage;
  const auto target_view =
      ClientView<client::TargetView, std::byte>(answer.view, target.geometry().element_type());
  absl::StatusOr<client::TransferResult> result;
  {
    const Progress progress("transferring", output.quiet());
    result = client->Transfer(options, source_view, target_view, stop);
  }
  KVB_RETURN_IF_ERROR(result.status());
  TransferReport report = ReportOf(*result, source.view.tokens);
  if (report.applied()) {
    KVB_RETURN_IF_ERROR(WriteCovered(flags.out, report.covered_tokens, answer));
    report.out = flags.out;
  }
  return report;
}

}  // namespace

absl::StatusOr<ExitCode> RunTransfer(const TransferFlags& flags, const Output& output,
                                     const std::stop_token& stop) {
  std::error_code absent;
  if (std::filesystem::equivalent(flags.in, flags.out, absent)) {
    return absl::InvalidArgumentError("--out: expected another file than --in, got the same");
  }
  KVB_ASSIGN_OR_RETURN(const artifact::CacheFile source, artifact::ReadCacheFile(flags.in));
  KVB_ASSIGN_OR_RETURN(const TransferReport report,
                       flags.server.address.empty()
                           ? TransferLocally(flags, output, source, stop)
                           : TransferRemotely(flags, output, source, stop));
  KVB_RETURN_IF_ERROR(output.Emit(ToJson(report), [&](bool) { return ToText(report); }));
  if (report.applied()) return ExitCode::kOk;
  if (report.reason == "unproven_pair" && flags.server.address.empty()) {
    output.Note("the artifact has no passing evidence; --allow-unproven maps all the same");
  }
  return ExitCodeForFallback(report.outcome, report.reason, flags.fail_on_fallback);
}

}  // namespace kvbridge::cli
