#include "core/artifact/prototype_selection.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"

namespace kvbridge::artifact {
namespace {

using base::Json;

// What the fit chooses from one row of scores.
std::vector<int32_t> BestOf(const Json& scores, size_t count) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[a].get<double>() > scores[b].get<double>();
  });
  order.resize(count);
  return order;
}

// An empty array when the manifest has none.
absl::StatusOr<Json> ReadScores(const Json& manifest, size_t rows, int64_t source_layers) {
  if (!manifest.contains("selection_scores")) return Json::array();
  KVB_ASSIGN_OR_RETURN(const Json* scores,
                       base::GetArray(manifest, "selection_scores", "manifest"));
  if (!scores->empty() && scores->size() != rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("manifest.selection_scores: expected ", rows, " rows, got ", scores->size()));
  }
  for (size_t l = 0; l < scores->size(); ++l) {
    const Json& row = (*scores)[l];
    const bool numbers =
        row.is_array() && static_cast<int64_t>(row.size()) == source_layers &&
        std::all_of(row.begin(), row.end(), [](const Json& score) { return score.is_number(); });
    if (!numbers) {
      return absl::InvalidArgumentError(
          absl::StrCat("manifest.selection_scores[", l, "]: expected ", source_layers, " numbers"));
    }
  }
  return *scores;
}

}  // namespace

absl::Status CheckPrototypeSelection(const Json& manifest,
                                     const std::vector<std::vector<int32_t>>& lists, int64_t top_k,
                                     int64_t source_layers) {
  const auto count = static_cast<size_t>(std::min(top_k, source_layers));
  KVB_ASSIGN_OR_RETURN(const Json scores, ReadScores(manifest, lists.size(), source_layers));
  for (size_t l = 0; l < lists.size(); ++l) {
    const std::string path = absl::StrCat("manifest.selected_layers[", l, "]");
    if (lists[l].size() != count) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": expected min(top_k, source layers) = ", count, " layers, got ",
                       lists[l].size()));
    }
    if (!scores.empty() && BestOf(scores[l], count) != lists[l]) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": differs from the best layers by selection_scores"));
    }
    if (scores.empty() && l > 0 && lists[l][0] < lists[l - 1][0]) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": starts with source layer ", lists[l][0], " after ", lists[l - 1][0],
                       "; without selection_scores nothing says that this is meant"));
    }
  }
  return absl::OkStatus();
}

}  // namespace kvbridge::artifact
