#include "server/auth.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include <sys/stat.h>

#include "core/base/file.h"
#include "core/base/status_macros.h"
#include "core/base/units.h"
#include "core/crypto/token.h"

namespace kvbridge::server {
namespace {

constexpr uint64_t kMaxTokensFileBytes = base::kMiB;
constexpr absl::string_view kTokensFile = "auth.tokens_file";
constexpr absl::string_view kScheme = "bearer ";
// Answers whether somebody is there, and nothing else.
constexpr absl::string_view kOpenService = "/grpc.health.v1.Health/";

absl::string_view Bytes(const crypto::Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

absl::Status InTokensFile(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(kTokensFile, ": ", path, ": ", status.message()));
}

std::string NamesOf(const MethodGroups& groups) {
  std::vector<absl::string_view> names;
  for (size_t i = 0; i < kMethodGroupNames.size(); ++i) {
    if (groups.test(i)) names.push_back(kMethodGroupNames[i]);
  }
  return names.empty() ? "nothing" : absl::StrJoin(names, ", ");
}

bool OthersMayRead(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && (info.st_mode & S_IROTH) != 0;
}

// Compares with every token, so that time tells nothing about which came close.
const TokenGrant* FindToken(const Grants& grants, absl::string_view authorization) {
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return nullptr;
  const absl::string_view token = authorization.substr(kScheme.size());
  const auto digest =
      crypto::Sha256Of({reinterpret_cast<const std::byte*>(token.data()), token.size()});
  if (!digest.ok()) return nullptr;
  const TokenGrant* found = nullptr;
  for (const TokenGrant& grant : grants.tokens) {
    if (crypto::ConstantTimeEquals(Bytes(grant.digest), Bytes(*digest))) found = &grant;
  }
  return found;
}

// Reflection, and what is unknown, need the least that there is.
MethodGroup GroupOf(absl::string_view path) {
  if (absl::StartsWith(path, "/kvbridge.v1.Admin/")) return MethodGroup::kAdmin;
  if (absl::StartsWith(path, "/kvbridge.v1.Memory/")) return MethodGroup::kMemory;
  const bool transfers =
      path == "/kvbridge.v1.KvBridge/Transfer" || path == "/kvbridge.v1.KvBridge/ReportQuality";
  return transfers ? MethodGroup::kTransfer : MethodGroup::kPlan;
}

}  // namespace

absl::StatusOr<Grants> ReadGrants(const v1::AuthConfig& config) {
  Grants grants;
  grants.required = !config.tokens_file().empty() || config.san_size() > 0;
  for (const v1::SanGrant& san : config.san()) {
    Grant& grant = grants.names[san.name()];
    grant.tenant = san.tenant().empty() ? san.name() : san.tenant();
    for (const std::string& group : san.groups()) {
      grant.groups.set(static_cast<size_t>(*ParseMethodGroup(group)));
    }
  }
  const std::string& path = config.tokens_file();
  if (path.empty()) return grants;
  auto text = base::ReadFile(path, kMaxTokensFileBytes);
  if (!text.ok()) return InTokensFile(path, text.status());
  auto tokens = ParseTokens(*text);
  if (!tokens.ok()) return InTokensFile(path, tokens.status());
  grants.tokens = *std::move(tokens);
  if (OthersMayRead(path)) {
    grants.warnings.push_back(
        absl::StrCat(kTokensFile, ": ", path, ": every user of this host may read it"));
  }
  return grants;
}

Authorizer::Authorizer(Grants grants, metrics::OperationMetrics* metrics)
    : metrics_(*metrics), grants_(std::make_shared<const Grants>(std::move(grants))) {}

void Authorizer::Replace(Grants grants) {
  auto next = std::make_shared<const Grants>(std::move(grants));
  base::MutexLock lock(&mutex_);
  grants_ = std::move(next);
}

std::shared_ptr<const Grants> Authorizer::grants() const {
  base::MutexLock lock(&mutex_);
  return grants_;
}

absl::StatusOr<Grant> Authorizer::Identify(const Grants& grants, const Credentials& shown) const {
  if (shown.authorization.has_value()) {
    const TokenGrant* token = FindToken(grants, *shown.authorization);
    if (token != nullptr) return Grant{token->tenant, token->groups};
    metrics_.AuthFailed("bad_token");
    return absl::UnauthenticatedError("authorization: expected a known bearer token, got another");
  }
  for (const absl::string_view name : shown.names) {
    const auto it = grants.names.find(std::string(name));
    if (it != grants.names.end()) return it->second;
  }
  if (!shown.names.empty() && !grants.names.empty()) {
    metrics_.AuthFailed("unknown_name");
    return absl::UnauthenticatedError("certificate: expected a name that is known, got others");
  }
  metrics_.AuthFailed("missing");
  return absl::UnauthenticatedError(
      "authorization: expected a bearer token or a known client certificate, got neither");
}

absl::StatusOr<std::optional<std::string>> Authorizer::Authorize(absl::string_view path,
                                                                 const Credentials& shown) const {
  const auto grants = this->grants();
  if (!grants->required || absl::StartsWith(path, kOpenService)) return std::nullopt;
  KVB_ASSIGN_OR_RETURN(Grant grant, Identify(*grants, shown));
  const MethodGroup group = GroupOf(path);
  if (grant.groups.test(static_cast<size_t>(group))) return std::move(grant.tenant);
  metrics_.AuthFailed("no_grant");
  return absl::PermissionDeniedError(absl::StrCat("expected a caller that is granted ", Name(group),
                                                  ", got one that is granted ",
                                                  NamesOf(grant.groups)));
}

}  // namespace kvbridge::server
