#include "server/grpc_log.h"

#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include <grpc/support/log.h>

#include "core/base/mutex.h"

namespace kvbridge::server {
namespace {

// Said at DEBUG, once per connection.
constexpr absl::string_view kHandshakeFailed = "Security handshake failed";

struct Taker {
  Log* log = nullptr;
  std::function<void()> on_handshake_failed;
};

base::Mutex mutex;
std::shared_ptr<const Taker> taker ABSL_GUARDED_BY(mutex);

std::shared_ptr<const Taker> Current() {
  base::MutexLock lock(&mutex);
  return taker;
}

void Take(gpr_log_func_args* line) {
  const auto current = Current();
  if (current == nullptr) return;
  if (absl::StartsWith(line->message, kHandshakeFailed)) return current->on_handshake_failed();
  if (line->severity < GPR_LOG_SEVERITY_ERROR) return;
  current->log->Warn("grpc", {{"text", line->message}});
}

void Set(std::shared_ptr<const Taker> next) {
  base::MutexLock lock(&mutex);
  taker = std::move(next);
}

}  // namespace

void TakeGrpcLog(Log* log, std::function<void()> on_handshake_failed) {
  Set(std::make_shared<const Taker>(Taker{log, std::move(on_handshake_failed)}));
  gpr_set_log_function(&Take);
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_DEBUG);
}

void DropGrpcLog() { Set(nullptr); }

}  // namespace kvbridge::server
