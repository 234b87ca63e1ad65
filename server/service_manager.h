// Tells the service manager (systemd's protocol, sd_notify(3)) when kvbridged serves, reloads and
// stops, and, as often as it wants to hear it, that it is alive. Without a manager it does nothing.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "core/base/mutex.h"

namespace kvbridge::server {

// Thread contract: every method may be called from any thread. A manager that does not listen is
// ignored: it must not stop what it manages.
class ServiceManager {
 public:
  struct Options {
    std::string socket;       // NOTIFY_SOCKET: a path, or "@name"; empty = no manager
    absl::Duration patience;  // WATCHDOG_USEC: it kills whoever is silent for longer; 0 = never
  };
  // Whoever started the process said so in its environment.
  static Options FromEnvironment();

  // `alive` is asked from a thread of its own, while there is something to watch.
  ServiceManager(Options options, std::function<bool()> alive);
  ~ServiceManager();
  ServiceManager(const ServiceManager&) = delete;
  ServiceManager& operator=(const ServiceManager&) = delete;

  void Ready() const { Say("READY=1"); }
  // Followed by Ready, also when the old configuration stayed.
  void Reloading() const;
  void Stopping() const { Say("STOPPING=1"); }

 private:
  void Say(absl::string_view state) const;
  void Watch();

  const Options options_;
  const std::function<bool()> alive_;
  base::Mutex mutex_;
  base::CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread watch_;
};

}  // namespace kvbridge::server
