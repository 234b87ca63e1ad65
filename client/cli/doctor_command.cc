#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "client/cli/commands.h"
#include "client/cli/host_checks.h"
#include "client/cli/table.h"
#include "client/cpp/transfer.h"
#include "core/base/status_macros.h"
#include "kvbridge/v1/transfer.pb.h"

namespace kvbridge::cli {
namespace {

// What is to be known about its routes: one without an artifact, one that never applies, a drill.
Finding CheckRoutes(const absl::StatusOr<v1::HealthResponse>& health) {
  Finding routes{.check = "routes",
                 .verdict = Verdict::kOk,
                 .found = "all as they should be",
                 .why = "their transfers fall back, and callers prefill",
                 .advice = ""};
  std::vector<std::string> notes;
  if (health.ok()) {
    for (const v1::RouteHealth& route : health->routes()) {
      if (route.detail().empty()) continue;
      notes.push_back(absl::StrCat(route.route(), ": ", route.detail()));
    }
  } else {
    notes.emplace_back(health.status().message());
  }
  if (notes.empty()) return routes;
  routes.verdict = Verdict::kWarn;
  routes.found = absl::StrJoin(notes, "; ");
  routes.advice = "load or validate what is missing; end a drill with share 0 in the configuration";
  return routes;
}

// Whether anybody may register shared memory by its name.
Finding NamedShm(const v1::GetCapabilitiesResponse& told) {
  const auto& features = told.features();
  const bool on = std::find(features.begin(), features.end(), "named_shm") != features.end();
  return {.check = "named_shm",
          .verdict = Verdict::kOk,
          .found = on ? "on for the names in memory.named_shm" : "off",
          .why = "an engine that can't pass descriptors names its shared memory instead",
          .advice = ""};
}

// How a server answers, how its routes are, and whether its regions can be had from here.
std::vector<Finding> CheckServer(const ServerAccess& access) {
  Finding server{.check = "server",
                 .verdict = Verdict::kOk,
                 .found = "",
                 .why = "a client that can't reach it prefills instead",
                 .advice = ""};
  const auto client = Connect(access);
  const auto told = client.ok() ? (*client)->GetCapabilities(access.Timeout())
                                : absl::StatusOr<v1::GetCapabilitiesResponse>(client.status());
  if (!told.ok()) {
    server.verdict = Verdict::kBad;
    server.found = std::string(told.status().message());
    server.advice =
        client::IsRefusal(told.status().code())
            ? "show it a token or a certificate that is granted plan: --token-file, --cert-file"
            : "start it, and check the address, listen.grpc and the network policy";
    return {server};
  }
  server.found =
      absl::StrCat("version ", told->version(), ", ", told->backend(), ", ", told->routes_size(),
                   " routes, ", absl::StrJoin(told->features(), " "));
  return {server, CheckRoutes((*client)->Health("", access.Timeout())),
          CheckSideSocket(told->memory_socket()), NamedShm(*told)};
}

std::string Text(const std::vector<Finding>& findings, bool color) {
  Table table({"VERDICT", "CHECK", "FOUND"});
  for (const Finding& finding : findings) {
    table.AddRow({std::string(Name(finding.verdict)), finding.check, finding.found});
  }
  std::string text = table.Render(color);
  for (const Finding& finding : findings) {
    if (finding.verdict == Verdict::kOk) continue;
    absl::StrAppend(&text, "\n", finding.check, ": ", finding.why, ".\n  ", finding.advice, "\n");
  }
  return text;
}

}  // namespace

absl::StatusOr<ExitCode> RunDoctor(const DoctorFlags& flags, const Output& output) {
  std::vector<Finding> findings = CheckHost("/", flags.socket);
  if (!flags.server.address.empty()) {
    for (Finding& finding : CheckServer(flags.server)) findings.push_back(std::move(finding));
  }
  Verdict worst = Verdict::kOk;
  base::Json checks = base::Json::array();
  for (const Finding& finding : findings) {
    worst = std::max(worst, finding.verdict);
    checks.push_back({{"check", finding.check},
                      {"verdict", std::string(Name(finding.verdict))},
                      {"found", finding.found},
                      {"why", finding.why},
                      {"advice", finding.advice}});
  }
  const base::Json document = {{"schema", "kvbridge.doctor/v1"},
                               {"verdict", std::string(Name(worst))},
                               {"checks", std::move(checks)}};
  KVB_RETURN_IF_ERROR(
      output.Emit(document, [&findings](bool color) { return Text(findings, color); }));
  return worst == Verdict::kBad ? ExitCode::kGateFailed : ExitCode::kOk;
}

}  // namespace kvbridge::cli
