// Who may call what, and as which tenant: bearer tokens from a file, and names in client
// certificates.
//
// Without any of them configured everyone who can connect may call everything but Admin, which is
// for callers on this host, and a request's own word tells its tenant. With them every call needs a
// token or a certificate, whatever it came by; the grant tells the tenant, and which groups of
// methods may be called. A token that is wrong is not made up for by a certificate that is right.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

#include "core/base/mutex.h"
#include "core/metrics/operation_metrics.h"
#include "kvbridge/v1/config.pb.h"
#include "server/method_group.h"
#include "server/tokens.h"

namespace kvbridge::server {

// What a caller has shown. Views into the call.
struct Credentials {
  std::optional<absl::string_view> authorization;  // the header
  std::vector<absl::string_view> names;            // of the certificate that the handshake verified
};

struct Grant {
  std::string tenant;
  MethodGroups groups;
};

// Everything that is granted at one moment.
struct Grants {
  bool required = false;  // calls need a grant
  std::vector<TokenGrant> tokens;
  std::map<std::string, Grant, std::less<>> names;  // by subject alternative name
  std::vector<std::string> warnings;
};

// INVALID_ARGUMENT or NOT_FOUND names the setting, the file, and what is wrong with it.
absl::StatusOr<Grants> ReadGrants(const v1::AuthConfig& config);

// Thread contract: every method may be called from any thread.
class Authorizer {
 public:
  // `metrics` is borrowed.
  Authorizer(Grants grants, metrics::OperationMetrics* metrics);

  // Calls from now on are judged by these.
  void Replace(Grants grants);

  // The tenant as which the caller may call `path` ("/kvbridge.v1.KvBridge/Plan"); nullopt where
  // none is told. UNAUTHENTICATED: it has shown nothing that is known; PERMISSION_DENIED: it may
  // not. Counts refusals. Messages hold neither tokens nor tenants.
  absl::StatusOr<std::optional<std::string>> Authorize(absl::string_view path,
                                                       const Credentials& shown) const;

 private:
  std::shared_ptr<const Grants> grants() const;
  absl::StatusOr<Grant> Identify(const Grants& grants, const Credentials& shown) const;

  metrics::OperationMetrics& metrics_;
  mutable base::Mutex mutex_;
  std::shared_ptr<const Grants> grants_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvbridge::server
