#include "client/cli/route_table.h"

#include "client/cli/spec_convert.h"
#include "client/cli/table.h"

namespace kvbridge::cli {

std::string RouteTable(const v1::HealthResponse& health, bool bold_header) {
  Table table({"ROUTE", "STAGE", "CIRCUIT", "SERVING", "ARTIFACT", "VERDICT", "DETAIL"});
  for (const auto& route : health.routes()) {
    table.AddRow({route.route(), EnumWord(v1::RouteStage_Name(route.stage()), "ROUTE_STAGE_"),
                  EnumWord(v1::CircuitState_Name(route.circuit()), "CIRCUIT_STATE_"),
                  route.serving() ? "yes" : "no", OrDash(route.artifact_digest().substr(0, 12)),
                  OrDash(route.verdict()), OrDash(route.detail())});
  }
  return table.Render(bold_header);
}

}  // namespace kvbridge::cli
