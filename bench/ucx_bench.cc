// How fast core/ucx moves frames from one process to another; bench/between_hosts.py runs it beside
// iperf3 between two network namespaces.
//
//   ucx_bench receive --listen 10.0.0.2:0      prints "ADDRESS TOKEN", receives until the sender
//   goes ucx_bench send ADDRESS TOKEN --bytes N     prints {"bytes_per_second": ...}
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include <CLI/CLI.hpp>

#include "core/base/mutex.h"
#include "core/ucx/node.h"
#include "nlohmann/json.hpp"

namespace kvbridge {
namespace {

struct Options {
  std::string listen = "127.0.0.1:0";
  std::string address;
  std::string token;
  std::string transports = "tcp";
  size_t frame_bytes = 4 << 20;
  int frames = 4;
  int64_t bytes = int64_t{4} << 30;
};

// Counts down, and wakes who waits for a value.
class Counter {
 public:
  void Add(int by) {
    base::MutexLock lock(&mutex_);
    value_ += by;
    changed_.SignalAll();
  }
  void WaitBelow(int bound) {
    base::MutexLock lock(&mutex_);
    while (value_ >= bound) changed_.Wait(&mutex_);
  }

 private:
  base::Mutex mutex_;
  base::CondVar changed_;
  int value_ ABSL_GUARDED_BY(mutex_) = 0;
};

absl::Status Receive(const Options& options) {
  const auto buffers = kv::BufferPool::Create(uint64_t{4} << 30);
  const auto node = ucx::MakeNode({.listen = options.listen, .transports = options.transports});
  if (!node.ok()) return node.status();
  const auto inbox =
      (*node)->Expect({.max_frame_bytes = options.frame_bytes, .frames = options.frames}, *buffers);
  if (!inbox.ok()) return inbox.status();
  std::cout << (*node)->address() << ' ' << absl::BytesToHexString((*inbox)->token()) << std::endl;
  Counter running;
  running.Add(1);
  std::function<void(absl::StatusOr<ucx::Frame>)> next = [&](absl::StatusOr<ucx::Frame> frame) {
    if (!frame.ok()) return running.Add(-1);
    (*inbox)->Read(next);
  };
  (*inbox)->Read(next);
  running.WaitBelow(1);
  return absl::OkStatus();
}

absl::Status Send(const Options& options) {
  const auto node = ucx::MakeNode({.transports = options.transports});
  if (!node.ok()) return node.status();
  const auto outbox = (*node)->Connect(options.address, absl::HexStringToBytes(options.token));
  if (!outbox.ok()) return outbox.status();
  const std::vector<std::byte> payload(options.frame_bytes, std::byte{1});
  const int64_t count = std::max<int64_t>(1, options.bytes / static_cast<int64_t>(payload.size()));
  Counter under_way;
  base::Mutex mutex;
  absl::Status failure;
  const absl::Time start = absl::Now();
  for (int64_t i = 0; i < count; ++i) {
    under_way.WaitBelow(options.frames);
    under_way.Add(1);
    (*outbox)->Send("head", payload, [&](absl::Status status) {
      {
        base::MutexLock lock(&mutex);
        failure.Update(status);
      }
      under_way.Add(-1);
    });
  }
  under_way.WaitBelow(1);
  if (!failure.ok()) return failure;
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  const double bytes = static_cast<double>(count) * static_cast<double>(payload.size());
  std::cout << nlohmann::json{{"bytes_per_second", bytes / seconds}, {"seconds", seconds}}.dump()
            << std::endl;
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Frames over UCX");
  app.require_subcommand(1);
  CLI::App* receive = app.add_subcommand("receive", "receive one sender's frames");
  receive->add_option("--listen", options.listen, "numeric host:port");
  CLI::App* send = app.add_subcommand("send", "send frames and time them");
  send->add_option("address", options.address)->required();
  send->add_option("token", options.token)->required();
  send->add_option("--bytes", options.bytes);
  for (CLI::App* command : {receive, send}) {
    command->add_option("--transports", options.transports, "as UCX_TLS names them");
    command->add_option("--frame-bytes", options.frame_bytes);
    command->add_option("--frames", options.frames, "under way at once");
  }
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = receive->parsed() ? Receive(options) : Send(options);
  if (status.ok()) return 0;
  std::cerr << "ucx_bench: " << status << "\n";
  return 1;
}

}  // namespace
}  // namespace kvbridge

int main(int argc, char** argv) { return kvbridge::Main(argc, argv); }
