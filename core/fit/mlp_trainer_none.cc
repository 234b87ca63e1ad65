#include "core/fit/mlp_trainer.h"

namespace kvbridge::fit {

bool CanTrain() { return false; }

absl::StatusOr<TrainedNetwork> Train(const NetworkProblem&, const TrainOptions&) {
  return absl::UnimplementedError(
      "networks are trained with LibTorch, which this program was built without "
      "(cmake -DKVBRIDGE_TORCH_DIR=…/site-packages/torch)");
}

}  // namespace kvbridge::fit
