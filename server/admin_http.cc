#include "server/admin_http.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include <civetweb.h>

namespace kvbridge::server {
namespace {

// The first that civetweb complained of on this thread: what follows is less exact.
thread_local std::string complaint;

int KeepComplaint(const mg_connection*, const char* message) {
  if (complaint.empty()) complaint = message;
  return 1;
}

constexpr const char* kText = "text/plain; charset=utf-8";
constexpr const char* kJson = "application/json";
constexpr const char* kHtml = "text/html; charset=utf-8";
constexpr const char* kPrometheus = "text/plain; version=0.0.4; charset=utf-8";

// A page whose text comes from outside: were some of it not escaped, it still could do nothing.
constexpr const char* kHtmlHeaders =
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    "Referrer-Policy: no-referrer\r\n";
constexpr const char* kAllow = "Allow: GET, HEAD\r\n";

StatusView ViewOf(absl::string_view query) {
  StatusView view;
  for (const absl::string_view part : absl::StrSplit(query, '&')) {
    if (part == "format=json") view.json = true;
    if (part == "refresh=off") view.refresh = false;
  }
  return view;
}

const char* Phrase(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    default:
      return "Service Unavailable";
  }
}

}  // namespace

struct AdminHttp::Answer {
  int code = 200;
  const char* type = kText;
  std::string body;
  const char* headers = "";  // besides those of every answer
};

absl::StatusOr<std::unique_ptr<AdminHttp>> AdminHttp::Start(const std::string& host, int port,
                                                            Sources sources) {
  std::unique_ptr<AdminHttp> http(new AdminHttp(std::move(sources)));
  const bool v6 = absl::StrContains(host, ":");
  const std::string where = v6 ? absl::StrCat("[", host, "]:", port)
                               : absl::StrCat(host == "localhost" ? "127.0.0.1" : host, ":", port);
  // A connection holds a thread until it has said all it wants and taken the answer: one request
  // each, and little time, so that clients that hang don't keep probes waiting. No document root:
  // nothing is ever read from disk.
  const char* options[] = {
      "listening_ports",   where.c_str(), "num_threads", "32", "request_timeout_ms", "2000",
      "enable_keep_alive", "no",          nullptr};
  mg_callbacks callbacks{};
  callbacks.begin_request = &AdminHttp::Handle;
  callbacks.log_message = &KeepComplaint;
  complaint.clear();
  http->context_ = mg_start(&callbacks, http.get(), options);
  mg_server_port bound{};
  if (http->context_ == nullptr || mg_get_server_ports(http->context_, 1, &bound) != 1) {
    return absl::UnavailableError(
        absl::StrCat("listen.admin: expected an address to bind, got ", where, ": ", complaint));
  }
  http->port_ = bound.port;
  return http;
}

AdminHttp::~AdminHttp() {
  if (context_ != nullptr) mg_stop(context_);
}

AdminHttp::Answer AdminHttp::Route(absl::string_view path, absl::string_view query,
                                   bool from_loopback) const {
  const auto verdict = [](const Verdict& v) {
    return v.ok ? Answer{.body = "ok\n"} : Answer{.code = 503, .body = v.why + "\n"};
  };
  if (path == "/metrics") return {.type = kPrometheus, .body = sources_.metrics()};
  if (path == "/livez") return verdict(sources_.live());
  if (path == "/readyz") return verdict(sources_.ready());
  if (path == "/version") return {.type = kJson, .body = sources_.version()};
  for (const char* local : {"/configz", "/artifactz", "/eventz", "/statusz"}) {
    if (path != local) continue;
    if (from_loopback) return LocalPage(path, query);
    return {.code = 403, .body = absl::StrCat(path, " is served to loopback only\n")};
  }
  return {.code = 404,
          .body =
              "expected /metrics, /livez, /readyz, /version, /configz, /artifactz, /eventz or "
              "/statusz\n"};
}

AdminHttp::Answer AdminHttp::LocalPage(absl::string_view path, absl::string_view query) const {
  if (path == "/configz") return {.type = kJson, .body = sources_.config()};
  if (path == "/artifactz") return {.type = kJson, .body = sources_.artifacts()};
  if (path == "/eventz") return {.type = kJson, .body = sources_.events()};
  const StatusView view = ViewOf(query);
  if (view.json) return {.type = kJson, .body = sources_.status(view)};
  return {.type = kHtml, .body = sources_.status(view), .headers = kHtmlHeaders};
}

int AdminHttp::Handle(mg_connection* connection) {
  const mg_request_info& request = *mg_get_request_info(connection);
  const auto* self = static_cast<const AdminHttp*>(request.user_data);
  const absl::string_view method = request.request_method;
  const absl::string_view peer = request.remote_addr;
  const bool head = method == "HEAD";
  Answer answer;
  if (head || method == "GET") {
    const char* query = request.query_string == nullptr ? "" : request.query_string;
    answer = self->Route(request.local_uri, query, absl::StartsWith(peer, "127.") || peer == "::1");
  } else {
    answer = {.code = 405, .body = "expected GET or HEAD\n", .headers = kAllow};
  }
  mg_printf(connection,
            "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
            "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n%s\r\n",
            answer.code, Phrase(answer.code), answer.type, answer.body.size(), answer.headers);
  if (!head) mg_write(connection, answer.body.data(), answer.body.size());
  return answer.code;
}

}  // namespace kvbridge::server
