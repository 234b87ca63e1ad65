// Takes the chunks of an answer into the target cache and proves that the answer is whole: every
// layer, component and token of the range it covers, exactly once, each with its right checksum.
//
// Thread contract: one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "client/cpp/cache_view.h"
#include "proto/kvbridge/v1/chunk_codec.h"

namespace kvbridge::client {

class AnswerSink {
 public:
  // `view` passed Validate and is borrowed. Tokens before `first_token` are in place already.
  explicit AnswerSink(const TargetView& view, int64_t first_token = 0);

  // Tokens [first_token, covered_tokens) may be written from now on; OUT_OF_RANGE when the view has
  // fewer, or when there are none.
  absl::Status Open(int64_t covered_tokens);

  // Writes one chunk. Nothing of a bad one was written, but for DATA_LOSS: that is known when the
  // bytes are in place, and ZeroWritten takes them out again.
  //   INVALID_ARGUMENT  a range outside the view or the covered tokens; bytes that don't fill it
  //   ALREADY_EXISTS    some of it came before
  //   DATA_LOSS         its checksum is wrong
  absl::Status Take(const wire::ReceivedChunk& chunk);

  // DATA_LOSS naming the first layer, component and token of [first_token, covered_tokens) that
  // never came, or one beyond it that did.
  absl::Status CheckComplete(int64_t covered_tokens) const;

  // Zeroes all that Take has written and forgets it.
  void ZeroWritten();

  int64_t bytes() const { return bytes_; }

 private:
  struct Range {
    int64_t begin;
    int64_t end;
  };
  // Sorted, apart: one range per plane as long as tokens come in order.
  using Ranges = std::vector<Range>;

  absl::Status CheckRanges(const wire::ReceivedChunk& chunk) const;

  const TargetView& view_;
  const int64_t first_token_;
  int64_t open_tokens_ = 0;
  std::vector<Ranges> written_;  // [layers * 2], as TargetView::planes
  int64_t bytes_ = 0;
};

}  // namespace kvbridge::client
