#include "server/admin_http.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include <arpa/inet.h>

#include "core/base/status_macros.h"

namespace kvbridge::server {
namespace {

constexpr const char* kJson = "application/json";
constexpr const char* kHtml = "text/html; charset=utf-8";
constexpr const char* kPrometheus = "text/plain; version=0.0.4; charset=utf-8";

// A page whose text comes from outside: were some of it not escaped, it still could do nothing.
constexpr const char* kHtmlHeaders =
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    "Referrer-Policy: no-referrer\r\n";

StatusView ViewOf(absl::string_view query) {
  StatusView view;
  for (const absl::string_view part : absl::StrSplit(query, '&')) {
    if (part == "format=json") view.json = true;
    if (part == "refresh=off") view.refresh = false;
  }
  return view;
}

// Whether a page was asked for by this host's address. A browser that was led here says the name
// of whoever led it.
bool ByAddress(const std::string& host) {
  in6_addr address{};
  return host.empty() || absl::EqualsIgnoreCase(host, "localhost") ||
         inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

bool IsProbe(const HttpRequest& request) {
  return request.path == "/livez" || request.path == "/readyz";
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdminHttp>> AdminHttp::Start(const std::string& host, int port,
                                                            Sources sources) {
  std::unique_ptr<AdminHttp> http(new AdminHttp(std::move(sources)));
  KVB_ASSIGN_OR_RETURN(
      http->endpoint_,
      HttpEndpoint::Start({.host = host,
                           .port = port,
                           .urgent = &IsProbe,
                           .answer = [raw = http.get()](const HttpRequest& request) {
                             return raw->Route(request);
                           }}));
  return http;
}

HttpAnswer AdminHttp::Route(const HttpRequest& request) const {
  const auto verdict = [](const Verdict& v) {
    return v.ok ? HttpAnswer{.body = "ok\n"} : HttpAnswer{.code = 503, .body = v.why + "\n"};
  };
  const std::string& path = request.path;
  if (path == "/metrics") return {.type = kPrometheus, .body = sources_.metrics()};
  if (path == "/livez") return verdict(sources_.live());
  if (path == "/readyz") return verdict(sources_.ready());
  if (path == "/version") return {.type = kJson, .body = sources_.version()};
  for (const char* local : {"/configz", "/artifactz", "/eventz", "/statusz"}) {
    if (path != local) continue;
    if (!request.from_loopback) {
      return {.code = 403, .body = absl::StrCat(path, " is served to loopback only\n")};
    }
    if (!ByAddress(request.host)) {
      return {.code = 403,
              .body = absl::StrCat(path, " is served at localhost or an address, not at a name\n")};
    }
    return LocalPage(request);
  }
  return {.code = 404,
          .body =
              "expected /metrics, /livez, /readyz, /version, /configz, /artifactz, /eventz or "
              "/statusz\n"};
}

HttpAnswer AdminHttp::LocalPage(const HttpRequest& request) const {
  if (request.path == "/configz") return {.type = kJson, .body = sources_.config()};
  if (request.path == "/artifactz") return {.type = kJson, .body = sources_.artifacts()};
  if (request.path == "/eventz") return {.type = kJson, .body = sources_.events()};
  const StatusView view = ViewOf(request.query);
  if (view.json) return {.type = kJson, .body = sources_.status(view)};
  return {.type = kHtml, .body = sources_.status(view), .headers = kHtmlHeaders};
}

}  // namespace kvbridge::server
