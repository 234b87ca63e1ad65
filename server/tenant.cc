#include "server/tenant.h"

namespace kvbridge::server {

std::string TenantOf(const grpc::CallbackServerContext&, absl::string_view stated) {
  return std::string(stated);
}

}  // namespace kvbridge::server
