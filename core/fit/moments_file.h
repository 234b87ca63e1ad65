// Moments on disk: a safetensors file that is mapped, not read.
//
// Tensors, F64: `<group>.<split>.mean_x` [features], `.mean_y` [targets], `.gram` [features,
// features], `.cross` [features, targets], `.target_ss` [targets]; group "key", "value", "key.3" or
// "joint", split "fit" or "held_out" (absent where nothing was held out). Metadata: format
// "kvbridge-moments", schema "1", layout, keys ("stripped", or "roped" where they were taken as
// cached), source and target (ModelSpec JSON), sequences (JSON), provenance (JSON object).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "core/artifact/safetensors_writer.h"
#include "core/base/strict_json.h"
#include "core/fit/moments.h"
#include "core/fit/partial_file.h"
#include "core/fit/shard_folder.h"

namespace kvbridge::fit {

// A sequence that went in.
struct SequenceRecord {
  std::string id;
  std::string domain;
  Split split = Split::kFit;
  int64_t rows = 0;
  double row_weight = 1;
  std::vector<std::string> digests;  // of its pieces

  friend bool operator==(const SequenceRecord&, const SequenceRecord&) = default;
};

struct MomentsHeader {
  SpecPair specs;
  bool strip_rope = true;
  Layout layout = Layout::kFull;
  std::vector<SequenceRecord> sequences;  // by id
  base::Json provenance = base::Json::object();

  int64_t rows(Split split) const;
  double weight(Split split) const;  // sum of row weights
};

struct MomentsFile {
  Moments moments;  // spans into the map
  MomentsHeader header;
};

// INVALID_ARGUMENT names what is malformed.
absl::StatusOr<MomentsFile> ReadMoments(const std::filesystem::path& path);

enum class MomentField : uint8_t { kMeanX, kMeanY, kGram, kCross, kTargetSs };

// Writes a file whose numbers become known piece by piece. Thread contract: one thread.
class MomentsWriter {
 public:
  // Lays the file out. FAILED_PRECONDITION as MakeGroups.
  static absl::StatusOr<std::unique_ptr<MomentsWriter>> Create(const std::filesystem::path& path,
                                                               const MomentsHeader& header);
  // Before anything is written: reserves the disk space, or goes on with a file that was kept.
  absl::Status Open(bool resume);

  // A block of a field: `rows` rows of `columns` numbers from (row, column) on, those of the block
  // `stride` apart. Vectors have one row.
  struct Block {
    int64_t row = 0;
    int64_t column = 0;
    int64_t rows = 1;
    int64_t columns = 0;
    const double* data = nullptr;
    int64_t stride = 0;
  };
  absl::Status Write(size_t group, Split split, MomentField field, const Block& block);

  absl::Status Sync() { return file_->Sync(); }
  absl::Status Commit() { return file_->Commit(); }
  // Whether a file that was not committed stays for a resume or goes with the writer.
  void Keep(bool keep) { file_->Keep(keep); }

  const std::vector<MomentGroup>& groups() const { return groups_; }
  // The file's first bytes: everything but the numbers.
  const std::string& header() const { return layout_.header; }

 private:
  explicit MomentsWriter(std::filesystem::path path) : path_(std::move(path)) {}

  const std::filesystem::path path_;
  Layout kind_ = Layout::kFull;
  std::vector<MomentGroup> groups_;
  artifact::StLayout layout_;
  std::unique_ptr<PartialFile> file_;
};

}  // namespace kvbridge::fit
