// Turns word of layers that are done for some tokens into layers that are done for all.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "kvbridge/v1/transfer.pb.h"

namespace kvbridge::client {

// Thread contract: one thread at a time; `tell` runs on it.
class LayerProgress {
 public:
  // Each of `layers` gets `tokens`. tell(begin, end): layers [begin, end) are whole; in order, each
  // layer once. May be empty.
  LayerProgress(int32_t layers, int64_t tokens, std::function<void(int32_t, int32_t)> tell)
      : left_(static_cast<size_t>(layers), tokens), tell_(std::move(tell)) {}

  // OUT_OF_RANGE for layers that there are not.
  absl::Status Add(const v1::LayersReady& ready) {
    const auto layers = static_cast<int32_t>(left_.size());
    if (ready.layer_begin() < 0 || ready.layer_end() > layers) {
      return absl::OutOfRangeError("layers_ready: a layer that the target has not");
    }
    for (int32_t layer = ready.layer_begin(); layer < ready.layer_end(); ++layer) {
      left_[static_cast<size_t>(layer)] -= ready.token_end() - ready.token_begin();
    }
    int32_t end = told_;
    while (end < layers && left_[static_cast<size_t>(end)] <= 0) ++end;
    if (end > told_ && tell_) tell_(told_, end);
    told_ = end;
    return absl::OkStatus();
  }

 private:
  std::vector<int64_t> left_;  // tokens, [layers]
  const std::function<void(int32_t, int32_t)> tell_;
  int32_t told_ = 0;
};

}  // namespace kvbridge::client
