// What travels between two kvbridged over UCX: one active message per frame. Its header, below,
// comes with the announcement; its payload follows by rendezvous, once the receiver has room.
//
//   offset 0    4 bytes  "KVU1"
//          4   16        token
//         20    8        sequence, little-endian: 0, 1, 2, ... of the transfer
//         28    n        head: opaque here, at most kMaxHeadBytes
//
// The payload's checksum is the head's affair: whoever copies the payload on checks it in passing.
//
// Thread contract: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvbridge::ucx {

inline constexpr size_t kTokenBytes = 16;
inline constexpr size_t kMaxHeadBytes = 1024;

struct FrameHeader {
  absl::string_view token;  // kTokenBytes
  uint64_t sequence = 0;
  absl::string_view head;
};

std::string EncodeHeader(const FrameHeader& header);

// Views into `bytes`. INVALID_ARGUMENT for what EncodeHeader did not write; the message holds
// nothing of it.
absl::StatusOr<FrameHeader> ParseHeader(absl::string_view bytes);

}  // namespace kvbridge::ucx
