// Reads the few tensors of a Hugging Face model folder that a mapper needs.
#pragma once

#include <cstdint>
#include <filesystem>

#include "absl/status/statusor.h"

#include "core/mapper/mapper.h"

namespace kvbridge::artifact {

// The k_norm of a model with `layers` layers of `head_dim`:
// model.layers.{l}.self_attn.k_norm.weight (F32, F16 or BF16) from model.safetensors, or from the
// shards that model.safetensors.index.json names, and rms_norm_eps from config.json. NOT_FOUND when
// the model has no k_norm; INVALID_ARGUMENT names the file and tensor otherwise. Only headers and
// these tensors are read.
absl::StatusOr<mapper::KeyNorm> ReadKeyNorm(const std::filesystem::path& model_dir, int32_t layers,
                                            int32_t head_dim);

}  // namespace kvbridge::artifact
