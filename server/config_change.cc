#include "server/config_change.h"

#include <algorithm>

#include "absl/strings/match.h"

#include "google/protobuf/util/message_differencer.h"
#include "server/config_tree.h"

namespace kvbridge::server {
namespace {

using google::protobuf::Message;
using google::protobuf::util::MessageDifferencer;

constexpr absl::string_view kTaken[] = {"routes", "tenants", "auth", "log.level"};

// Whether `path` is one of kTaken or lies below one.
bool IsTaken(absl::string_view path) {
  return std::any_of(std::begin(kTaken), std::end(kTaken), [path](absl::string_view taken) {
    return absl::StartsWith(path, taken) &&
           (path.size() == taken.size() || path[taken.size()] == '.' || path[taken.size()] == '[');
  });
}

// Collects the paths of values that differ.
class Differences final : public MessageDifferencer::Reporter {
 public:
  using Path = std::vector<MessageDifferencer::SpecificField>;

  explicit Differences(std::vector<std::string>* paths) : paths_(*paths) {}

  void ReportAdded(const Message&, const Message&, const Path& path) override { Add(path); }
  void ReportDeleted(const Message&, const Message&, const Path& path) override { Add(path); }
  void ReportModified(const Message&, const Message&, const Path& path) override { Add(path); }

 private:
  // Lists as a whole: which of their entries moved where helps nobody. A section's own difference
  // is told by what is in it.
  void Add(const Path& fields) {
    std::string path;
    for (const MessageDifferencer::SpecificField& each : fields) {
      path += (path.empty() ? "" : ".") + each.field->name();
      if (!each.field->is_repeated() && !IsScalar(each.field)) continue;
      if (std::find(paths_.begin(), paths_.end(), path) == paths_.end()) paths_.push_back(path);
      return;
    }
  }

  std::vector<std::string>& paths_;
};

void TakeOrigins(const LoadedConfig& from, bool taken, LoadedConfig* to) {
  for (const auto& [path, origin] : from.origins) {
    if (IsTaken(path) == taken) to->origins[path] = origin;
  }
}

}  // namespace

ConfigChange TakeWhatCanChange(const LoadedConfig& running, const LoadedConfig& next) {
  ConfigChange change;
  v1::Config& config = change.effective.config;
  config = running.config;
  *config.mutable_routes() = next.config.routes();
  *config.mutable_tenants() = next.config.tenants();
  *config.mutable_auth() = next.config.auth();
  config.mutable_log()->set_level(next.config.log().level());
  TakeOrigins(running, /*taken=*/false, &change.effective);
  TakeOrigins(next, /*taken=*/true, &change.effective);
  MessageDifferencer differencer;
  Differences differences(&change.need_restart);
  differencer.ReportDifferencesTo(&differences);
  differencer.Compare(config, next.config);
  return change;
}

}  // namespace kvbridge::server
