// Bulk chunks between protobuf and memory without the copy that generated code would make.
//
// On the wire a chunk message is ordinary protobuf (transfer.proto): any client library can speak
// it. Here it is read from and written to grpc::ByteBuffer, its `data` staying where it is: in the
// slices that gRPC received, or in the caller's memory until gRPC has sent it.
//
// Thread contract: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "kvbridge/v1/transfer.pb.h"

namespace kvbridge::wire {

// What both ends let gRPC read at once (GRPC_ARG_TCP_READ_CHUNK_SIZE): its default of 8 KiB makes
// 512 slices of one chunk.
inline constexpr int kReadBytes = 256 << 10;

// A received chunk. `head` has every field but `data`; `data` lies in `slices`, piece by piece.
struct ReceivedChunk {
  v1::TransferChunk head;
  std::vector<grpc::Slice> slices;               // keep the bytes alive
  std::vector<std::span<const std::byte>> data;  // in order
  size_t bytes = 0;                              // total length of data
};

using ReceivedRequest =
    std::variant<v1::TransferHeader, ReceivedChunk, v1::ReadyUpTo, v1::SourceFailed>;
// Any event but a chunk is parsed whole.
using ReceivedEvent = std::variant<v1::TransferEvent, ReceivedChunk>;

// Parse one message of the Transfer stream. INVALID_ARGUMENT for bytes that are no such message,
// including an empty one. A chunk's CRC is checked by VerifyCrc, not here.
absl::StatusOr<ReceivedRequest> ParseRequest(const grpc::ByteBuffer& message);
absl::StatusOr<ReceivedEvent> ParseEvent(const grpc::ByteBuffer& message);

// DATA_LOSS naming the chunk, expected and got, when the bytes don't match head.crc32c.
absl::Status VerifyCrc(const ReceivedChunk& chunk);
// The same for whoever computed the CRC of chunk.data while copying it.
absl::Status VerifyCrc(const v1::TransferChunk& head, uint32_t crc);

// A message whose payload stays in `data` until gRPC has sent it, when `release` is called once.
// `head.data` is ignored; crc32c is computed here.
grpc::ByteBuffer SerializeRequestChunk(v1::TransferChunk head, std::span<const std::byte> data,
                                       std::function<void()> release);
grpc::ByteBuffer SerializeEventChunk(v1::TransferChunk head, std::span<const std::byte> data,
                                     std::function<void()> release);
grpc::ByteBuffer Serialize(const google::protobuf::MessageLite& message);

}  // namespace kvbridge::wire
