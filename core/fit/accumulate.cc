#include "core/fit/accumulate.h"

#include <algorithm>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/status_macros.h"
#include "core/fit/dense.h"

namespace kvbridge::fit {
namespace {

namespace fs = std::filesystem;

fs::path CheckpointPath(const fs::path& out) { return fs::path(out) += ".checkpoint"; }

bool Exists(const fs::path& path) {
  std::error_code ec;
  return fs::exists(fs::symlink_status(path, ec));
}

// Resident set of this process now.
uint64_t ResidentBytes() {
  uint64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Accumulator>> Accumulator::Create(const fs::path& shards,
                                                                 const fs::path& out,
                                                                 const AccumulateOptions& options,
                                                                 base::WorkerPool* pool) {
  std::unique_ptr<Accumulator> result(new Accumulator(out, options, pool));
  KVB_RETURN_IF_ERROR(result->CheckPlaces());
  ShardFolder& folder = result->folder_;
  KVB_ASSIGN_OR_RETURN(folder, OpenShardFolder(shards, options.folder));
  if (!options.strip_rope && folder.keys_stripped) {
    return absl::InvalidArgumentError("keys as cached: the shards hold stripped keys only");
  }
  const int64_t rows = folder.rows(Split::kFit);
  if (options.folder.shard_count == 1 && rows < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("shards: expected at least 2 rows to fit on, got ", rows));
  }
  const PlanLimits limits{options.memory_bytes, ResidentBytes(), pool->threads(), result->amx()};
  KVB_ASSIGN_OR_RETURN(result->plan_, PlanAccumulate(folder, options.layout, limits));
  return result;
}

absl::Status Accumulator::CheckPlaces() const {
  if (Exists(out_) && !options_.overwrite) {
    return absl::AlreadyExistsError(
        absl::StrCat(out_.filename().string(), ": exists; overwrite to replace it"));
  }
  if (Exists(CheckpointPath(out_)) && !options_.resume && !options_.overwrite) {
    return absl::AlreadyExistsError(
        absl::StrCat(CheckpointPath(out_).filename().string(),
                     ": an earlier run was interrupted; resume it, or overwrite to begin anew"));
  }
  return absl::OkStatus();
}

std::vector<Accumulator::Step> Accumulator::Steps() const {
  std::vector<Step> steps;
  for (const Sweep& sweep : plan_.sweeps) {
    for (const Split split : kSplits) {
      if (folder_.rows(split) > 0) steps.push_back({&sweep, split});
    }
  }
  return steps;
}

MomentsHeader Accumulator::Header() const {
  MomentsHeader header;
  header.specs = folder_.specs;
  header.strip_rope = options_.strip_rope;
  header.layout = options_.layout;
  for (const Sequence& sequence : folder_.sequences) {
    SequenceRecord record{sequence.id,     sequence.domain,     sequence.split,
                          sequence.rows(), sequence.row_weight, {}};
    for (const Piece& piece : sequence.pieces) record.digests.push_back(piece.digest);
    header.sequences.push_back(std::move(record));
  }
  header.provenance = {{"seed", options_.folder.seed},
                       {"held_out", options_.folder.held_out},
                       {"token_stride", options_.folder.shard.token_stride}};
  return header;
}

// The header says all about the rows; the sweeps say what a checkpoint's sums are.
absl::StatusOr<std::string> Accumulator::Fingerprint() const {
  std::string text = absl::StrCat(writer_->header(), "\nblock ", kBlockRows, amx() ? " amx" : "");
  for (const Sweep& sweep : plan_.sweeps) {
    absl::StrAppend(&text, "\n", sweep.group);
    for (const Tile& tile : sweep.tiles) absl::StrAppend(&text, " ", tile.row, ",", tile.column);
  }
  return crypto::Sha256Hex(text);
}

// Opens the output, new or kept, and says where to go on.
absl::StatusOr<Checkpoint> Accumulator::Begin() {
  KVB_ASSIGN_OR_RETURN(writer_, MomentsWriter::Create(out_, Header()));
  Checkpoint begin;
  KVB_ASSIGN_OR_RETURN(begin.fingerprint, Fingerprint());
  const bool resume = options_.resume && Exists(CheckpointPath(out_));
  if (resume) {
    KVB_ASSIGN_OR_RETURN(begin, ReadCheckpoint(CheckpointPath(out_), begin.fingerprint));
  } else {
    std::error_code ec;
    fs::remove(CheckpointPath(out_), ec);
  }
  KVB_RETURN_IF_ERROR(writer_->Open(resume));
  writer_->Keep(resume);
  return begin;
}

absl::Status Accumulator::Run(const std::stop_token& stop,
                              std::function<void(const AccumulateProgress&)> on_progress) {
  on_progress_ = std::move(on_progress);
  KVB_ASSIGN_OR_RETURN(Checkpoint begin, Begin());
  saved_ = base::SteadyNow();
  return End(RunSteps(std::move(begin), stop));
}

absl::Status Accumulator::RunSteps(Checkpoint from, const std::stop_token& stop) {
  const SingleThreadedBlas single_threaded;
  const std::vector<Step> steps = Steps();
  const BlockReader reader(folder_, options_.folder.shard.token_stride, options_.strip_rope, pool_);
  progress_.sweeps = plan_.sweeps.size();
  for (size_t s = 0; s < steps.size(); ++s) {
    const int64_t rows = folder_.rows(steps[s].split);
    progress_.all_rows += rows;
    if (s < from.step) progress_.rows += rows;
  }
  while (from.step < steps.size()) {
    KVB_RETURN_IF_ERROR(RunStep(reader, steps[from.step], &from, stop));
    from = {std::move(from.fingerprint), from.step + 1, 0, {}, nullptr};
  }
  return writer_->Commit();
}

absl::Status Accumulator::RunStep(const BlockReader& reader, const Step& step, Checkpoint* at,
                                  const std::stop_token& stop) {
  const std::vector<ColumnTile>& columns = plan_.columns[step.sweep->group];
  KVB_ASSIGN_OR_RETURN(const auto sums, SweepSums::Create(*step.sweep, columns, amx(), pool_));
  if (at->block > 0) {
    if (at->state.size() != sums->state().size()) {
      return absl::InvalidArgumentError(absl::StrCat("checkpoint: state: expected ",
                                                     sums->state().size(), " numbers, got ",
                                                     at->state.size()));
    }
    std::copy(at->state.begin(), at->state.end(), sums->state().begin());
    at->storage.reset();
  }
  const std::vector<Block> blocks = reader.BlocksOf(step.split);
  progress_.sweep = static_cast<size_t>(step.sweep - plan_.sweeps.data()) + 1;
  progress_.rows += static_cast<int64_t>(at->block) * kBlockRows;
  for (; at->block < blocks.size(); ++at->block) {
    at->state = sums->state();
    if (stop.stop_requested()) {
      KVB_RETURN_IF_ERROR(Save(*at));
      return absl::CancelledError("interrupted; resume goes on from the checkpoint");
    }
    if (base::SteadyNow() - saved_ >= options_.checkpoint_every) KVB_RETURN_IF_ERROR(Save(*at));
    const Block& block = blocks[at->block];
    KVB_ASSIGN_OR_RETURN(const std::vector<float> weights,
                         reader.Read(block, *step.sweep, columns, sums.get()));
    if (at->block + 1 < blocks.size()) reader.Prefetch(blocks[at->block + 1]);
    if (const auto found = sums->AddBlock(weights)) {
      return reader.Describe(block, *step.sweep, columns, *found);
    }
    progress_.rows += static_cast<int64_t>(weights.size());
    if (on_progress_) on_progress_(progress_);
  }
  return WriteStep(step, sums.get());
}

absl::Status Accumulator::WriteStep(const Step& step, SweepSums* sums) {
  const Sweep& sweep = *step.sweep;
  const std::vector<ColumnTile>& columns = plan_.columns[sweep.group];
  const auto write = [&](MomentField field, const MomentsWriter::Block& block) {
    return writer_->Write(sweep.group, step.split, field, block);
  };
  for (size_t i = 0; i < sweep.columns.size(); ++i) {
    const ColumnTile& c = columns[sweep.columns[i]];
    const bool source = c.role == Role::kSource;
    KVB_RETURN_IF_ERROR(write(source ? MomentField::kMeanX : MomentField::kMeanY,
                              {0, c.begin, 1, c.width, sums->mean(i).data(), c.width}));
    if (source) continue;
    KVB_RETURN_IF_ERROR(write(MomentField::kTargetSs,
                              {0, c.begin, 1, c.width, sums->sum_of_squares(i).data(), c.width}));
  }
  sums->MirrorDiagonal();
  std::vector<double> transposed;
  for (size_t t = 0; t < sweep.tiles.size(); ++t) {
    const ColumnTile& x = columns[sweep.tiles[t].row];
    const ColumnTile& y = columns[sweep.tiles[t].column];
    const double* tile = sums->tile(t).data();
    const bool gram = y.role == Role::kSource;
    KVB_RETURN_IF_ERROR(write(gram ? MomentField::kGram : MomentField::kCross,
                              {x.begin, y.begin, x.width, y.width, tile, y.width}));
    if (!gram || &x == &y) continue;
    transposed.resize(static_cast<size_t>(x.width * y.width));
    for (int64_t i = 0; i < x.width; ++i) {
      for (int64_t j = 0; j < y.width; ++j) transposed[j * x.width + i] = tile[i * y.width + j];
    }
    KVB_RETURN_IF_ERROR(write(MomentField::kGram,
                              {y.begin, x.begin, y.width, x.width, transposed.data(), x.width}));
  }
  return absl::OkStatus();
}

// What finished sweeps wrote must be on disk before a checkpoint says so.
absl::Status Accumulator::Save(const Checkpoint& at) {
  KVB_RETURN_IF_ERROR(writer_->Sync());
  Checkpoint saved = at;
  if (at.block == 0) saved.state = {};
  KVB_RETURN_IF_ERROR(WriteCheckpoint(CheckpointPath(out_), saved));
  writer_->Keep(true);
  saved_ = base::SteadyNow();
  return absl::OkStatus();
}

// Bad input can't be resumed: nothing of it stays.
absl::Status Accumulator::End(absl::Status status) {
  const bool resumable =
      absl::IsCancelled(status) || absl::IsResourceExhausted(status) || absl::IsUnavailable(status);
  if (resumable && Exists(CheckpointPath(out_))) return status;
  std::error_code ec;
  fs::remove(CheckpointPath(out_), ec);
  fs::remove(fs::path(CheckpointPath(out_)) += ".partial", ec);  // of a run that was killed
  writer_->Keep(false);
  return status;
}

}  // namespace kvbridge::fit
