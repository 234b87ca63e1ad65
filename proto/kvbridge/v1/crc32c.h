// CRC-32C (Castagnoli, polynomial 0x1EDC6F41 reflected), as in iSCSI (RFC 3720, appendix B.4): the
// checksum of every inline chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvbridge::wire {

// crc of data; Crc32c(b, Crc32c(a)) == Crc32c(ab). Needs SSE4.2 (x86-64-v2, the build's baseline).
uint32_t Crc32c(std::span<const std::byte> data, uint32_t crc = 0);

// The same, copying data to `to` on the way: memory that is cold is read once instead of twice.
uint32_t CopyCrc32c(std::byte* to, std::span<const std::byte> data, uint32_t crc = 0);

}  // namespace kvbridge::wire
