#include "core/fit/mlp_trainer.h"

#include <dlfcn.h>

namespace kvbridge::fit {
namespace {

using TrainFunction = void (*)(const NetworkProblem&, const TrainOptions&,
                               absl::StatusOr<TrainedNetwork>*);

// LibTorch is half a gigabyte, and one command in a hundred trains: it is loaded when it is needed.
TrainFunction Trainer() {
  static const TrainFunction trainer = [] {
    void* const library = dlopen("libkvbridge_mlp_torch.so", RTLD_NOW | RTLD_LOCAL);
    return library == nullptr
               ? nullptr
               : reinterpret_cast<TrainFunction>(dlsym(library, "KvbridgeTrainNetwork"));
  }();
  return trainer;
}

}  // namespace

bool CanTrain() { return Trainer() != nullptr; }

absl::StatusOr<TrainedNetwork> Train(const NetworkProblem& problem, const TrainOptions& options) {
  if (!CanTrain()) {
    return absl::UnimplementedError(
        "networks are trained with LibTorch, which this program was built without "
        "(cmake -DKVBRIDGE_TORCH_DIR=…/site-packages/torch)");
  }
  absl::StatusOr<TrainedNetwork> trained = absl::InternalError("not trained");
  Trainer()(problem, options, &trained);
  return trained;
}

}  // namespace kvbridge::fit
