// HTTP/1.1 for probes and scrapes: GET and HEAD, one request per connection. One thread serves all
// connections and waits for none of them, so that whoever says nothing, says it slowly or takes no
// answer delays nobody else. Libraries that give each connection a thread can't promise that.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "core/memory/unique_fd.h"

namespace kvbridge::server {

struct HttpRequest {
  std::string path;   // as it came, without the query
  std::string query;  // what stood behind '?'
  std::string host;   // of the Host header, without the port; empty where there is none
  bool from_loopback = false;
};

struct HttpAnswer {
  int code = 200;
  const char* type = "text/plain; charset=utf-8";
  std::string body;
  const char* headers = "";  // besides those of every answer
};

// Thread contract: constructed and destroyed by one thread; the callbacks are called from the
// endpoint's.
class HttpEndpoint {
 public:
  struct Options {
    std::string host;  // as in Address
    int port = 0;      // 0 = any
    // A further one costs the oldest its place.
    size_t max_connections = 256;
    absl::Duration request_time = absl::Seconds(2);  // for saying all of a request
    absl::Duration answer_time = absl::Seconds(5);   // for taking its answer
    // Answered before all others that wait; of those one at a time.
    std::function<bool(const HttpRequest&)> urgent;
    std::function<HttpAnswer(const HttpRequest&)> answer;
  };

  // UNAVAILABLE when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpEndpoint>> Start(Options options);
  // Finishes the page that it is making; connections are closed.
  ~HttpEndpoint();
  HttpEndpoint(const HttpEndpoint&) = delete;
  HttpEndpoint& operator=(const HttpEndpoint&) = delete;

  int port() const { return port_; }

 private:
  struct Connection;
  HttpEndpoint(Options options, memory::UniqueFd listener, int port, memory::UniqueFd wake);
  void Run();
  int Wait();
  void Accept();
  void DropOne();
  void Answer(Connection& connection) const;
  void AnswerThoseWaiting();

  const Options options_;
  const memory::UniqueFd listener_;
  const int port_;
  const memory::UniqueFd wake_;
  // The thread's.
  std::vector<std::unique_ptr<Connection>> connections_;  // as they came
  bool pause_ = false;  // there was no descriptor for another connection
  std::thread thread_;  // last: it uses the others
};

}  // namespace kvbridge::server
