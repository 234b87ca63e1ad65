// A family of series that carry the label `pair`, and can lose those of one pair.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include <prometheus/family.h>

namespace kvbridge::metrics {

// Thread contract: whoever owns it guards it, until it is done with what Add answered.
template <typename T>
class PairFamily {
 public:
  // `family` is borrowed.
  explicit PairFamily(prometheus::Family<T>& family) : family_(family) {}

  // Makes the series where there is none yet.
  template <typename... Args>
  T& Add(const prometheus::Labels& labels, Args&&... args) {
    T& series = family_.Add(labels, std::forward<Args>(args)...);
    by_pair_[labels.at("pair")].insert(&series);
    return series;
  }

  void Remove(const std::string& pair) {
    const auto series = by_pair_.extract(pair);
    if (series.empty()) return;
    for (T* each : series.mapped()) family_.Remove(each);
  }

 private:
  prometheus::Family<T>& family_;
  std::map<std::string, std::set<T*>> by_pair_;
};

}  // namespace kvbridge::metrics
