// The control that a map must beat by far: one of the same shape and norms that knows nothing.
#pragma once

#include <cstdint>

#include "core/mapper/mapper.h"

namespace kvbridge::evidence {

// `mapper` with the weights of each (layer, component, head) replaced by random signs times their
// root mean square, so that the Frobenius norm stays; lists, biases and key renormalisation stay,
// too. The same seed gives the same weights on every machine. The result owns its weights and keeps
// `mapper.storage` alive for the rest.
mapper::Mapper RandomMap(const mapper::Mapper& mapper, uint64_t seed);

}  // namespace kvbridge::evidence
