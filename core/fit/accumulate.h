// A folder of shards in, a file of moments out.
//
// Beside `out` lie, while it runs, `out`.partial, where finished sweeps go, and `out`.checkpoint, a
// safetensors file of the running sweep's sums. A run that was interrupted or killed, and is run
// again with `resume` on the same shards and options, gives the same bytes as one that was not.
// `out` appears whole or not at all.
//
// Thread contract: one thread; the work is spread over the pool, which nobody else uses meanwhile.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "core/base/worker_pool.h"
#include "core/fit/accumulate_plan.h"
#include "core/fit/block_reader.h"
#include "core/fit/checkpoint.h"
#include "core/fit/moments_file.h"
#include "core/fit/shard_folder.h"
#include "core/fit/split_columns.h"
#include "core/fit/sweep_sums.h"

namespace kvbridge::fit {

struct AccumulateOptions {
  Layout layout = Layout::kFull;
  bool strip_rope = true;  // false: keys as they are cached
  FolderOptions folder;
  uint64_t memory_bytes = 0;  // cap on the process's resident set; 0 = none
  absl::Duration checkpoint_every = absl::Minutes(1);
  bool overwrite = false;  // replace `out`, and drop a checkpoint
  bool resume = false;     // from a checkpoint, if there is one
  bool amx = true;         // products on AMX where the machine has it (split_columns.h)
};

struct AccumulateProgress {
  size_t sweep = 0;  // from 1
  size_t sweeps = 0;
  int64_t rows = 0;  // read so far, over all sweeps
  int64_t all_rows = 0;
};

class Accumulator {
 public:
  // Opens the folder and plans. Nothing is written.
  //   INVALID_ARGUMENT     a malformed or duplicate shard, too few rows, an option out of range
  //   NOT_FOUND            no shards
  //   FAILED_PRECONDITION  two models or tokenizers, head_local with unequal heads
  //   RESOURCE_EXHAUSTED   memory_bytes is too small
  //   ALREADY_EXISTS       `out` is there and may not be overwritten, or a checkpoint is there and
  //                        neither resume nor overwrite was asked
  static absl::StatusOr<std::unique_ptr<Accumulator>> Create(const std::filesystem::path& shards,
                                                             const std::filesystem::path& out,
                                                             const AccumulateOptions& options,
                                                             base::WorkerPool* pool);

  const ShardFolder& folder() const { return folder_; }
  const AccumulatePlan& plan() const { return plan_; }

  // Once. CANCELLED when stopped: the running block was finished and a checkpoint kept. DATA_LOSS
  // when a shard changed meanwhile, INVALID_ARGUMENT for a number that is not finite, naming shard,
  // tensor, layer, head and row, RESOURCE_EXHAUSTED when the disk is full.
  absl::Status Run(const std::stop_token& stop,
                   std::function<void(const AccumulateProgress&)> on_progress);

 private:
  Accumulator(std::filesystem::path out, AccumulateOptions options, base::WorkerPool* pool)
      : out_(std::move(out)), options_(std::move(options)), pool_(pool) {}

  // One sweep over one split.
  struct Step {
    const Sweep* sweep;
    Split split;
  };

  bool amx() const { return options_.amx && SplitColumns::Available(); }
  absl::Status CheckPlaces() const;
  std::vector<Step> Steps() const;
  MomentsHeader Header() const;
  absl::StatusOr<std::string> Fingerprint() const;
  absl::StatusOr<Checkpoint> Begin();
  absl::Status RunSteps(Checkpoint from, const std::stop_token& stop);
  absl::Status RunStep(const BlockReader& reader, const Step& step, Checkpoint* at,
                       const std::stop_token& stop);
  absl::Status WriteStep(const Step& step, SweepSums* sums);
  absl::Status Save(const Checkpoint& at);
  absl::Status End(absl::Status status);

  const std::filesystem::path out_;
  const AccumulateOptions options_;
  base::WorkerPool* const pool_;
  ShardFolder folder_;
  AccumulatePlan plan_;
  std::unique_ptr<MomentsWriter> writer_;
  absl::Time saved_;
  AccumulateProgress progress_;
  std::function<void(const AccumulateProgress&)> on_progress_;
};

}  // namespace kvbridge::fit
