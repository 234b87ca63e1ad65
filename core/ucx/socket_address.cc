#include "core/ucx/socket_address.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include <netdb.h>
#include <netinet/in.h>

namespace kvbridge::ucx {

absl::StatusOr<SocketAddress> SocketAddress::Parse(absl::string_view text) {
  const auto wrong = [text] {
    return absl::InvalidArgumentError(
        absl::StrCat("ucx address: expected a numeric \"host:port\", got \"", text, "\""));
  };
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return wrong();
  absl::string_view host = text.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[") && !absl::ConsumeSuffix(&host, "]")) return wrong();
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(std::string(host).c_str(), std::string(text.substr(colon + 1)).c_str(), &hints,
                  &found) != 0) {
    return wrong();
  }
  sockaddr_storage storage = {};
  std::memcpy(&storage, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return SocketAddress(storage);
}

socklen_t SocketAddress::size() const {
  return storage_.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

std::string SocketAddress::ToString() const {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  getnameinfo(get(), size(), host, sizeof(host), port, sizeof(port),
              NI_NUMERICHOST | NI_NUMERICSERV);
  return storage_.ss_family == AF_INET6 ? absl::StrCat("[", host, "]:", port)
                                        : absl::StrCat(host, ":", port);
}

}  // namespace kvbridge::ucx
