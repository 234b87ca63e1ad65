// Packets of a SOCK_SEQPACKET unix socket, with the descriptors that travel in them.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

#include "core/memory/unique_fd.h"

namespace kvbridge::memory {

struct FdPacket {
  std::string data;
  std::vector<UniqueFd> fds;  // every one that came, wanted or not: they are closed with the packet
  bool whole = true;          // false: data or descriptors were more than a packet may have
};

enum class Received { kPacket, kNothingYet, kClosed };

// Takes one packet of at most 128 bytes; never waits unless the socket does. A packet without data
// counts as kClosed, whatever descriptors it brought.
Received ReceivePacket(const UniqueFd& socket, FdPacket& packet);

// False when the peer is gone or has not read so many answers that this one does not fit. Never
// waits. `attached` is a descriptor, or none if invalid; it stays the caller's.
bool SendPacket(const UniqueFd& socket, absl::string_view data, const UniqueFd& attached = {});

}  // namespace kvbridge::memory
