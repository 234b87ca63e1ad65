#include "client/cli/server_load.h"

#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include <civetweb.h>

#include "core/base/status_macros.h"
#include "core/base/units.h"

namespace kvbridge::cli {
namespace {

constexpr size_t kMostBytes = 16 * base::kMiB;
constexpr int kTimeoutMs = 5000;

// The value of a metric without labels.
absl::StatusOr<int64_t> Value(absl::string_view metrics, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(metrics, '\n')) {
    double value = 0;
    if (absl::ConsumePrefix(&line, name) && absl::ConsumePrefix(&line, " ") &&
        absl::SimpleAtod(line, &value)) {
      return static_cast<int64_t>(value);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("expected the metric ", name));
}

absl::StatusOr<std::string> Get(const std::string& host, int port) {
  char why[256] = "";
  const std::unique_ptr<mg_connection, decltype(&mg_close_connection)> connection(
      mg_connect_client(host.c_str(), port, /*use_ssl=*/0, why, sizeof(why)), &mg_close_connection);
  if (connection == nullptr) return absl::UnavailableError(why);
  mg_printf(connection.get(), "GET /metrics HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n",
            host.c_str());
  if (mg_get_response(connection.get(), why, sizeof(why), kTimeoutMs) < 0) {
    return absl::UnavailableError(why);
  }
  const int code = mg_get_response_info(connection.get())->status_code;
  if (code != 200) return absl::UnavailableError(absl::StrCat("it answered ", code));
  std::string body;
  char piece[16384];
  for (int n; (n = mg_read(connection.get(), piece, sizeof(piece))) > 0;) {
    body.append(piece, static_cast<size_t>(n));
    if (body.size() > kMostBytes) return absl::UnavailableError("its answer does not end");
  }
  return body;
}

}  // namespace

absl::StatusOr<ServerLoad> ParseLoad(absl::string_view metrics) {
  ServerLoad load;
  KVB_ASSIGN_OR_RETURN(load.inflight_transfers, Value(metrics, "kvbridge_inflight_transfers"));
  KVB_ASSIGN_OR_RETURN(load.queue_depth, Value(metrics, "kvbridge_queue_depth"));
  KVB_ASSIGN_OR_RETURN(load.queue_limit, Value(metrics, "kvbridge_queue_limit"));
  return load;
}

absl::StatusOr<ServerLoad> FetchLoad(const std::string& admin) {
  const size_t colon = admin.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(admin.substr(colon + 1), &port) || port < 1 ||
      port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("--admin: expected host:port, got \"", admin, "\""));
  }
  const auto body = Get(admin.substr(0, colon), port);
  const auto load = body.ok() ? ParseLoad(*body) : absl::StatusOr<ServerLoad>(body.status());
  if (load.ok()) return load;
  return absl::Status(load.status().code(),
                      absl::StrCat("--admin: ", admin, ": ", load.status().message()));
}

}  // namespace kvbridge::cli
