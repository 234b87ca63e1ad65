#include "core/fit/merge.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/fit/moments_file.h"
#include "core/model/compat.h"

namespace kvbridge::fit {
namespace {

namespace fs = std::filesystem;
using base::Json;

// Numbers that are merged before they are written.
constexpr int64_t kChunk = int64_t{1} << 19;

struct Input {
  std::string name;
  MomentsFile file;
};

absl::Status CheckAlike(const Input& first, const Input& other) {
  const MomentsHeader& a = first.file.header;
  const MomentsHeader& b = other.file.header;
  const auto differ = [&](absl::string_view what, absl::string_view expected,
                          absl::string_view got) {
    return absl::InvalidArgumentError(absl::StrCat(other.name, ": ", what, ": expected ", expected,
                                                   " as in ", first.name, ", got ", got));
  };
  if (a.layout != b.layout) return differ("layout", Name(a.layout), Name(b.layout));
  const auto keys = [](const MomentsHeader& h) { return h.strip_rope ? "stripped" : "roped"; };
  if (a.strip_rope != b.strip_rope) return differ("keys", keys(a), keys(b));
  if (a.specs == b.specs) return absl::OkStatus();
  for (const Role role : kRoles) {
    if (const auto m = model::FindMismatch(a.specs.of(role), b.specs.of(role), Name(role))) {
      return absl::FailedPreconditionError(
          absl::StrCat(other.name, ": another model than in ", first.name, ": ", m->ToString()));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDisjoint(const std::vector<Input>& inputs) {
  std::map<std::string, std::string> ids, digests;  // -> file
  for (const Input& input : inputs) {
    for (const SequenceRecord& sequence : input.file.header.sequences) {
      const auto [id, fresh] = ids.emplace(sequence.id, input.name);
      if (!fresh) {
        return absl::InvalidArgumentError(absl::StrCat("sequence ", absl::CEscape(sequence.id),
                                                       " is in ", id->second, " and in ",
                                                       input.name));
      }
      for (const std::string& text : sequence.digests) {
        const auto [digest, unseen] = digests.emplace(text, input.name);
        if (unseen) continue;
        return absl::InvalidArgumentError(
            absl::StrCat(input.name, ": sequence ", absl::CEscape(sequence.id),
                         ": the same tokens are in ", digest->second));
      }
    }
  }
  return absl::OkStatus();
}

// The settings of every part, each once.
Json MergedProvenance(const std::vector<Input>& inputs) {
  std::map<std::string, Json> parts;
  for (const Input& input : inputs) {
    const Json& provenance = input.file.header.provenance;
    const auto merged = provenance.find("merged");
    if (merged == provenance.end()) {
      parts.emplace(base::CanonicalJson(provenance), provenance);
    } else {
      for (const Json& part : *merged) parts.emplace(base::CanonicalJson(part), part);
    }
  }
  if (parts.size() == 1) return parts.begin()->second;
  Json list = Json::array();
  for (const auto& [text, part] : parts) list.push_back(part);
  return {{"merged", std::move(list)}};
}

MomentsHeader MergedHeader(const std::vector<Input>& inputs) {
  MomentsHeader header = inputs.front().file.header;
  header.sequences.clear();
  for (const Input& input : inputs) {
    const auto& more = input.file.header.sequences;
    header.sequences.insert(header.sequences.end(), more.begin(), more.end());
  }
  std::sort(header.sequences.begin(), header.sequences.end(),
            [](const SequenceRecord& a, const SequenceRecord& b) { return a.id < b.id; });
  header.provenance = MergedProvenance(inputs);
  return header;
}

// One group on one split: the inputs that have rows, and how far their means are from the merged.
class GroupMerger {
 public:
  GroupMerger(std::vector<const SplitMoments*> parts, size_t group, Split split,
              MomentsWriter* writer)
      : parts_(std::move(parts)), group_(group), split_(split), writer_(writer) {
    for (const SplitMoments* part : parts_) weight_ += part->weight;
    mean_x_ = Mean(&SplitMoments::mean_x);
    mean_y_ = Mean(&SplitMoments::mean_y);
  }

  absl::Status Run(const std::stop_token& stop) {
    KVB_RETURN_IF_ERROR(WriteVector(MomentField::kMeanX, mean_x_));
    KVB_RETURN_IF_ERROR(WriteVector(MomentField::kMeanY, mean_y_));
    KVB_RETURN_IF_ERROR(WriteSquares());
    KVB_RETURN_IF_ERROR(WriteProducts(MomentField::kGram, &SplitMoments::gram,
                                      &SplitMoments::mean_x, mean_x_, stop));
    return WriteProducts(MomentField::kCross, &SplitMoments::cross, &SplitMoments::mean_y, mean_y_,
                         stop);
  }

 private:
  using Member = std::span<const double> SplitMoments::*;

  std::vector<double> Mean(Member member) const {
    std::vector<double> mean((parts_.front()->*member).size());
    for (const SplitMoments* part : parts_) {
      for (size_t j = 0; j < mean.size(); ++j) {
        mean[j] += part->weight / weight_ * (part->*member)[j];
      }
    }
    return mean;
  }

  absl::Status WriteVector(MomentField field, const std::vector<double>& values) {
    const auto n = static_cast<int64_t>(values.size());
    return writer_->Write(group_, split_, field, {0, 0, 1, n, values.data(), n});
  }

  absl::Status WriteSquares() {
    std::vector<double> squares(mean_y_.size());
    for (const SplitMoments* part : parts_) {
      for (size_t j = 0; j < squares.size(); ++j) {
        const double delta = part->mean_y[j] - mean_y_[j];
        squares[j] += part->target_ss[j] + delta * delta * part->weight;
      }
    }
    return WriteVector(MomentField::kTargetSs, squares);
  }

  // Rows follow the features, columns `member`'s; `mean` is the columns' merged mean.
  absl::Status WriteProducts(MomentField field, Member member, Member part_mean,
                             const std::vector<double>& mean, const std::stop_token& stop) {
    const auto width = static_cast<int64_t>(mean.size());
    const auto height = static_cast<int64_t>(mean_x_.size());
    const int64_t chunk = std::max<int64_t>(1, kChunk / width);
    std::vector<double> sums;
    for (int64_t begin = 0; begin < height; begin += chunk) {
      if (stop.stop_requested()) return absl::CancelledError("interrupted; nothing was written");
      const int64_t rows = std::min(chunk, height - begin);
      sums.assign(static_cast<size_t>(rows * width), 0);
      for (const SplitMoments* part : parts_) {
        const double* products = (part->*member).data() + begin * width;
        const double* means = (part->*part_mean).data();
        for (int64_t r = 0; r < rows; ++r) {
          const double delta = part->mean_x[begin + r] - mean_x_[begin + r];
          double* row = sums.data() + r * width;
          for (int64_t j = 0; j < width; ++j) {
            row[j] += products[r * width + j] + delta * (means[j] - mean[j]) * part->weight;
          }
        }
      }
      KVB_RETURN_IF_ERROR(
          writer_->Write(group_, split_, field, {begin, 0, rows, width, sums.data(), width}));
    }
    return absl::OkStatus();
  }

  const std::vector<const SplitMoments*> parts_;
  const size_t group_;
  const Split split_;
  MomentsWriter* const writer_;
  double weight_ = 0;
  std::vector<double> mean_x_;
  std::vector<double> mean_y_;
};

absl::StatusOr<std::vector<Input>> ReadInputs(const std::vector<fs::path>& paths) {
  if (paths.empty()) return absl::InvalidArgumentError("merge: expected at least one file");
  std::vector<Input> inputs;
  for (const fs::path& path : paths) {
    KVB_ASSIGN_OR_RETURN(MomentsFile file, ReadMoments(path));
    inputs.push_back({path.filename().string(), std::move(file)});
    if (inputs.back().file.header.sequences.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(inputs.back().name, ": expected at least one sequence"));
    }
    KVB_RETURN_IF_ERROR(CheckAlike(inputs.front(), inputs.back()));
  }
  KVB_RETURN_IF_ERROR(CheckDisjoint(inputs));
  // An order of their own: sums depend on it.
  std::sort(inputs.begin(), inputs.end(), [](const Input& a, const Input& b) {
    return a.file.header.sequences.front().id < b.file.header.sequences.front().id;
  });
  return inputs;
}

}  // namespace

absl::Status MergeMoments(const std::vector<fs::path>& paths, const fs::path& out,
                          const MergeOptions& options, const std::stop_token& stop) {
  std::error_code ec;
  if (!options.overwrite && fs::exists(fs::symlink_status(out, ec))) {
    return absl::AlreadyExistsError(
        absl::StrCat(out.filename().string(), ": exists; overwrite to replace it"));
  }
  KVB_ASSIGN_OR_RETURN(const std::vector<Input> inputs, ReadInputs(paths));
  KVB_ASSIGN_OR_RETURN(auto writer, MomentsWriter::Create(out, MergedHeader(inputs)));
  KVB_RETURN_IF_ERROR(writer->Open(/*resume=*/false));
  for (size_t g = 0; g < writer->groups().size(); ++g) {
    for (const Split split : kSplits) {
      std::vector<const SplitMoments*> parts;
      for (const Input& input : inputs) {
        const MomentGroup& group = input.file.moments.groups[g];
        const SplitMoments& part = split == Split::kFit ? group.fit : group.held_out;
        if (part.rows > 0) parts.push_back(&part);
      }
      if (parts.empty()) continue;
      KVB_RETURN_IF_ERROR(GroupMerger(std::move(parts), g, split, writer.get()).Run(stop));
    }
  }
  return writer->Commit();
}

}  // namespace kvbridge::fit
