#include "core/ucx/frame.h"

#include "absl/strings/str_cat.h"

namespace kvbridge::ucx {
namespace {

constexpr absl::string_view kMagic = "KVU1";
constexpr size_t kFixedBytes = 28;

}  // namespace

std::string EncodeHeader(const FrameHeader& header) {
  std::string bytes = absl::StrCat(kMagic, header.token);
  for (int shift = 0; shift < 64; shift += 8) {
    bytes.push_back(static_cast<char>(header.sequence >> shift));
  }
  bytes.append(header.head.data(), header.head.size());
  return bytes;
}

absl::StatusOr<FrameHeader> ParseHeader(absl::string_view bytes) {
  if (bytes.size() < kFixedBytes || bytes.size() > kFixedBytes + kMaxHeadBytes) {
    return absl::InvalidArgumentError(absl::StrCat("frame header: expected ", kFixedBytes, " to ",
                                                   kFixedBytes + kMaxHeadBytes, " bytes, got ",
                                                   bytes.size()));
  }
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame header: expected it to begin with ", kMagic));
  }
  FrameHeader header;
  header.token = bytes.substr(kMagic.size(), kTokenBytes);
  for (int i = 7; i >= 0; --i) {
    header.sequence = header.sequence << 8 | static_cast<uint8_t>(bytes[20 + i]);
  }
  header.head = bytes.substr(kFixedBytes);
  return header;
}

}  // namespace kvbridge::ucx
