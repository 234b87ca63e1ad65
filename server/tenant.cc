#include "server/tenant.h"

#include "absl/strings/str_cat.h"

#include "server/guarded_port.h"

namespace kvbridge::server {

std::string TenantOf(const grpc::CallbackServerContext& context, absl::string_view stated) {
  return GrantedTenant(context).value_or(std::string(stated));
}

absl::Status CheckStated(const grpc::CallbackServerContext& context, absl::string_view field,
                         absl::string_view stated, DecisionRecorder* recorder) {
  if (stated.empty() || TenantOf(context, stated) == stated) return absl::OkStatus();
  recorder->AuthFailed("wrong_tenant");
  return absl::PermissionDeniedError(
      absl::StrCat(field, ": expected the caller's own tenant or none, got another"));
}

}  // namespace kvbridge::server
