// Watches what a server decides and asks now and then how it is.
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"

#include "client/cli/commands.h"
#include "client/cli/screen.h"
#include "client/cli/server_load.h"
#include "client/cli/top_view.h"
#include "client/cli/top_window.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "kvbridge/v1/transfer.pb.h"

namespace kvbridge::cli {
namespace {

// Short: Ctrl-C is heeded when it has passed.
constexpr absl::Duration kHealthTimeout = absl::Seconds(2);

// Reads decisions on a thread of its own, from construction to destruction.
class Watcher {
 public:
  // `client` is borrowed.
  explicit Watcher(client::Client* client)
      : thread_([this, client](const std::stop_token& stop) { Main(client, stop); }) {}

  // Returns early when the stream has ended or `stop` was asked for.
  void Wait(absl::Duration duration, const std::stop_token& stop) {
    const std::stop_callback wake(stop, [this] {
      base::MutexLock lock(&mutex_);
      changed_.SignalAll();
    });
    const absl::Time end = base::SteadyNow() + duration;
    base::MutexLock lock(&mutex_);
    while (!stop.stop_requested() && !ended_ && base::SteadyNow() < end) {
      changed_.WaitFor(&mutex_, end - base::SteadyNow());
    }
  }

  TopWindow::Reading Read() {
    base::MutexLock lock(&mutex_);
    return window_.Read(base::SteadyNow());
  }

  // How the stream ended; none while it goes on.
  std::optional<absl::Status> ended() {
    base::MutexLock lock(&mutex_);
    return ended_;
  }

 private:
  void Main(client::Client* client, const std::stop_token& stop) {
    const absl::Status status = client->WatchEvents(
        "",
        [this](const v1::WatchEventsResponse& response) {
          base::MutexLock lock(&mutex_);
          if (response.has_event()) window_.Add(base::SteadyNow(), response.event());
          return absl::OkStatus();
        },
        stop);
    base::MutexLock lock(&mutex_);
    ended_ = status;
    changed_.SignalAll();
  }

  base::Mutex mutex_;
  base::CondVar changed_;
  TopWindow window_ ABSL_GUARDED_BY(mutex_){base::SteadyNow()};
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);
  std::jthread thread_;  // last: it uses the others
};

class Top {
 public:
  Top(const TopFlags& flags, client::Client* client, std::stop_token stop)
      : flags_(flags), client_(*client), stop_(std::move(stop)), watcher_(client) {}

  absl::StatusOr<ExitCode> Once(const Output& output) {
    watcher_.Wait(interval(), stop_);
    KVB_ASSIGN_OR_RETURN(const TopFrame frame, Look());
    KVB_RETURN_IF_ERROR(
        output.Emit(TopDocument(frame), [&](bool color) { return TopText(frame, color); }));
    return ExitCode::kOk;
  }

  // Over and over on a terminal's own screen, or as block after block.
  absl::StatusOr<ExitCode> UntilStopped(const Output& output) {
    std::optional<Screen> screen;
    if (output.on_terminal()) screen.emplace();
    while (!stop_.stop_requested()) {
      if (!screen) watcher_.Wait(interval(), stop_);
      const auto frame = Look();
      if (stop_.stop_requested()) break;
      KVB_RETURN_IF_ERROR(frame.status());
      if (screen) {
        screen->Show(TopText(*frame, output.color()));
        watcher_.Wait(interval(), stop_);
      } else {
        KVB_RETURN_IF_ERROR(output.EmitLine(TopDocument(*frame), TopText(*frame, false)));
      }
    }
    return ExitCode::kOk;
  }

 private:
  absl::Duration interval() const { return absl::Seconds(flags_.interval_seconds); }

  absl::StatusOr<TopFrame> Look() {
    if (stop_.stop_requested()) return absl::CancelledError("interrupted");
    if (const auto ended = watcher_.ended()) {
      return ended->ok() ? absl::UnavailableError("the server ended the stream of its events")
                         : *ended;
    }
    TopFrame frame{.time = base::SystemClock().WallNow(), .reading = watcher_.Read()};
    KVB_ASSIGN_OR_RETURN(frame.health, client_.Health("", flags_.server.Timeout(kHealthTimeout)));
    if (!flags_.admin.empty()) {
      KVB_ASSIGN_OR_RETURN(frame.load, FetchLoad(flags_.admin));
    }
    return frame;
  }

  const TopFlags& flags_;
  client::Client& client_;
  const std::stop_token stop_;
  Watcher watcher_;
};

}  // namespace

absl::StatusOr<ExitCode> RunTop(const TopFlags& flags, const Output& output,
                                const std::stop_token& stop) {
  KVB_ASSIGN_OR_RETURN(const auto client, Connect(flags.server));
  Top top(flags, client.get(), stop);
  return flags.once ? top.Once(output) : top.UntilStopped(output);
}

}  // namespace kvbridge::cli
