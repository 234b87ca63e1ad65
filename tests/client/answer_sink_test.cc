#include "client/cpp/answer_sink.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cpp/chunk_source.h"
#include "proto/kvbridge/v1/crc32c.h"
#include "tests/client/test_cache.h"

namespace kvbridge::client {
namespace {

using ::testing::HasSubstr;

// A chunk of a filled cache, its payload in slices of `slice` bytes.
struct Chunk {
  Chunk(const TestCache& cache, const Piece& piece, size_t slice = 7) {
    ForEachRun(cache.source(), piece, [&](const std::byte* run, size_t size) {
      payload.insert(payload.end(), run, run + size);
    });
    received.head.set_layer_begin(piece.layer_begin);
    received.head.set_layer_end(piece.layer_end);
    received.head.set_component(piece.component);
    received.head.set_token_begin(piece.token_begin);
    received.head.set_token_end(piece.token_end);
    received.head.set_crc32c(wire::Crc32c(payload));
    received.bytes = payload.size();
    for (size_t at = 0; at < payload.size(); at += slice) {
      received.data.push_back(
          std::span<const std::byte>(payload).subspan(at, std::min(slice, payload.size() - at)));
    }
  }
  std::vector<std::byte> payload;
  wire::ReceivedChunk received;
};

class AnswerSinkTest : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override { source_.Fill(); }

  absl::Status Take(int layer_begin, int layer_end, v1::Component component, int64_t token_begin,
                    int64_t token_end) {
    return sink_.Take(Chunk(source_, {.layer_begin = layer_begin,
                                      .layer_end = layer_end,
                                      .component = component,
                                      .token_begin = token_begin,
                                      .token_end = token_end})
                          .received);
  }
  void TakeAll(int64_t tokens) {
    for (const auto component : {v1::COMPONENT_KEY, v1::COMPONENT_VALUE}) {
      EXPECT_TRUE(Take(0, 3, component, 0, tokens).ok());
    }
  }

  TestCache source_{kSmallShape, Layout::kHeadMajor};
  TestCache target_{kSmallShape, GetParam()};
  TargetView view_ = target_.target();
  AnswerSink sink_{view_};
};

INSTANTIATE_TEST_SUITE_P(Layouts, AnswerSinkTest,
                         ::testing::Values(Layout::kHeadMajor, Layout::kTokenMajor));

TEST_P(AnswerSinkTest, AWholeAnswerInAnyOrderIsComplete) {
  ASSERT_TRUE(sink_.Open(9).ok());
  for (const auto& [begin, end] : {std::pair{6, 9}, std::pair{0, 2}, std::pair{2, 6}}) {
    EXPECT_TRUE(Take(1, 3, v1::COMPONENT_VALUE, begin, end).ok());
    EXPECT_TRUE(Take(0, 3, v1::COMPONENT_KEY, begin, end).ok());
    EXPECT_TRUE(Take(0, 1, v1::COMPONENT_VALUE, begin, end).ok());
  }
  EXPECT_TRUE(sink_.CheckComplete(9).ok());
  EXPECT_TRUE(target_.Holds(0, 9));
  EXPECT_TRUE(target_.IsAll(TestCache::kUntouched, 9, 10));
  EXPECT_EQ(sink_.bytes(), 3 * 2 * 9 * 32);
}

TEST_P(AnswerSinkTest, WhatIsMissingIsNamed) {
  ASSERT_TRUE(sink_.Open(9).ok());
  EXPECT_TRUE(Take(0, 3, v1::COMPONENT_KEY, 0, 9).ok());
  EXPECT_TRUE(Take(0, 2, v1::COMPONENT_VALUE, 0, 9).ok());
  EXPECT_TRUE(Take(2, 3, v1::COMPONENT_VALUE, 0, 4).ok());
  EXPECT_TRUE(Take(2, 3, v1::COMPONENT_VALUE, 5, 9).ok());
  const absl::Status status = sink_.CheckComplete(9);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer 2, values, token 4 never came"));
}

TEST_P(AnswerSinkTest, AnEmptyAnswerIsOnlyCompleteForNoTokens) {
  ASSERT_TRUE(sink_.Open(9).ok());
  EXPECT_TRUE(sink_.CheckComplete(0).ok());
  EXPECT_EQ(sink_.CheckComplete(9).code(), absl::StatusCode::kDataLoss);
}

TEST_P(AnswerSinkTest, MoreThanTheDecisionSaysIsNotComplete) {
  ASSERT_TRUE(sink_.Open(9).ok());
  TakeAll(9);
  EXPECT_EQ(sink_.CheckComplete(8).code(), absl::StatusCode::kDataLoss);
}

TEST_P(AnswerSinkTest, WhatCameBeforeIsRefusedAndChangesNothing) {
  ASSERT_TRUE(sink_.Open(9).ok());
  EXPECT_TRUE(Take(0, 2, v1::COMPONENT_KEY, 2, 5).ok());
  for (const auto& [begin, end] :
       {std::pair{2, 5}, std::pair{4, 6}, std::pair{0, 3}, std::pair{3, 4}, std::pair{0, 9}}) {
    const absl::Status status = Take(1, 3, v1::COMPONENT_KEY, begin, end);
    EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << begin << ".." << end;
    EXPECT_THAT(std::string(status.message()), HasSubstr("layer 1, keys"));
  }
  EXPECT_TRUE(target_.IsAll(TestCache::kUntouched, 5, 10));
  EXPECT_TRUE(Take(1, 3, v1::COMPONENT_KEY, 5, 9).ok());
}

TEST_P(AnswerSinkTest, ADamagedChunkIsTakenOutAgain) {
  ASSERT_TRUE(sink_.Open(9).ok());
  Chunk chunk(source_, {.layer_begin = 0, .layer_end = 3, .token_begin = 0, .token_end = 9});
  chunk.payload[100] ^= std::byte{1};
  EXPECT_EQ(sink_.Take(chunk.received).code(), absl::StatusCode::kDataLoss);
  sink_.ZeroWritten();
  EXPECT_TRUE(target_.HoldsNothing());
}

TEST_P(AnswerSinkTest, RangesOutsideTheViewAreRefused) {
  ASSERT_TRUE(sink_.Open(9).ok());
  Chunk chunk(source_, {.layer_begin = 0, .layer_end = 1, .token_begin = 0, .token_end = 1});
  const auto expect_refused = [&](auto change) {
    wire::ReceivedChunk changed = chunk.received;
    change(changed);
    EXPECT_EQ(sink_.Take(changed).code(), absl::StatusCode::kInvalidArgument);
  };
  expect_refused([](auto& c) { c.head.set_layer_begin(-1); });
  expect_refused([](auto& c) { c.head.set_layer_end(4); });
  expect_refused([](auto& c) { c.head.set_layer_begin(1); });
  expect_refused([](auto& c) { c.head.set_token_begin(-1); });
  expect_refused([](auto& c) { c.head.set_token_end(10); });
  expect_refused([](auto& c) { c.head.set_token_end(int64_t{1} << 62); });
  expect_refused([](auto& c) { c.head.set_token_begin(1); });
  expect_refused([](auto& c) { c.head.set_component(v1::COMPONENT_UNSPECIFIED); });
  expect_refused([](auto& c) { c.head.set_token_end(2); });  // not the bytes that it needs
  EXPECT_TRUE(sink_.Take(chunk.received).ok());
}

TEST_P(AnswerSinkTest, MoreCoveredTokensThanTheViewHoldsAreRefused) {
  EXPECT_EQ(sink_.Open(11).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(sink_.Open(-1).code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(sink_.Open(10).ok());
}

TEST_P(AnswerSinkTest, ZeroingClearsWhatWasWrittenAndNothingElse) {
  ASSERT_TRUE(sink_.Open(9).ok());
  EXPECT_TRUE(Take(0, 3, v1::COMPONENT_KEY, 2, 5).ok());
  EXPECT_TRUE(Take(0, 3, v1::COMPONENT_VALUE, 2, 5).ok());
  sink_.ZeroWritten();
  EXPECT_TRUE(target_.IsAll(std::byte{0}, 2, 5));
  EXPECT_TRUE(target_.IsAll(TestCache::kUntouched, 0, 2));
  EXPECT_TRUE(target_.IsAll(TestCache::kUntouched, 5, 10));
  EXPECT_EQ(sink_.bytes(), 0);
}

}  // namespace
}  // namespace kvbridge::client
