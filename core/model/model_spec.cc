#include "core/model/model_spec.h"

namespace kvbridge::model {

absl::string_view Name(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::kFull:
      return "full";
    case AttentionKind::kSliding:
      return "sliding";
    case AttentionKind::kMla:
      return "mla";
    case AttentionKind::kSsm:
      return "ssm";
    case AttentionKind::kSharedKv:
      return "shared_kv";
    case AttentionKind::kUnknown:
      break;
  }
  return "unknown";
}

}  // namespace kvbridge::model
