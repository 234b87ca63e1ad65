#include "client/cpp/answer_sink.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "proto/kvbridge/v1/crc32c.h"

namespace kvbridge::client {
namespace {

// Reads a payload that lies in several slices as if it were in one.
class PayloadReader {
 public:
  explicit PayloadReader(std::span<const std::span<const std::byte>> slices) : slices_(slices) {}

  // Copies, and keeps the checksum of all that was read.
  void Read(std::byte* to, size_t bytes) {
    while (bytes > 0) {
      const auto slice = slices_.front().subspan(offset_);
      const size_t take = std::min(bytes, slice.size());
      crc_ = wire::CopyCrc32c(to, slice.first(take), crc_);
      to += take;
      bytes -= take;
      offset_ += take;
      if (take == slice.size()) {
        slices_ = slices_.subspan(1);
        offset_ = 0;
      }
    }
  }
  uint32_t crc() const { return crc_; }

 private:
  std::span<const std::span<const std::byte>> slices_;
  size_t offset_ = 0;
  uint32_t crc_ = 0;
};

Piece PieceOf(const v1::TransferChunk& head) {
  return {.layer_begin = head.layer_begin(),
          .layer_end = head.layer_end(),
          .component = head.component(),
          .token_begin = head.token_begin(),
          .token_end = head.token_end()};
}

size_t PlaneIndex(int32_t layer, v1::Component component) {
  return 2 * static_cast<size_t>(layer) + (component == v1::COMPONENT_KEY ? 0 : 1);
}

std::string PlaneName(size_t plane) {
  return absl::StrCat("layer ", plane / 2, plane % 2 == 0 ? ", keys" : ", values");
}

}  // namespace

AnswerSink::AnswerSink(const TargetView& view, int64_t first_token)
    : view_(view), first_token_(first_token), written_(view.planes.size()) {}

absl::Status AnswerSink::Open(int64_t covered_tokens) {
  if (covered_tokens < first_token_ || covered_tokens > view_.shape.tokens) {
    return absl::OutOfRangeError(absl::StrCat("accepted.covered_tokens: expected ", first_token_,
                                              " to ", view_.shape.tokens,
                                              " (target.shape.tokens), got ", covered_tokens));
  }
  open_tokens_ = covered_tokens;
  return absl::OkStatus();
}

absl::Status AnswerSink::CheckRanges(const wire::ReceivedChunk& chunk) const {
  const v1::TransferChunk& head = chunk.head;
  if (head.component() != v1::COMPONENT_KEY && head.component() != v1::COMPONENT_VALUE) {
    return absl::InvalidArgumentError(absl::StrCat(
        "answer chunk.component: expected KEY or VALUE, got ", static_cast<int>(head.component())));
  }
  if (head.layer_begin() < 0 || head.layer_begin() >= head.layer_end() ||
      head.layer_end() > view_.shape.layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("answer chunk layers: expected a range within 0..%d, got %d..%d",
                        view_.shape.layers, head.layer_begin(), head.layer_end()));
  }
  if (head.token_begin() < first_token_ || head.token_begin() >= head.token_end() ||
      head.token_end() > open_tokens_) {
    return absl::InvalidArgumentError(
        absl::StrFormat("answer chunk tokens: expected a range within %d..%d, got %d..%d",
                        first_token_, open_tokens_, head.token_begin(), head.token_end()));
  }
  const size_t expected = PieceOf(head).cells() * view_.row_bytes();
  if (chunk.bytes != expected) {
    return absl::InvalidArgumentError(
        absl::StrFormat("answer chunk bytes: expected %d, got %d", expected, chunk.bytes));
  }
  return absl::OkStatus();
}

absl::Status AnswerSink::Take(const wire::ReceivedChunk& chunk) {
  if (absl::Status status = CheckRanges(chunk); !status.ok()) return status;
  const Piece piece = PieceOf(chunk.head);
  const auto insertion_point = [&](Ranges& ranges) {
    return std::find_if(ranges.begin(), ranges.end(),
                        [&](const Range& range) { return range.end > piece.token_begin; });
  };
  for (int32_t layer = piece.layer_begin; layer < piece.layer_end; ++layer) {
    const size_t plane = PlaneIndex(layer, piece.component);
    const auto at = insertion_point(written_[plane]);
    if (at != written_[plane].end() && at->begin < piece.token_end) {
      return absl::AlreadyExistsError(absl::StrFormat(
          "answer chunk of %s: tokens %d..%d came before", PlaneName(plane),
          std::max(at->begin, piece.token_begin), std::min(at->end, piece.token_end)));
    }
  }
  PayloadReader payload(chunk.data);
  ForEachRun(view_, piece, [&](std::byte* run, size_t bytes) { payload.Read(run, bytes); });
  bytes_ += static_cast<int64_t>(chunk.bytes);
  for (int32_t layer = piece.layer_begin; layer < piece.layer_end; ++layer) {
    Ranges& ranges = written_[PlaneIndex(layer, piece.component)];
    const auto at = ranges.insert(insertion_point(ranges), {piece.token_begin, piece.token_end});
    if (at + 1 != ranges.end() && at[1].begin == at->end) {
      at->end = at[1].end;
      ranges.erase(at + 1);
    }
    if (at != ranges.begin() && at[-1].end == at->begin) {
      at[-1].end = at->end;
      ranges.erase(at);
    }
  }
  return wire::VerifyCrc(chunk.head, payload.crc());
}

absl::Status AnswerSink::CheckComplete(int64_t covered_tokens) const {
  for (size_t plane = 0; plane < written_.size(); ++plane) {
    const Ranges& ranges = written_[plane];
    const bool from_start = !ranges.empty() && ranges[0].begin == first_token_;
    const int64_t reached = from_start ? ranges[0].end : first_token_;
    if (reached < covered_tokens) {
      return absl::DataLossError(absl::StrCat("answer: expected tokens ", first_token_, "..",
                                              covered_tokens, " in every layer; ", PlaneName(plane),
                                              ", token ", reached, " never came"));
    }
    if (reached > covered_tokens || ranges.size() > (from_start ? 1 : 0)) {
      return absl::DataLossError(absl::StrCat("answer: expected tokens ", first_token_, "..",
                                              covered_tokens, " in every layer; ", PlaneName(plane),
                                              " has more"));
    }
  }
  return absl::OkStatus();
}

void AnswerSink::ZeroWritten() {
  for (size_t plane = 0; plane < written_.size(); ++plane) {
    const auto layer = static_cast<int32_t>(plane / 2);
    for (const Range& range : written_[plane]) {
      ForEachRun(view_,
                 {.layer_begin = layer,
                  .layer_end = layer + 1,
                  .component = plane % 2 == 0 ? v1::COMPONENT_KEY : v1::COMPONENT_VALUE,
                  .token_begin = range.begin,
                  .token_end = range.end},
                 [](std::byte* run, size_t bytes) { std::memset(run, 0, bytes); });
    }
    written_[plane].clear();
  }
  bytes_ = 0;
}

}  // namespace kvbridge::client
