#include "core/fit/moments_file.h"

#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "core/artifact/spec_json.h"
#include "core/base/file.h"
#include "core/base/status_macros.h"
#include "core/fit/groups.h"

namespace kvbridge::fit {
namespace {

using artifact::SafeTensors;
using artifact::StDType;
using artifact::StTensor;
using base::Json;

constexpr char kFormat[] = "kvbridge-moments";
constexpr char kSchema[] = "1";
constexpr int64_t kMaxRows = int64_t{1} << 53;
constexpr Layout kLayouts[] = {Layout::kFull, Layout::kHeadLocal, Layout::kJoint};
constexpr MomentField kFields[] = {MomentField::kMeanX, MomentField::kMeanY, MomentField::kGram,
                                   MomentField::kCross, MomentField::kTargetSs};

absl::string_view Suffix(MomentField field) {
  switch (field) {
    case MomentField::kMeanX:
      return ".mean_x";
    case MomentField::kMeanY:
      return ".mean_y";
    case MomentField::kGram:
      return ".gram";
    case MomentField::kCross:
      return ".cross";
    case MomentField::kTargetSs:
      return ".target_ss";
  }
  return "";
}

std::vector<int64_t> ShapeOf(const MomentGroup& group, MomentField field) {
  switch (field) {
    case MomentField::kMeanX:
      return {group.feature_columns};
    case MomentField::kGram:
      return {group.feature_columns, group.feature_columns};
    case MomentField::kCross:
      return {group.feature_columns, group.target_columns};
    case MomentField::kMeanY:
    case MomentField::kTargetSs:
      break;
  }
  return {group.target_columns};
}

std::string TensorName(Layout layout, const MomentGroup& group, Split split, MomentField field) {
  return absl::StrCat(GroupName(layout, group), ".", Name(split), Suffix(field));
}

absl::Status Bad(absl::string_view what, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", problem));
}

Json ToJson(const SequenceRecord& record) {
  return {{"id", record.id},
          {"domain", record.domain},
          {"split", std::string(Name(record.split))},
          {"rows", record.rows},
          {"row_weight", record.row_weight},
          {"digests", record.digests}};
}

absl::StatusOr<SequenceRecord> RecordFromJson(const Json& json, const std::string& path) {
  if (!json.is_object()) return Bad(path, "expected an object");
  KVB_RETURN_IF_ERROR(base::RefuseUnknownKeys(
      json, {"id", "domain", "split", "rows", "row_weight", "digests"}, path));
  SequenceRecord record;
  KVB_ASSIGN_OR_RETURN(record.id, base::GetString(json, "id", path));
  KVB_ASSIGN_OR_RETURN(record.domain, base::GetString(json, "domain", path));
  KVB_ASSIGN_OR_RETURN(const std::string split, base::GetString(json, "split", path));
  if (split != "fit" && split != "held_out") {
    return Bad(path, "split: expected \"fit\" or \"held_out\"");
  }
  record.split = split == "fit" ? Split::kFit : Split::kHeldOut;
  KVB_ASSIGN_OR_RETURN(record.rows, base::GetInt(json, "rows", path, 1, kMaxRows));
  KVB_ASSIGN_OR_RETURN(record.row_weight, base::GetFinite(json, "row_weight", path));
  if (record.row_weight <= 0) return Bad(path, "row_weight: expected above 0");
  KVB_ASSIGN_OR_RETURN(const Json* digests, base::GetArray(json, "digests", path));
  for (const Json& digest : *digests) {
    if (!digest.is_string()) return Bad(path, "digests: expected strings");
    record.digests.push_back(digest.get<std::string>());
  }
  return record;
}

absl::StatusOr<std::string> Word(const SafeTensors& file, const std::string& key,
                                 absl::string_view what) {
  const auto it = file.metadata().find(key);
  if (it == file.metadata().end()) return Bad(what, absl::StrCat("metadata ", key, " is missing"));
  return it->second;
}

absl::StatusOr<Json> JsonMember(const SafeTensors& file, const std::string& key,
                                absl::string_view what) {
  KVB_ASSIGN_OR_RETURN(const std::string text, Word(file, key, what));
  return base::ParseStrictJson(text, absl::StrCat(what, " metadata ", key));
}

absl::StatusOr<MomentsHeader> ReadHeader(const SafeTensors& file, absl::string_view what) {
  for (const auto& [key, expected] : {std::pair("format", kFormat), std::pair("schema", kSchema)}) {
    KVB_ASSIGN_OR_RETURN(const std::string got, Word(file, key, what));
    if (got != expected) {
      return Bad(what, absl::StrCat("metadata ", key, ": expected \"", expected, "\", got \"",
                                    got.substr(0, 40), "\""));
    }
  }
  MomentsHeader header;
  KVB_ASSIGN_OR_RETURN(const std::string keys, Word(file, "keys", what));
  if (keys != "stripped" && keys != "roped") {
    return Bad(what, "metadata keys: expected \"stripped\" or \"roped\"");
  }
  header.strip_rope = keys == "stripped";
  KVB_ASSIGN_OR_RETURN(const std::string layout, Word(file, "layout", what));
  std::optional<Layout> known;
  for (const Layout candidate : kLayouts) {
    if (Name(candidate) == layout) known = candidate;
  }
  if (!known) return Bad(what, "metadata layout: expected full, head_local or joint");
  header.layout = *known;
  for (const Role role : kRoles) {
    const std::string key(Name(role));
    KVB_ASSIGN_OR_RETURN(const Json json, JsonMember(file, key, what));
    KVB_ASSIGN_OR_RETURN(header.specs.of(role),
                         artifact::SpecFromJson(json, absl::StrCat(what, " ", key)));
  }
  KVB_ASSIGN_OR_RETURN(header.provenance, JsonMember(file, "provenance", what));
  KVB_ASSIGN_OR_RETURN(const Json sequences, JsonMember(file, "sequences", what));
  if (!sequences.is_array()) return Bad(what, "metadata sequences: expected an array");
  for (const Json& item : sequences) {
    const std::string path = absl::StrCat(what, " sequences[", header.sequences.size(), "]");
    KVB_ASSIGN_OR_RETURN(SequenceRecord record, RecordFromJson(item, path));
    header.sequences.push_back(std::move(record));
  }
  return header;
}

std::map<std::string, std::string> MetadataOf(const MomentsHeader& header) {
  Json sequences = Json::array();
  for (const SequenceRecord& record : header.sequences) sequences.push_back(ToJson(record));
  const auto spec = [&](Role role) {
    return base::CanonicalJson(artifact::SpecToJson(header.specs.of(role)));
  };
  return {{"format", kFormat},
          {"schema", kSchema},
          {"layout", std::string(Name(header.layout))},
          {"keys", header.strip_rope ? "stripped" : "roped"},
          {"source", spec(Role::kSource)},
          {"target", spec(Role::kTarget)},
          {"sequences", base::CanonicalJson(sequences)},
          {"provenance", base::CanonicalJson(header.provenance)}};
}

absl::StatusOr<SplitMoments> ReadSplit(const SafeTensors& file, absl::string_view what,
                                       const MomentsHeader& header, const MomentGroup& group,
                                       Split split) {
  SplitMoments moments;
  moments.rows = header.rows(split);
  moments.weight = header.weight(split);
  if (moments.rows == 0) return moments;
  const auto member = [&](MomentField field) -> std::span<const double>& {
    switch (field) {
      case MomentField::kMeanX:
        return moments.mean_x;
      case MomentField::kMeanY:
        return moments.mean_y;
      case MomentField::kGram:
        return moments.gram;
      case MomentField::kCross:
        return moments.cross;
      case MomentField::kTargetSs:
        break;
    }
    return moments.target_ss;
  };
  for (const MomentField field : kFields) {
    const std::string name = TensorName(header.layout, group, split, field);
    KVB_ASSIGN_OR_RETURN(const StTensor* tensor,
                         file.Find(name, StDType::kF64, ShapeOf(group, field)));
    if (reinterpret_cast<uintptr_t>(tensor->data.data()) % alignof(double) != 0) {
      return Bad(what, absl::StrCat("tensor \"", name, "\": expected to begin at a multiple of 8"));
    }
    member(field) = {reinterpret_cast<const double*>(tensor->data.data()),
                     tensor->data.size() / sizeof(double)};
  }
  return moments;
}

}  // namespace

int64_t MomentsHeader::rows(Split split) const {
  int64_t rows = 0;
  for (const SequenceRecord& s : sequences) rows += s.split == split ? s.rows : 0;
  return rows;
}

double MomentsHeader::weight(Split split) const {
  double weight = 0;
  for (const SequenceRecord& s : sequences) {
    if (s.split == split) weight += s.row_weight * static_cast<double>(s.rows);
  }
  return weight;
}

absl::StatusOr<MomentsFile> ReadMoments(const std::filesystem::path& path) {
  const std::string what = path.filename().string();
  KVB_ASSIGN_OR_RETURN(auto mapped, base::MappedFile::Open(path));
  KVB_ASSIGN_OR_RETURN(const SafeTensors file, SafeTensors::Parse(mapped->bytes(), what));
  MomentsFile result;
  KVB_ASSIGN_OR_RETURN(result.header, ReadHeader(file, what));
  const MomentsHeader& header = result.header;
  Moments& moments = result.moments;
  moments.source = header.specs.source;
  moments.target = header.specs.target;
  moments.strip_rope = header.strip_rope;
  moments.layout = header.layout;
  KVB_ASSIGN_OR_RETURN(moments.groups,
                       MakeGroups(header.layout, moments.source.geometry, moments.target.geometry));
  for (MomentGroup& group : moments.groups) {
    KVB_ASSIGN_OR_RETURN(group.fit, ReadSplit(file, what, header, group, Split::kFit));
    KVB_ASSIGN_OR_RETURN(group.held_out, ReadSplit(file, what, header, group, Split::kHeldOut));
  }
  KVB_RETURN_IF_ERROR(mapped->CheckUnchanged());
  moments.storage = std::move(mapped);
  return result;
}

absl::StatusOr<std::unique_ptr<MomentsWriter>> MomentsWriter::Create(
    const std::filesystem::path& path, const MomentsHeader& header) {
  std::unique_ptr<MomentsWriter> writer(new MomentsWriter(path));
  writer->kind_ = header.layout;
  KVB_ASSIGN_OR_RETURN(writer->groups_, MakeGroups(header.layout, header.specs.source.geometry,
                                                   header.specs.target.geometry));
  std::map<std::string, artifact::StShape> shapes;
  for (const MomentGroup& group : writer->groups_) {
    for (const Split split : kSplits) {
      if (header.rows(split) == 0) continue;
      for (const MomentField field : kFields) {
        shapes[TensorName(header.layout, group, split, field)] = {StDType::kF64,
                                                                  ShapeOf(group, field)};
      }
    }
  }
  KVB_ASSIGN_OR_RETURN(writer->layout_, artifact::LayOutSafeTensors(shapes, MetadataOf(header)));
  return writer;
}

absl::Status MomentsWriter::Open(bool resume) {
  KVB_ASSIGN_OR_RETURN(file_, resume ? PartialFile::Reopen(path_, layout_.file_bytes)
                                     : PartialFile::Create(path_, layout_.file_bytes));
  return file_->WriteAt(0, std::as_bytes(std::span(layout_.header)));
}

absl::Status MomentsWriter::Write(size_t group, Split split, MomentField field,
                                  const Block& block) {
  const MomentGroup& g = groups_[group];
  const uint64_t offset = layout_.offsets.at(TensorName(kind_, g, split, field));
  const auto width = static_cast<uint64_t>(ShapeOf(g, field).back());
  const bool whole = static_cast<uint64_t>(block.columns) == width && block.stride == block.columns;
  if (whole) {  // whole rows lie together
    const std::span rows(block.data, static_cast<size_t>(block.rows * block.columns));
    return file_->WriteAt(offset + block.row * width * sizeof(double), std::as_bytes(rows));
  }
  for (int64_t r = 0; r < block.rows; ++r) {
    const uint64_t at = static_cast<uint64_t>(block.row + r) * width + block.column;
    const std::span row(block.data + r * block.stride, static_cast<size_t>(block.columns));
    KVB_RETURN_IF_ERROR(file_->WriteAt(offset + at * sizeof(double), std::as_bytes(row)));
  }
  return absl::OkStatus();
}

}  // namespace kvbridge::fit
