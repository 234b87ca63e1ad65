// A client of an HTTP endpoint on this host that says what a test wants it to say.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "core/memory/unique_fd.h"
#include "gtest/gtest.h"

namespace kvbridge::server {

class HttpClient {
 public:
  explicit HttpClient(int port, int receive_buffer = 0)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer > 0) {
      setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    }
    const timeval patience{.tv_sec = 30, .tv_usec = 0};  // a test that fails ends
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, "127.0.0.1", &name.sin_addr);
    EXPECT_EQ(connect(fd_.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  }

  void Say(absl::string_view text) {
    EXPECT_EQ(send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL), ssize_t(text.size()));
  }

  // What comes until the endpoint closes; "?" at the end where it broke off or did not close.
  std::string Read() {
    std::string answer;
    char buffer[4096];
    ssize_t n = 0;
    while ((n = recv(fd_.get(), buffer, sizeof(buffer), 0)) > 0) answer.append(buffer, n);
    return n == 0 ? answer : answer + "?";
  }

 private:
  memory::UniqueFd fd_;
};

}  // namespace kvbridge::server
