#include "core/fit/groups.h"

#include "absl/strings/str_cat.h"

namespace kvbridge::fit {
namespace {

// Columns of every layer: of one head, or of all with head == -1.
std::vector<ColumnBlock> Columns(const model::KvGeometry& geometry,
                                 std::initializer_list<kv::Component> components, int32_t head) {
  const int64_t width = head < 0 ? geometry.row() : geometry.head_dim;
  std::vector<ColumnBlock> blocks;
  for (int32_t layer = 0; layer < geometry.layers; ++layer) {
    for (const kv::Component component : components) {
      blocks.push_back(
          {layer, component, head, static_cast<int64_t>(blocks.size()) * width, width});
    }
  }
  return blocks;
}

MomentGroup MakeGroup(const model::KvGeometry& source, const model::KvGeometry& target,
                      std::initializer_list<kv::Component> components, int32_t head) {
  MomentGroup group;
  group.features = Columns(source, components, head);
  group.targets = Columns(target, components, head);
  group.feature_columns = group.features.back().begin + group.features.back().width;
  group.target_columns = group.targets.back().begin + group.targets.back().width;
  return group;
}

}  // namespace

absl::StatusOr<std::vector<MomentGroup>> MakeGroups(Layout layout, const model::KvGeometry& source,
                                                    const model::KvGeometry& target) {
  if (layout == Layout::kJoint) {
    return std::vector{MakeGroup(source, target, {kv::Component::kKey, kv::Component::kValue}, -1)};
  }
  if (layout == Layout::kHeadLocal && source.kv_heads != target.kv_heads) {
    return absl::FailedPreconditionError(
        absl::StrCat("layout head_local: expected equal head counts, got ", source.kv_heads,
                     " in the source and ", target.kv_heads, " in the target"));
  }
  std::vector<MomentGroup> groups;
  for (const kv::Component component : kv::kComponents) {
    if (layout == Layout::kFull) {
      groups.push_back(MakeGroup(source, target, {component}, -1));
      continue;
    }
    for (int32_t head = 0; head < source.kv_heads; ++head) {
      groups.push_back(MakeGroup(source, target, {component}, head));
    }
  }
  return groups;
}

std::string GroupName(Layout layout, const MomentGroup& group) {
  if (layout == Layout::kJoint) return "joint";
  const ColumnBlock& first = group.features.front();
  const std::string component(kv::Name(first.component));
  return layout == Layout::kFull ? component : absl::StrCat(component, ".", first.head);
}

std::vector<HeadColumns> HeadsOf(const std::vector<ColumnBlock>& blocks, int32_t kv_heads) {
  std::vector<HeadColumns> heads;
  for (const ColumnBlock& block : blocks) {
    const int32_t begin = block.head < 0 ? 0 : block.head;
    const int32_t end = block.head < 0 ? kv_heads : block.head + 1;
    for (int32_t head = begin; head < end; ++head) {
      heads.push_back({block.component, block.layer, head});
    }
  }
  return heads;
}

}  // namespace kvbridge::fit
