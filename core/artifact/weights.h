// Between a Mapper's tensor references and the named tensors of mapper.safetensors.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "core/artifact/manifest.h"
#include "core/artifact/safetensors.h"
#include "core/mapper/mapper.h"

namespace kvbridge::artifact {

// BF16 <-> kBf16 and F32 <-> kF32, the types weights may have. INVALID_ARGUMENT for others.
absl::StatusOr<StDType> WeightsDType(tensor::DType dtype);

// The mapper that `manifest` describes with the weights of `file`, every weight and bias of type
// `dtype` (BF16 or F32). INVALID_ARGUMENT for a missing or extra tensor, a wrong type or shape, and
// whatever mapper::Validate refuses. Values are not read, except key_norm's and the scales', which
// are copied; the rest stay where they are, kept alive by `storage`.
absl::StatusOr<mapper::Mapper> AssembleMapper(const Manifest& manifest, const SafeTensors& file,
                                              StDType dtype, std::shared_ptr<const void> storage);

// The tensors of `mapper` under their names, borrowed from it.
absl::StatusOr<std::map<std::string, StTensor>> WeightTensors(const mapper::Mapper& mapper);

// The manifest of `mapper`, without `files`.
Manifest ManifestOf(const mapper::Mapper& mapper, Provenance provenance);

}  // namespace kvbridge::artifact
