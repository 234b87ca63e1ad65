// Commands that only ask a server.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "client/cli/commands.h"
#include "client/cli/route_table.h"
#include "client/cli/spec_convert.h"
#include "client/cli/table.h"
#include "core/base/status_macros.h"
#include "core/base/units.h"

namespace kvbridge::cli {
namespace {

std::string ArtifactTable(const v1::ListArtifactsResponse& response, bool color) {
  Table table({"ROUTE", "ARTIFACT", "RESIDENT", "VERDICT", "LOAD S", "LAST ERROR"});
  for (const auto& info : response.artifacts()) {
    table.AddRow({info.route(), OrDash(info.digest().substr(0, 12)),
                  base::HumanBytes(static_cast<uint64_t>(info.resident_bytes())),
                  OrDash(info.verdict()), absl::StrFormat("%.1f", info.load_seconds()),
                  OrDash(info.last_error())});
  }
  return table.Render(color);
}

// As other documents name it: an artifact's digest.
absl::StatusOr<base::Json> ArtifactsDocument(const v1::ListArtifactsResponse& response) {
  KVB_ASSIGN_OR_RETURN(base::Json document, ToDocument("kvbridge.artifacts/v1", response));
  for (base::Json& artifact : document["artifacts"]) {
    artifact["artifact_digest"] = std::move(artifact["digest"]);
    artifact.erase("digest");
  }
  return document;
}

}  // namespace

absl::StatusOr<ExitCode> RunHealth(const ServerFlags& flags, const Output& output) {
  KVB_ASSIGN_OR_RETURN(auto client, Connect(flags.server));
  KVB_ASSIGN_OR_RETURN(const v1::HealthResponse health,
                       client->Health(flags.route, flags.server.Timeout()));
  KVB_ASSIGN_OR_RETURN(const base::Json document, ToDocument("kvbridge.health/v1", health));
  KVB_RETURN_IF_ERROR(output.Emit(document, [&](bool color) {
    return absl::StrCat(
        RenderFields({{"state", EnumWord(v1::ServerState_Name(health.state()), "SERVER_STATE_")},
                      {"version", health.version()}}),
        "\n", RouteTable(health, color));
  }));
  if (flags.route.empty()) {
    return health.state() == v1::SERVER_STATE_READY ? ExitCode::kOk : ExitCode::kGateFailed;
  }
  const bool serving = health.routes_size() == 1 && health.routes(0).serving();
  return serving ? ExitCode::kOk : ExitCode::kGateFailed;
}

absl::StatusOr<ExitCode> RunArtifactLoad(const ServerFlags& flags, const Output& output) {
  KVB_ASSIGN_OR_RETURN(auto client, Connect(flags.server));
  v1::ListArtifactsResponse loaded;
  KVB_ASSIGN_OR_RETURN(*loaded.add_artifacts(),
                       client->LoadArtifact(flags.route, flags.path,
                                            flags.server.Timeout(client::Client::kLoadTimeout)));
  KVB_ASSIGN_OR_RETURN(const base::Json document, ArtifactsDocument(loaded));
  KVB_RETURN_IF_ERROR(
      output.Emit(document, [&](bool color) { return ArtifactTable(loaded, color); }));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunArtifactUnload(const ServerFlags& flags, const Output& output) {
  KVB_ASSIGN_OR_RETURN(auto client, Connect(flags.server));
  KVB_RETURN_IF_ERROR(client->UnloadArtifact(flags.route, flags.server.Timeout()));
  const base::Json document = {{"schema", "kvbridge.unload/v1"}, {"route", flags.route}};
  KVB_RETURN_IF_ERROR(output.Emit(document, [&](bool) {
    return RenderFields({{"unloaded", flags.route}});
  }));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunArtifactList(const ServerFlags& flags, const Output& output) {
  KVB_ASSIGN_OR_RETURN(auto client, Connect(flags.server));
  KVB_ASSIGN_OR_RETURN(const v1::ListArtifactsResponse list,
                       client->ListArtifacts(flags.server.Timeout()));
  KVB_ASSIGN_OR_RETURN(const base::Json document, ArtifactsDocument(list));
  KVB_RETURN_IF_ERROR(
      output.Emit(document, [&](bool color) { return ArtifactTable(list, color); }));
  return ExitCode::kOk;
}

}  // namespace kvbridge::cli
