// Mapping by a server's route.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/cli/flag_file.h"
#include "client/cli/handoff.h"
#include "client/cli/spec_convert.h"
#include "core/artifact/spec_json.h"
#include "core/base/status_macros.h"
#include "core/base/strict_json.h"
#include "google/protobuf/util/time_util.h"

namespace kvbridge::cli {
namespace {

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

// FP8 only.
void StateScales(const kv::KvView& view, v1::KvSelection* selection) {
  for (int32_t layer = 0; layer < view.layers; ++layer) {
    const auto& keys = view.plane(layer, kv::Component::kKey).scales;
    const auto& values = view.plane(layer, kv::Component::kValue).scales;
    if (keys.empty() && values.empty()) continue;
    v1::LayerScales& scales = *selection->add_scales();
    scales.mutable_key()->Add(keys.begin(), keys.end());
    scales.mutable_value()->Add(values.begin(), values.end());
  }
}

class RemoteHandoff final : public Handoff {
 public:
  // The models as the server's route states them.
  absl::Status Open(const HandoffFlags& flags) {
    KVB_ASSIGN_OR_RETURN(client_, Connect(flags.server));
    KVB_ASSIGN_OR_RETURN(const v1::GetCapabilitiesResponse capabilities,
                         client_->GetCapabilities(flags.server.Timeout()));
    backend_ = capabilities.backend();
    plane_ = PlaneOf(flags.plane);
    peer_ = flags.peer;
    if (!flags.target_spec.empty()) return ReadTarget(flags);
    std::string known;
    for (const v1::RouteInfo& info : capabilities.routes()) {
      if (info.route() == flags.route) {
        route_ = info;
        return ReadSpecs();
      }
      absl::StrAppend(&known, known.empty() ? "" : ", ", info.route());
    }
    return absl::NotFoundError(
        absl::StrCat("--route: expected one of [", known, "], got ", flags.route,
                     peer_.empty() ? "" : "; --target-spec states the target of a peer's"));
  }

  const model::ModelSpec& source() const override { return source_; }
  const model::ModelSpec& target() const override { return target_; }
  std::string backend() const override { return backend_; }

  absl::StatusOr<TransferReport> Run(const HandoffRequest& request,
                                     const artifact::CacheFile& source,
                                     const artifact::CacheFile& answer,
                                     const std::stop_token& stop) override {
    KVB_ASSIGN_OR_RETURN(const client::TransferOptions options, OptionsOf(request, source, answer));
    auto source_view = ClientView<client::SourceView, const std::byte>(
        source.view, options.header.source().geometry().element_type());
    source_view.owner = source.storage;
    const auto target_view = ClientView<client::TargetView, std::byte>(
        answer.view, route_.target().geometry().element_type());
    KVB_ASSIGN_OR_RETURN(const client::TransferResult result,
                         client_->Transfer(options, source_view, target_view, stop));
    return ReportOf(result, source.view.tokens);
  }

 private:
  // Of a route that only a peer has.
  absl::Status ReadTarget(const HandoffFlags& flags) {
    route_.set_route(flags.route);
    KVB_ASSIGN_OR_RETURN(const std::string text, ReadFlagFile("--target-spec", flags.target_spec));
    KVB_ASSIGN_OR_RETURN(const base::Json json, base::ParseStrictJson(text, flags.target_spec));
    KVB_ASSIGN_OR_RETURN(target_, artifact::SpecFromJson(json, "target-spec"));
    KVB_ASSIGN_OR_RETURN(*route_.mutable_target(), ToProto(target_));
    return absl::OkStatus();
  }

  absl::Status ReadSpecs() {
    KVB_ASSIGN_OR_RETURN(target_, FromProto(route_.target(), "route.target"));
    if (!route_.has_source()) return absl::OkStatus();
    KVB_ASSIGN_OR_RETURN(source_, FromProto(route_.source(), "route.source"));
    return absl::OkStatus();
  }

  absl::StatusOr<client::TransferOptions> OptionsOf(const HandoffRequest& request,
                                                    const artifact::CacheFile& source,
                                                    const artifact::CacheFile& answer) const {
    client::TransferOptions options;
    options.deadline = absl::Seconds(request.deadline_seconds);
    options.plane = plane_;
    options.traceparent = request.traceparent;
    v1::TransferHeader& header = options.header;
    header.set_request_id(IdOf(request));
    header.set_route(route_.route());
    header.set_peer(peer_);
    KVB_ASSIGN_OR_RETURN(*header.mutable_source(), ToProto(source.spec));
    *header.mutable_target() = route_.target();
    header.set_prompt_tokens(request.prompt_tokens);
    header.set_hops(request.hops);
    header.mutable_limits()->set_native_tail(request.native_tail);
    if (request.max_latency_seconds) {
      *header.mutable_limits()->mutable_max_latency() =
          google::protobuf::util::TimeUtil::NanosecondsToDuration(
              static_cast<int64_t>(*request.max_latency_seconds * 1e9));
    }
    v1::KvSelection& selection = *header.mutable_source_selection();
    selection.set_tokens(source.view.tokens);
    for (const int64_t position : source.positions) {
      selection.mutable_positions()->add_list(position);
    }
    selection.set_key_state(v1::KEY_STATE_ROPED);
    StateScales(source.view, &selection);
    StateScales(answer.view, header.mutable_target_selection());
    return options;
  }

  std::unique_ptr<client::Client> client_;
  std::string backend_;
  client::PlaneChoice plane_ = client::PlaneChoice::kAuto;
  std::string peer_;
  v1::RouteInfo route_;
  model::ModelSpec source_;
  model::ModelSpec target_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Handoff>> OpenRemoteHandoff(const HandoffFlags& flags) {
  auto handoff = std::make_unique<RemoteHandoff>();
  KVB_RETURN_IF_ERROR(handoff->Open(flags));
  return handoff;
}

}  // namespace kvbridge::cli
