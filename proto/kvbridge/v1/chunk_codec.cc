#include "proto/kvbridge/v1/chunk_codec.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"
#include "proto/kvbridge/v1/crc32c.h"

namespace kvbridge::wire {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::ArrayInputStream;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

// Protobuf's tag of a length-delimited field.
constexpr uint32_t Tag(int field) {
  return static_cast<uint32_t>(field) << 3 | WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
}

// Everything of a chunk message but the payload fits here with a wide margin.
constexpr size_t kMaxPrefix = 256;
// A tag and a length, twice: of the chunk in its message and of the payload in its chunk.
constexpr size_t kMaxFraming = 2 * (5 + 5);

absl::Status NotAMessage(const char* what) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: expected a kvbridge.v1 message, got other bytes", what));
}

absl::StatusOr<std::vector<grpc::Slice>> SlicesOf(const grpc::ByteBuffer& message,
                                                  const char* what) {
  std::vector<grpc::Slice> slices;
  if (!message.Dump(&slices).ok()) return NotAMessage(what);
  return slices;
}

size_t TotalBytes(const std::vector<grpc::Slice>& slices) {
  size_t total = 0;
  for (const auto& slice : slices) total += slice.size();
  return total;
}

// The message's first bytes in one piece, for reading fields that may straddle slices.
std::string Prefix(const std::vector<grpc::Slice>& slices, size_t limit) {
  std::string prefix;
  for (const auto& slice : slices) {
    const size_t take = std::min(limit - prefix.size(), slice.size());
    prefix.append(reinterpret_cast<const char*>(slice.begin()), take);
    if (prefix.size() == limit) break;
  }
  return prefix;
}

// Finds where `data` starts if it is the last field of a chunk in the given oneof field, as our own
// writers send it. Other orders are legal protobuf; they take the slow path.
struct DataPosition {
  size_t offset = 0;
  v1::TransferChunk head;
};
bool FindTrailingData(const std::string& prefix, size_t total, int chunk_field, DataPosition* out) {
  CodedInputStream in(reinterpret_cast<const uint8_t*>(prefix.data()),
                      static_cast<int>(prefix.size()));
  uint32_t chunk_size = 0;
  if (in.ReadTag() != Tag(chunk_field) || !in.ReadVarint32(&chunk_size)) return false;
  const size_t head_begin = static_cast<size_t>(in.CurrentPosition());
  if (head_begin + chunk_size != total) return false;
  for (;;) {
    const auto field_begin = static_cast<size_t>(in.CurrentPosition());
    const uint32_t tag = in.ReadTag();
    if (tag == 0) return false;
    if (tag != Tag(v1::TransferChunk::kDataFieldNumber)) {
      if (!WireFormatLite::SkipField(&in, tag)) return false;
      continue;
    }
    uint32_t data_size = 0;
    if (!in.ReadVarint32(&data_size)) return false;
    out->offset = static_cast<size_t>(in.CurrentPosition());
    return out->offset + data_size == total &&
           out->head.ParseFromArray(prefix.data() + head_begin,
                                    static_cast<int>(field_begin - head_begin));
  }
}

ReceivedChunk ChunkInPlace(std::vector<grpc::Slice> slices, DataPosition position, size_t total) {
  ReceivedChunk chunk;
  chunk.head = std::move(position.head);
  chunk.bytes = total - position.offset;
  size_t begin = 0;
  for (const auto& slice : slices) {
    const size_t skip =
        position.offset > begin ? std::min(position.offset - begin, slice.size()) : 0;
    if (skip < slice.size()) {
      chunk.data.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()) + skip,
                              slice.size() - skip);
    }
    begin += slice.size();
  }
  chunk.slices = std::move(slices);
  return chunk;
}

// A chunk that generated code has parsed: its payload moves into a slice of its own.
ReceivedChunk ChunkFromMessage(v1::TransferChunk message) {
  ReceivedChunk chunk;
  auto payload = std::make_unique<std::string>(std::move(*message.mutable_data()));
  message.clear_data();
  chunk.head = std::move(message);
  chunk.bytes = payload->size();
  if (!payload->empty()) {
    std::string* raw = payload.release();
    chunk.slices.emplace_back(
        raw->data(), raw->size(), [](void* p) { delete static_cast<std::string*>(p); }, raw);
    chunk.data.emplace_back(reinterpret_cast<const std::byte*>(chunk.slices[0].begin()),
                            chunk.bytes);
  }
  return chunk;
}

// A message of a Transfer stream: its chunk if it has one, otherwise the whole.
template <typename Message>
absl::StatusOr<std::variant<Message, ReceivedChunk>> Parse(const grpc::ByteBuffer& message,
                                                           const char* what) {
  auto slices = SlicesOf(message, what);
  if (!slices.ok()) return slices.status();
  const size_t total = TotalBytes(*slices);
  DataPosition position;
  if (FindTrailingData(Prefix(*slices, kMaxPrefix), total, Message::kChunkFieldNumber, &position)) {
    return ChunkInPlace(*std::move(slices), std::move(position), total);
  }
  Message parsed;
  if (!parsed.ParseFromString(Prefix(*slices, total))) return NotAMessage(what);
  if (parsed.has_chunk()) return ChunkFromMessage(std::move(*parsed.mutable_chunk()));
  return parsed;
}

grpc::Slice SliceReleasing(std::span<const std::byte> data, std::function<void()> release) {
  auto owner = std::make_unique<std::function<void()>>(std::move(release));
  auto destroy = [](void* arg) {
    std::unique_ptr<std::function<void()>> fn(static_cast<std::function<void()>*>(arg));
    if (*fn) (*fn)();
  };
  return grpc::Slice(const_cast<std::byte*>(data.data()), data.size(), destroy, owner.release());
}

grpc::ByteBuffer SerializeChunk(int chunk_field, v1::TransferChunk head,
                                std::span<const std::byte> data, std::function<void()> release) {
  head.clear_data();
  head.set_crc32c(Crc32c(data));
  const std::string head_bytes = head.SerializeAsString();
  const auto data_size = static_cast<uint32_t>(data.size());
  const uint32_t data_tag = Tag(v1::TransferChunk::kDataFieldNumber);
  const size_t data_framing = data.empty() ? 0
                                           : CodedOutputStream::VarintSize32(data_tag) +
                                                 CodedOutputStream::VarintSize32(data_size);
  // Unknown fields travel with a head that was parsed elsewhere, so it may be long.
  std::string prefix(head_bytes.size() + kMaxFraming, '\0');
  auto* const begin = reinterpret_cast<uint8_t*>(prefix.data());
  uint8_t* p = CodedOutputStream::WriteVarint32ToArray(Tag(chunk_field), begin);
  p = CodedOutputStream::WriteVarint32ToArray(
      static_cast<uint32_t>(head_bytes.size() + data_framing + data.size()), p);
  p = std::copy(head_bytes.begin(), head_bytes.end(), p);
  if (!data.empty()) {
    p = CodedOutputStream::WriteVarint32ToArray(data_tag, p);
    p = CodedOutputStream::WriteVarint32ToArray(data_size, p);
  }
  const grpc::Slice slices[] = {grpc::Slice(prefix.data(), static_cast<size_t>(p - begin)),
                                SliceReleasing(data, std::move(release))};
  return grpc::ByteBuffer(slices, data.empty() ? 1 : 2);
}

}  // namespace

absl::StatusOr<ReceivedRequest> ParseRequest(const grpc::ByteBuffer& message) {
  auto parsed = Parse<v1::TransferRequest>(message, "TransferRequest");
  if (!parsed.ok()) return parsed.status();
  if (auto* chunk = std::get_if<ReceivedChunk>(&*parsed)) return std::move(*chunk);
  auto& request = std::get<v1::TransferRequest>(*parsed);
  if (request.has_header()) return std::move(*request.mutable_header());
  if (request.has_ready_up_to()) return request.ready_up_to();
  if (request.has_source_failed()) return std::move(*request.mutable_source_failed());
  return absl::InvalidArgumentError(
      "TransferRequest.message: expected header, chunk or ready_up_to, got none");
}

absl::StatusOr<ReceivedEvent> ParseEvent(const grpc::ByteBuffer& message) {
  return Parse<v1::TransferEvent>(message, "TransferEvent");
}

absl::Status VerifyCrc(const ReceivedChunk& chunk) {
  uint32_t crc = 0;
  for (const auto& piece : chunk.data) crc = Crc32c(piece, crc);
  return VerifyCrc(chunk.head, crc);
}

absl::Status VerifyCrc(const v1::TransferChunk& head, uint32_t crc) {
  if (crc == head.crc32c()) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "chunk.crc32c of layers %d..%d, tokens %d..%d: expected %08x (as sent), got %08x",
      head.layer_begin(), head.layer_end(), head.token_begin(), head.token_end(), head.crc32c(),
      crc));
}

grpc::ByteBuffer SerializeRequestChunk(v1::TransferChunk head, std::span<const std::byte> data,
                                       std::function<void()> release) {
  return SerializeChunk(v1::TransferRequest::kChunkFieldNumber, std::move(head), data,
                        std::move(release));
}

grpc::ByteBuffer SerializeEventChunk(v1::TransferChunk head, std::span<const std::byte> data,
                                     std::function<void()> release) {
  return SerializeChunk(v1::TransferEvent::kChunkFieldNumber, std::move(head), data,
                        std::move(release));
}

grpc::ByteBuffer Serialize(const google::protobuf::MessageLite& message) {
  std::string bytes = message.SerializeAsString();
  grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace kvbridge::wire
