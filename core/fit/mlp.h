// The nonlinear mapper: a network for K and V of every target layer, trained on stored shards.
//
// A network stands beside the linear part of a fitted artifact, which stays as it is (the network
// begins at zero, so that training starts from the ridge solution), or alone, as in the paper
// (arXiv 2608.03893: two hidden layers of 1,024). It reads the layers that the artifact's map
// lists. What is minimised is the squared error of what serving would give: of keys un-rotated, and
// renormalised where the artifact renormalises them.
//
// A network that lowers no held-out error beside its linear part is left out of the map.
//
// Thread contract: one call at a time in a process; the work is spread over the pool and LibTorch's
// own threads.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "absl/status/statusor.h"

#include "core/artifact/artifact.h"
#include "core/base/worker_pool.h"
#include "core/fit/mlp_trainer.h"
#include "core/fit/shard_folder.h"
#include "core/fit/solve.h"

namespace kvbridge::fit {

struct MlpOptions {
  FolderOptions folder;
  TrainOptions train;         // on_epoch is not used
  bool alone = false;         // no linear part
  uint64_t memory_bytes = 0;  // for the rows of one network; 0 = no bound
  // Finished networks are kept here, one file each, so that a run that ended can go on. The caller
  // removes it when the artifact is written.
  std::filesystem::path work;
  bool resume = false;  // from what is in `work`
  std::function<void(const std::string&)> progress;
};

// INVALID_ARGUMENT: malformed shards or options, a checkpoint of other shards or settings.
// FAILED_PRECONDITION: `base` has networks already or is of another pair; the loss is not finite,
// naming the layer. RESOURCE_EXHAUSTED: the rows need more memory, with how much. ALREADY_EXISTS:
// `work` is there and `resume` was not asked. UNIMPLEMENTED without LibTorch. CANCELLED.
absl::StatusOr<Solution> FitMlp(const artifact::Artifact& base, const std::filesystem::path& shards,
                                const MlpOptions& options, base::WorkerPool* pool);

}  // namespace kvbridge::fit
