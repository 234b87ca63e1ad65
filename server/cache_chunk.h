// A piece of a cache that travels, where it lies in memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "kvbridge/v1/transfer.pb.h"

namespace kvbridge::server {

struct CacheChunk {
  v1::TransferChunk head;              // without data
  std::span<const std::byte> payload;  // dense, as transfer.proto says
  std::shared_ptr<const void> owner;   // of payload's memory
};

}  // namespace kvbridge::server
