#include "server/http_endpoint.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/status_macros.h"

namespace kvbridge::server {
namespace {

using memory::UniqueFd;

constexpr size_t kLongestHead = 8192;
// For hearing out a client that has its answer: closed at once, it might not see it.
constexpr absl::Duration kLinger = absl::Seconds(1);
constexpr absl::Duration kPause = absl::Milliseconds(100);
constexpr int kAcceptedPerTurn = 64;

const char* Phrase(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    default:
      return "Service Unavailable";
  }
}

bool IsLoopback(const sockaddr_storage& peer) {
  if (peer.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(peer);
    return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
  }
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

int PortOf(const UniqueFd& socket) {
  sockaddr_storage name{};
  socklen_t size = sizeof(name);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&name), &size);
  return ntohs(name.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(name).sin_port
                                         : reinterpret_cast<sockaddr_in6&>(name).sin6_port);
}

// "127.0.0.1:9464" -> "127.0.0.1", "[::1]:9464" -> "::1"
std::string HostOf(absl::string_view head) {
  for (absl::string_view line : absl::StrSplit(head, "\r\n")) {
    if (!absl::StartsWithIgnoreCase(line, "host:")) continue;
    line = absl::StripAsciiWhitespace(line.substr(line.find(':') + 1));
    if (absl::ConsumePrefix(&line, "[")) return std::string(line.substr(0, line.find(']')));
    return std::string(line.substr(0, line.find(':')));
  }
  return "";
}

absl::StatusOr<UniqueFd> Listen(const std::string& host, int port) {
  const std::string where =
      absl::StrCat(absl::StrContains(host, ":") ? absl::StrCat("[", host, "]") : host, ":", port);
  const auto unavailable = [&where](const char* why) {
    return absl::UnavailableError(
        absl::StrCat("listen.admin: expected an address to bind, got ", where, ": ", why));
  };
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const char* const name = host == "localhost" ? "127.0.0.1" : host.c_str();
  const int rc = getaddrinfo(name, absl::StrCat(port).c_str(), &hints, &found);
  if (rc != 0) return unavailable(gai_strerror(rc));
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  UniqueFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (found->ai_family == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
  }
  if (bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 || listen(fd.get(), SOMAXCONN) != 0) {
    return unavailable(std::strerror(errno));
  }
  return fd;
}

}  // namespace

struct HttpEndpoint::Connection {
  enum class State {
    kReading,  // its request
    kAsked,    // waits for its answer to be made
    kWriting,  // takes it
    kLeaving,  // has it; what it still says is not read
    kOver,
  };

  // Reads what there is; never waits.
  void Hear(const Options& options) {
    char piece[4096];
    const ssize_t n = recv(fd.get(), piece, sizeof(piece), 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
      state = State::kOver;
    } else if (state == State::kReading) {
      head.append(piece, static_cast<size_t>(n));
      TakeHead(options);
    }
  }

  // A method that is not served is told so before the rest of its request has come.
  void TakeHead(const Options& options) {
    const size_t line_end = head.find("\r\n");
    if (line_end != std::string::npos) {
      const std::vector<std::string> words =
          absl::StrSplit(absl::string_view(head).substr(0, line_end), ' ');
      if (words.size() != 3 || !absl::StartsWith(words[2], "HTTP/1.") ||
          !absl::StartsWith(words[1], "/")) {
        return Say({.code = 400, .body = "expected GET /path HTTP/1.1\n"}, options);
      }
      without_body = words[0] == "HEAD";
      if (!without_body && words[0] != "GET") {
        return Say(
            {.code = 405, .body = "expected GET or HEAD\n", .headers = "Allow: GET, HEAD\r\n"},
            options);
      }
      if (absl::StrContains(head, "\r\n\r\n")) {
        const std::pair<std::string, std::string> target =
            absl::StrSplit(words[1], absl::MaxSplits('?', 1));
        request.path = target.first;
        request.query = target.second;
        request.host = HostOf(head);
        state = State::kAsked;
        end = base::SteadyNow() + options.answer_time;
        return;
      }
    }
    if (head.size() > kLongestHead) {
      Say({.code = 431, .body = absl::StrCat("expected at most ", kLongestHead, " bytes\n")},
          options);
    }
  }

  void Say(const HttpAnswer& answer, const Options& options) {
    text =
        absl::StrCat("HTTP/1.1 ", answer.code, " ", Phrase(answer.code),
                     "\r\nContent-Type: ", answer.type, "\r\nContent-Length: ", answer.body.size(),
                     "\r\nConnection: close\r\nCache-Control: no-store\r\n"
                     "X-Content-Type-Options: nosniff\r\n",
                     answer.headers, "\r\n");
    if (!without_body) text += answer.body;
    state = State::kWriting;
    end = base::SteadyNow() + options.answer_time;
    Write();
  }

  // As much as it takes now.
  void Write() {
    const ssize_t n = send(fd.get(), text.data() + written, text.size() - written, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EINTR) state = State::kOver;
    if (n < 0) return;
    written += static_cast<size_t>(n);
    if (written < text.size()) return;
    shutdown(fd.get(), SHUT_WR);
    state = State::kLeaving;
    end = base::SteadyNow() + kLinger;
  }

  UniqueFd fd;
  absl::Time end;  // of its patience
  HttpRequest request;
  State state = State::kReading;
  std::string head = {};
  bool without_body = false;
  std::string text = {};  // of the answer
  size_t written = 0;
};

absl::StatusOr<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(Options options) {
  KVB_ASSIGN_OR_RETURN(UniqueFd listener, Listen(options.host, options.port));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return absl::UnavailableError(absl::StrCat("eventfd: ", std::strerror(errno)));
  const int port = PortOf(listener);
  std::unique_ptr<HttpEndpoint> endpoint(
      new HttpEndpoint(std::move(options), std::move(listener), port, std::move(wake)));
  endpoint->thread_ = std::thread([raw = endpoint.get()] { raw->Run(); });
  return endpoint;
}

HttpEndpoint::HttpEndpoint(Options options, UniqueFd listener, int port, UniqueFd wake)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      port_(port),
      wake_(std::move(wake)) {}

HttpEndpoint::~HttpEndpoint() {
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

void HttpEndpoint::Run() {
  using State = Connection::State;
  std::vector<pollfd> polled;
  for (;;) {
    polled.assign({{wake_.get(), POLLIN, 0}, {pause_ ? -1 : listener_.get(), POLLIN, 0}});
    for (const auto& connection : connections_) {
      const bool writing = connection->state == State::kWriting;
      const bool asked = connection->state == State::kAsked;
      const short events = writing ? POLLOUT : POLLIN;
      polled.push_back({asked ? -1 : connection->fd.get(), events, 0});
    }
    if (poll(polled.data(), polled.size(), Wait()) < 0) continue;  // a signal
    if (polled[0].revents != 0) return;
    pause_ = false;
    for (size_t i = 0; i < connections_.size(); ++i) {
      if (polled[i + 2].revents == 0) continue;
      if (connections_[i]->state == State::kWriting) {
        connections_[i]->Write();
      } else {
        connections_[i]->Hear(options_);
      }
    }
    AnswerThoseWaiting();
    std::erase_if(connections_, [now = base::SteadyNow()](const auto& connection) {
      return connection->state == State::kOver || connection->end <= now;
    });
    if (polled[1].revents != 0) Accept();
  }
}

// Milliseconds until something is to be done unasked; -1 = never.
int HttpEndpoint::Wait() {
  absl::Time next = pause_ ? base::SteadyNow() + kPause : absl::InfiniteFuture();
  for (const auto& connection : connections_) {
    if (connection->state == Connection::State::kAsked) return 0;
    next = std::min(next, connection->end);
  }
  if (next == absl::InfiniteFuture()) return -1;
  const absl::Duration left = std::max(next - base::SteadyNow(), absl::ZeroDuration());
  return static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
}

void HttpEndpoint::Answer(Connection& connection) const {
  connection.Say(options_.answer(connection.request), options_);
}

// A page may take some milliseconds to make; however many are asked for, what is urgent waits for
// one of them at most.
void HttpEndpoint::AnswerThoseWaiting() {
  const auto asked = [](const auto& connection) {
    return connection->state == Connection::State::kAsked;
  };
  for (const auto& connection : connections_) {
    if (asked(connection) && options_.urgent(connection->request)) Answer(*connection);
  }
  const auto next = std::find_if(connections_.begin(), connections_.end(), asked);
  if (next != connections_.end()) Answer(**next);
}

void HttpEndpoint::Accept() {
  for (int i = 0; i < kAcceptedPerTurn; ++i) {
    sockaddr_storage peer{};
    socklen_t size = sizeof(peer);
    UniqueFd fd(accept4(listener_.get(), reinterpret_cast<sockaddr*>(&peer), &size,
                        SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
      // No descriptor is left: one of ours for it, or, where we have none, a while later.
      pause_ = connections_.empty();
      if (pause_) return;
      DropOne();
      continue;
    }
    if (connections_.size() >= options_.max_connections) DropOne();
    connections_.push_back(std::make_unique<Connection>(
        Connection{.fd = std::move(fd),
                   .end = base::SteadyNow() + options_.request_time,
                   .request = {.path = "", .query = "", .from_loopback = IsLoopback(peer)}}));
  }
}

// The oldest: a client that means to ask does so at once.
void HttpEndpoint::DropOne() {
  if (!connections_.empty()) connections_.erase(connections_.begin());
}

}  // namespace kvbridge::server
