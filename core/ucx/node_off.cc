#include "core/ucx/node.h"

namespace kvbridge::ucx {

absl::StatusOr<std::unique_ptr<Node>> MakeNode(const NodeOptions&) {
  return absl::UnimplementedError(
      "ucx: expected a build with libucx 1.13 or newer (libucx-dev), got one without");
}

}  // namespace kvbridge::ucx
