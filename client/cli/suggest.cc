#include "client/cli/suggest.h"

#include <algorithm>

namespace kvbridge::cli {
namespace {

// Optimal string alignment distance.
size_t Edits(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string NearestWord(const std::string& got, const std::vector<std::string>& known) {
  std::string nearest;
  size_t fewest = std::max<size_t>(1, got.size() / 3) + 1;
  for (const std::string& word : known) {
    if (const size_t edits = Edits(got, word); edits < fewest) {
      fewest = edits;
      nearest = word;
    }
  }
  return nearest;
}

}  // namespace kvbridge::cli
