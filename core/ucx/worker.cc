#include "core/ucx/worker.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include <poll.h>
#include <sys/eventfd.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/status_macros.h"
#include "core/ucx/status.h"

namespace kvbridge::ucx {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kStopTimeout = absl::Seconds(2);

// Loading libucs takes over the signals of crashes (core/base/bus_guard needs SIGBUS, core dumps
// the rest). Given back before main runs; and what fails is returned, not printed on standard
// output.
const bool library_is_quiet = [] {
  for (const int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) ucs_debug_disable_signal(signal);
  return ucs_global_opts_set_value("LOG_LEVEL", "fatal") == UCS_OK;
}();

absl::Status Configure(ucp_config_t* config, const std::string& transports) {
  const std::pair<const char*, const char*> settings[] = {
      {"TLS", transports.c_str()},
      {"SOCKADDR_TLS_PRIORITY", "tcp"},
      {"TCP_CM_REUSEADDR", "y"},
      {"KEEPALIVE_INTERVAL", "5s"},
  };
  for (const auto& [name, value] : settings) {
    KVB_RETURN_IF_ERROR(FromUcs(ucp_config_modify(config, name, value),
                                absl::StrCat("ucx: setting ", name, "=", value)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<Worker>> Worker::Create(const std::string& transports) {
  std::shared_ptr<Worker> worker(new Worker());
  KVB_RETURN_IF_ERROR(worker->Open(transports));
  return worker;
}

absl::Status Worker::Open(const std::string& transports) {
  ucp_config_t* config = nullptr;
  KVB_RETURN_IF_ERROR(FromUcs(ucp_config_read(nullptr, nullptr, &config), "ucx: configuration"));
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  absl::Status made = Configure(config, transports);
  if (made.ok()) {
    made =
        FromUcs(ucp_init(&params, config, &context_), absl::StrCat("ucx.transports=", transports));
  }
  ucp_config_release(config);
  KVB_RETURN_IF_ERROR(made);

  ucp_worker_params_t worker = {};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  KVB_RETURN_IF_ERROR(FromUcs(ucp_worker_create(context_, &worker, &worker_), "ucx: worker"));
  KVB_RETURN_IF_ERROR(FromUcs(ucp_worker_get_efd(worker_, &ucx_fd_), "ucx: event descriptor"));
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) return absl::ErrnoToStatus(errno, "ucx: eventfd");
  return absl::OkStatus();
}

Worker::~Worker() {
  Stop();
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
  if (wake_fd_ >= 0) close(wake_fd_);
}

void Worker::Start(std::function<bool()> tick) {
  tick_ = std::move(tick);
  thread_ = std::thread([this] { Run(); });
}

void Worker::Stop() {
  if (!thread_.joinable()) return;
  stop_ = true;
  eventfd_write(wake_fd_, 1);
  thread_.join();
  std::vector<std::function<void()>> dropped;  // may post as they are destroyed
  base::MutexLock lock(&mutex_);
  stopped_ = true;
  dropped.swap(posted_);
}

void Worker::Post(std::function<void()> task) {
  {
    base::MutexLock lock(&mutex_);
    if (stopped_) return;
    posted_.push_back(std::move(task));
  }
  eventfd_write(wake_fd_, 1);
}

void Worker::Run() {
  absl::Time give_up = absl::InfiniteFuture();
  for (;;) {
    const bool ran = RunPosted();
    const absl::Time now = base::SteadyNow();
    if (ran || now >= next_tick_) Tick(now);
    if (ucp_worker_progress(worker_) != 0 || ran) continue;
    if (stop_) {
      if (closing_ == 0 || now > give_up) return;
      if (give_up == absl::InfiniteFuture()) give_up = now + kStopTimeout;
      next_tick_ = std::min(next_tick_, now + kTick);
    }
    if (ucp_worker_arm(worker_) == UCS_OK) Sleep();
  }
}

void Worker::Tick(absl::Time now) { next_tick_ = tick_() ? now + kTick : absl::InfiniteFuture(); }

bool Worker::RunPosted() {
  std::vector<std::function<void()>> tasks;
  {
    base::MutexLock lock(&mutex_);
    tasks.swap(posted_);
  }
  for (const auto& task : tasks) task();
  return !tasks.empty();
}

// Armed: whatever comes from now on makes the descriptor readable.
void Worker::Sleep() {
  pollfd fds[] = {{ucx_fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  poll(fds, 2, next_tick_ == absl::InfiniteFuture() ? -1 : absl::ToInt64Milliseconds(kTick));
  if (fds[1].revents == 0) return;
  eventfd_t unused;
  eventfd_read(wake_fd_, &unused);
}

void Worker::CloseEndpoint(ucp_ep_h endpoint, bool flush) {
  ucp_request_param_t param = {};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = flush ? 0 : UCP_EP_CLOSE_FLAG_FORCE;
  param.cb.send = OnClosed;
  param.user_data = this;
  if (UCS_PTR_IS_PTR(ucp_ep_close_nbx(endpoint, &param))) ++closing_;
}

void Worker::OnClosed(void* request, ucs_status_t, void* self) {
  ucp_request_free(request);
  --static_cast<Worker*>(self)->closing_;
}

}  // namespace kvbridge::ucx
