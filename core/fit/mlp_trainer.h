// Training one network: K or V of one target layer, from rows in memory.
//
// LibTorch's autograd does the work, in a library of its own (mlp_trainer_torch.cc) that the first
// call loads; where that was not built, Train answers UNIMPLEMENTED. No header of torch is needed to
// call it.
//
// Thread contract: one call at a time in a process: LibTorch's number of threads is the process's.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvbridge::fit {

// What a network is trained on: y ~ normalise(x L + b + network(x)), the linear part fixed.
struct NetworkProblem {
  int64_t inputs = 0;
  int64_t outputs = 0;
  int64_t fit_rows = 0;                // the first ones; the others are held out
  int64_t held_out_rows = 0;           // at least one
  std::span<const uint16_t> features;  // BF16 [rows, inputs]
  std::span<const float> targets;      // [rows, outputs]
  std::vector<float> linear;           // [inputs, outputs]; empty: the network stands alone
  std::vector<float> bias;             // [outputs]: where it starts; empty: at the mean of targets
  // What serving does to a sum: times `scale` [outputs], or over the RMS of it times
  // `inverse_gamma` [head_dim], for each head; empty = neither.
  std::vector<float> scale;
  std::vector<float> inverse_gamma;
  double eps = 0;
};

struct TrainOptions {
  std::vector<int32_t> hidden = {64};  // widths
  int64_t batch = 1024;                // rows of a step
  int32_t max_epochs = 60;
  // The learning rate halves after an epoch that lowered no held-out error; `patience` such epochs
  // in a row end it.
  int32_t patience = 4;
  double learning_rate = 2e-3;
  uint64_t seed = 0;
  int threads = 0;             // 0 = one per CPU
  bool bf16 = false;           // products of BF16 numbers: faster where the processor has them
  std::string device = "cpu";  // or "cuda", where this LibTorch has it
  std::stop_token stop;
  std::function<void(int32_t epoch, double held_out_error)> on_epoch;
};

// The weights of the epoch with the least held-out error, rounded to BF16.
struct TrainedNetwork {
  struct Layer {
    std::vector<uint16_t> weight;  // BF16 [inputs, width]
    std::vector<uint16_t> bias;    // BF16 [width]
  };
  std::vector<Layer> hidden;
  std::vector<uint16_t> out;   // BF16 [last width, outputs]
  std::vector<uint16_t> bias;  // BF16 [outputs]: takes the place of the linear part's
  // Held-out residual over variance: of the linear part alone (of the mean, without one), and with
  // the network as it is rounded.
  double linear_error = 1;
  double error = 1;
  int32_t epochs = 0;
};

// Whether the library that trains is there.
bool CanTrain();

// The same problem, options, machine and threads give the same bytes. UNIMPLEMENTED without
// LibTorch; INVALID_ARGUMENT for an option out of range; FAILED_PRECONDITION when the loss stops
// being finite, naming the step; CANCELLED.
absl::StatusOr<TrainedNetwork> Train(const NetworkProblem& problem, const TrainOptions& options);

}  // namespace kvbridge::fit
