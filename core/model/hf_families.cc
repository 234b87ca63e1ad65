#include "core/model/hf_families.h"

namespace kvbridge::model {
namespace {

constexpr Pairing kHalf = Pairing::kHalf, kInterleaved = Pairing::kInterleaved;

// Pairing: rotate_half (or rotate_every_two) of models/<type>/modeling_<type>.py. Defaults: its
// configuration class. Types whose default theta differs between releases 4 and 5 have none here.
constexpr HfFamily kFamilies[] = {
    {"arcee", kHalf, 1e4, 1, 0, 0},
    {"codegen", kInterleaved, 1e4, 0, 0, 0},
    {"cohere", kInterleaved, 0, 1, 0, 0},
    {"ernie4_5", kInterleaved, 5e5, 1, 128, 0},
    {"ernie4_5_moe", kInterleaved, 5e5, 1, 0, 0},
    {"gemma", kHalf, 1e4, 1, 256, 0},
    {"gemma2", kHalf, 1e4, 1, 256, 4096},
    {"gemma3_text", kHalf, 0, 1, 256, 4096},
    {"glm", kInterleaved, 1e4, 0.5, 128, 0},
    {"glm4", kInterleaved, 1e4, 0.5, 128, 0},
    {"glm4_moe", kHalf, 1e4, 0.5, 0, 0},
    {"gpt_neox", kHalf, 1e4, 0.25, 0, 0},
    {"gptj", kInterleaved, 1e4, 0, 0, 0},
    {"granite", kHalf, 1e4, 1, 0, 0},
    {"granitemoe", kHalf, 1e4, 1, 0, 0},
    {"helium", kInterleaved, 1e5, 1, 128, 0},
    {"llama", kHalf, 1e4, 1, 0, 0},
    {"ministral", kHalf, 1e4, 1, 0, 4096},
    {"ministral3", kHalf, 0, 1, 128, 0},
    {"mistral", kHalf, 1e4, 1, 0, 4096},
    {"mixtral", kHalf, 1e6, 1, 0, 0},
    {"nemotron", kHalf, 1e4, 0.5, 0, 0},
    {"olmo", kHalf, 1e4, 1, 0, 0},
    {"olmo2", kHalf, 1e4, 1, 0, 0},
    {"persimmon", kHalf, 0, 0.5, 0, 0},
    {"phi", kHalf, 1e4, 0.5, 0, 0},
    {"phi3", kHalf, 1e4, 1, 0, 0},
    {"qwen2", kHalf, 1e4, 1, 0, kOnlyIfUsed},
    {"qwen2_moe", kHalf, 1e4, 1, 0, kOnlyIfUsed},
    {"qwen3", kHalf, 1e4, 1, 128, kOnlyIfUsed},
    {"qwen3_moe", kHalf, 1e4, 1, 0, kOnlyIfUsed},
    {"seed_oss", kHalf, 1e4, 1, 128, 0},
    {"stablelm", kHalf, 1e4, 0.25, 0, 0},
    {"starcoder2", kHalf, 1e4, 1, 0, 0},
};

}  // namespace

const HfFamily* FindHfFamily(absl::string_view model_type) {
  for (const HfFamily& family : kFamilies) {
    if (family.model_type == model_type) return &family;
  }
  return nullptr;
}

}  // namespace kvbridge::model
