#include "proto/kvbridge/v1/chunk_codec.h"

#include <memory>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "google/protobuf/unknown_field_set.h"
#include "proto/kvbridge/v1/crc32c.h"

namespace kvbridge::wire {
namespace {

using ::testing::HasSubstr;

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string Flat(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string flat;
  for (const auto& s : slices) flat.append(reinterpret_cast<const char*>(s.begin()), s.size());
  return flat;
}

// A message that arrives in slices of `piece` bytes.
grpc::ByteBuffer Buffer(const std::string& bytes, size_t piece) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += piece) slices.emplace_back(bytes.substr(at, piece));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Payload(const ReceivedChunk& chunk) {
  std::string payload;
  for (const auto& piece : chunk.data) {
    payload.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return payload;
}

v1::TransferChunk Head() {
  v1::TransferChunk head;
  head.set_layer_begin(3);
  head.set_layer_end(7);
  head.set_component(v1::COMPONENT_VALUE);
  head.set_token_begin(256);
  head.set_token_end(512);
  return head;
}

std::string Noise(size_t size) {
  std::string text(size, '\0');
  std::mt19937 random(1);
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

void ExpectChunk(const ReceivedChunk& chunk, const std::string& payload) {
  EXPECT_EQ(chunk.head.layer_begin(), 3);
  EXPECT_EQ(chunk.head.layer_end(), 7);
  EXPECT_EQ(chunk.head.component(), v1::COMPONENT_VALUE);
  EXPECT_EQ(chunk.head.token_begin(), 256);
  EXPECT_EQ(chunk.head.token_end(), 512);
  EXPECT_TRUE(chunk.head.data().empty());
  EXPECT_EQ(chunk.bytes, payload.size());
  EXPECT_EQ(Payload(chunk), payload);
}

TEST(ChunkCodecTest, WhatIsWrittenIsOrdinaryProtobuf) {
  const std::string payload = Noise(5000);
  v1::TransferRequest request;
  ASSERT_TRUE(request.ParseFromString(Flat(SerializeRequestChunk(Head(), Bytes(payload), {}))));
  EXPECT_EQ(request.chunk().data(), payload);
  EXPECT_EQ(request.chunk().token_end(), 512);
  EXPECT_EQ(request.chunk().crc32c(), Crc32c(Bytes(payload)));

  v1::TransferEvent event;
  ASSERT_TRUE(event.ParseFromString(Flat(SerializeEventChunk(Head(), Bytes(payload), {}))));
  EXPECT_EQ(event.chunk().data(), payload);
}

// Cuts inside the framing, inside varints and inside the payload.
TEST(ChunkCodecTest, ReadsAChunkHoweverItIsSliced) {
  const std::string payload = Noise(1000);
  const std::string flat = Flat(SerializeRequestChunk(Head(), Bytes(payload), {}));
  for (const size_t piece : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, size_t{25}, size_t{300},
                             flat.size() - 1, flat.size()}) {
    auto parsed = ParseRequest(Buffer(flat, piece));
    ASSERT_TRUE(parsed.ok()) << piece << ": " << parsed.status();
    const auto& chunk = std::get<ReceivedChunk>(*parsed);
    ExpectChunk(chunk, payload);
    EXPECT_TRUE(VerifyCrc(chunk).ok());
  }
}

TEST(ChunkCodecTest, ThePayloadIsReadWhereItLies) {
  const std::string payload = Noise(1 << 20);
  const std::string flat = Flat(SerializeEventChunk(Head(), Bytes(payload), {}));
  const grpc::Slice slice(flat);
  const grpc::ByteBuffer buffer(&slice, 1);
  auto parsed = ParseEvent(buffer);
  ASSERT_TRUE(parsed.ok());
  const auto& chunk = std::get<ReceivedChunk>(*parsed);
  ASSERT_EQ(chunk.data.size(), 1u);
  EXPECT_EQ(static_cast<const void*>(chunk.data[0].data()),
            static_cast<const void*>(slice.end() - payload.size()));
}

std::string Varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}
std::string Delimited(int field, const std::string& bytes) {
  return Varint(static_cast<uint64_t>(field) << 3 | 2) + Varint(bytes.size()) + bytes;
}

TEST(ChunkCodecTest, ReadsFieldsInAnyOrder) {
  const std::string payload = Noise(700);
  const std::string head = Head().SerializeAsString();
  const std::string data = Delimited(v1::TransferChunk::kDataFieldNumber, payload);
  for (const std::string& body : {data + head, head.substr(0, 4) + data + head.substr(4)}) {
    const std::string flat = Delimited(v1::TransferRequest::kChunkFieldNumber, body);
    for (const size_t piece : {size_t{1}, size_t{100}, flat.size()}) {
      auto parsed = ParseRequest(Buffer(flat, piece));
      ASSERT_TRUE(parsed.ok()) << parsed.status();
      ExpectChunk(std::get<ReceivedChunk>(*parsed), payload);
    }
  }
}

// As generated code does: of a field that comes twice the last one counts, unknown ones are kept.
TEST(ChunkCodecTest, RepeatedAndUnknownFieldsAreReadAsProtobufSays) {
  const std::string payload = Noise(300);
  const std::string unknown = Delimited(14, Noise(400));
  const std::string twice =
      Delimited(15, "first") + Head().SerializeAsString() + Delimited(15, payload);
  const std::string extra = Head().SerializeAsString() + unknown + Delimited(15, payload);
  for (const std::string& body : {twice, extra}) {
    auto parsed = ParseRequest(Buffer(Delimited(2, body), 4096));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    ExpectChunk(std::get<ReceivedChunk>(*parsed), payload);
  }
  // A message after the chunk that is no part of it: the last member of the oneof counts.
  v1::TransferRequest header;
  header.mutable_header()->set_request_id("r");
  auto parsed = ParseRequest(Buffer(Delimited(2, twice) + header.SerializeAsString(), 64));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(std::get<v1::TransferHeader>(*parsed).request_id(), "r");
}

TEST(ChunkCodecTest, AHeadWithManyUnknownFieldsIsWrittenWhole) {
  v1::TransferChunk head = Head();
  head.GetReflection()->MutableUnknownFields(&head)->AddLengthDelimited(99)->assign(3000, 'x');
  head.set_data("ignored");
  const std::string payload = Noise(64);
  v1::TransferRequest request;
  ASSERT_TRUE(request.ParseFromString(Flat(SerializeRequestChunk(head, Bytes(payload), {}))));
  EXPECT_EQ(request.chunk().data(), payload);
  EXPECT_EQ(request.chunk().GetReflection()->GetUnknownFields(request.chunk()).field_count(), 1);
}

TEST(ChunkCodecTest, AnEmptyChunkIsWrittenAndRead) {
  auto parsed = ParseRequest(SerializeRequestChunk(Head(), {}, {}));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto& chunk = std::get<ReceivedChunk>(*parsed);
  ExpectChunk(chunk, "");
  EXPECT_TRUE(VerifyCrc(chunk).ok());
}

TEST(ChunkCodecTest, HeadersAndEventsAreParsedWhole) {
  v1::TransferRequest request;
  request.mutable_header()->set_request_id("abc");
  auto header = ParseRequest(Serialize(request));
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(std::get<v1::TransferHeader>(*header).request_id(), "abc");

  request.mutable_ready_up_to()->set_token_end(512);
  auto ready = ParseRequest(Serialize(request));
  ASSERT_TRUE(ready.ok());
  EXPECT_EQ(std::get<v1::ReadyUpTo>(*ready).token_end(), 512);

  v1::TransferEvent event;
  event.mutable_completed()->mutable_decision()->set_covered_tokens(63);
  auto completed = ParseEvent(Serialize(event));
  ASSERT_TRUE(completed.ok());
  EXPECT_EQ(std::get<v1::TransferEvent>(*completed).completed().decision().covered_tokens(), 63);
}

// A newer server may send events that this version does not know.
TEST(ChunkCodecTest, AnUnknownEventIsNoError) {
  auto parsed = ParseEvent(Buffer(Delimited(77, "news"), 3));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(std::get<v1::TransferEvent>(*parsed).event_case(), v1::TransferEvent::EVENT_NOT_SET);
}

TEST(ChunkCodecTest, OtherBytesAreRefusedByName) {
  const std::string good = Flat(SerializeRequestChunk(Head(), Bytes(Noise(500)), {}));
  for (const std::string& bad : {std::string(), std::string("garbage"), std::string(400, '\xff'),
                                 good.substr(0, 20), good.substr(0, good.size() - 1), good + '\x08',
                                 Delimited(2, Delimited(15, "x") + '\x0b')}) {
    for (const size_t piece : {size_t{1}, size_t{4096}}) {
      auto parsed = ParseRequest(Buffer(bad, piece));
      EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("TransferRequest"));
    }
  }
  EXPECT_EQ(ParseRequest(grpc::ByteBuffer()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseEvent(grpc::ByteBuffer()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseEvent(Buffer("garbage", 2)).status().code(), absl::StatusCode::kInvalidArgument);
}

// What the codec says and what generated code says never differ, whatever the bytes.
TEST(ChunkCodecTest, AgreesWithGeneratedCodeOnDamagedMessages) {
  std::mt19937 random(20240601);
  const std::string good = Flat(SerializeRequestChunk(Head(), Bytes(Noise(300)), {}));
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = good.substr(0, 1 + random() % good.size());
    if (round % 3 == 0) bytes = good;
    for (unsigned flips = random() % 3; flips > 0; --flips) {
      bytes[random() % std::min<size_t>(bytes.size(), 40)] ^= static_cast<char>(1 << random() % 8);
    }
    v1::TransferRequest expected;
    const bool ok = expected.ParseFromString(bytes) &&
                    expected.message_case() != v1::TransferRequest::MESSAGE_NOT_SET;
    auto got = ParseRequest(Buffer(bytes, 1 + random() % 50));
    ASSERT_EQ(got.ok(), ok) << "round " << round << ": " << got.status();
    if (!ok || !expected.has_chunk()) continue;
    auto& chunk = std::get<ReceivedChunk>(*got);
    chunk.head.set_data(Payload(chunk));
    EXPECT_EQ(chunk.head.SerializeAsString(), expected.chunk().SerializeAsString());
  }
}

TEST(ChunkCodecTest, ADamagedPayloadIsDataLossNamingTheChunk) {
  std::string flat = Flat(SerializeRequestChunk(Head(), Bytes(Noise(500)), {}));
  flat.back() ^= 1;
  auto parsed = ParseRequest(Buffer(flat, 100));
  ASSERT_TRUE(parsed.ok());
  const absl::Status status = VerifyCrc(std::get<ReceivedChunk>(*parsed));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("layers 3..7, tokens 256..512"));
}

TEST(ChunkCodecTest, ThePayloadIsReleasedOnceWhenTheLastReferenceGoes) {
  for (const size_t size : {size_t{0}, size_t{100}}) {
    int released = 0;
    const std::string payload = Noise(size);
    {
      grpc::ByteBuffer buffer =
          SerializeRequestChunk(Head(), Bytes(payload), [&released] { ++released; });
      grpc::ByteBuffer copy = buffer;
      buffer.Clear();
      EXPECT_EQ(released, size == 0 ? 1 : 0);
    }
    EXPECT_EQ(released, 1);
  }
}

}  // namespace
}  // namespace kvbridge::wire
