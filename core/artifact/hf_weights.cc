#include "core/artifact/hf_weights.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "core/artifact/safetensors.h"
#include "core/base/file.h"
#include "core/base/status_macros.h"
#include "core/base/strict_json.h"
#include "core/tensor/convert.h"

namespace kvbridge::artifact {
namespace {

using base::Json;
namespace fs = std::filesystem;

constexpr uint64_t kMaxJsonBytes = uint64_t{64} << 20;
constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";

absl::StatusOr<Json> ReadJson(const fs::path& path) {
  KVB_ASSIGN_OR_RETURN(const std::string text, base::ReadFile(path, kMaxJsonBytes));
  return base::ParseStrictJson(text, path.filename().string());
}

std::string TensorName(int32_t layer) {
  return absl::StrCat("model.layers.", layer, ".self_attn.k_norm.weight");
}

// Opens each weights file once.
class ModelFiles {
 public:
  static absl::StatusOr<ModelFiles> Open(const fs::path& dir) {
    ModelFiles files(dir);
    std::error_code error;
    if (fs::exists(dir / kSingleFile, error)) return files;
    KVB_ASSIGN_OR_RETURN(const Json index, ReadJson(dir / kIndexFile));
    KVB_ASSIGN_OR_RETURN(const Json* map, base::GetObject(index, "weight_map", kIndexFile));
    files.weight_map_ = *map;
    return files;
  }

  absl::StatusOr<const StTensor*> Find(const std::string& name) {
    std::string file = kSingleFile;
    if (weight_map_.is_object()) {
      const auto entry = weight_map_.find(name);
      if (entry == weight_map_.end()) return Missing(name, kIndexFile);
      KVB_ASSIGN_OR_RETURN(file, base::GetString(weight_map_, name, kIndexFile));
      if (file != fs::path(file).filename().string()) {
        return absl::InvalidArgumentError(absl::StrCat(kIndexFile, ": expected a file name for ",
                                                       name, ", got \"", file.substr(0, 80), "\""));
      }
    }
    KVB_ASSIGN_OR_RETURN(const SafeTensors* tensors, Load(file));
    const auto tensor = tensors->tensors().find(name);
    if (tensor == tensors->tensors().end()) return Missing(name, file);
    return &tensor->second;
  }

 private:
  struct File {
    std::shared_ptr<const base::MappedFile> map;
    SafeTensors tensors;
  };

  explicit ModelFiles(fs::path dir) : dir_(std::move(dir)) {}

  static absl::Status Missing(const std::string& name, absl::string_view file) {
    return absl::NotFoundError(absl::StrCat(file, ": no tensor ", name));
  }

  absl::StatusOr<const SafeTensors*> Load(const std::string& name) {
    if (const auto open = open_.find(name); open != open_.end()) return &open->second.tensors;
    KVB_ASSIGN_OR_RETURN(auto map, base::MappedFile::Open(dir_ / name));
    KVB_ASSIGN_OR_RETURN(SafeTensors tensors, SafeTensors::Parse(map->bytes(), name));
    return &open_.emplace(name, File{std::move(map), std::move(tensors)}).first->second.tensors;
  }

  fs::path dir_;
  Json weight_map_;  // tensor -> file; null for a single file
  std::map<std::string, File> open_;
};

absl::StatusOr<std::vector<float>> ReadRow(const StTensor& tensor, const std::string& name,
                                           int64_t width) {
  const std::map<StDType, tensor::DType> readable = {{StDType::kF32, tensor::DType::kF32},
                                                     {StDType::kF16, tensor::DType::kF16},
                                                     {StDType::kBf16, tensor::DType::kBf16}};
  const auto dtype = readable.find(tensor.dtype);
  if (dtype == readable.end() || tensor.shape != std::vector<int64_t>{width}) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": expected F32, F16 or BF16 [", width,
                                                   "], got ", Name(tensor.dtype), " ",
                                                   ShapeText(tensor.shape)));
  }
  std::vector<float> row(static_cast<size_t>(width));
  tensor::DecodeRow(dtype->second, tensor.data.data(), 1.0f, row.data(), row.size());
  return row;
}

}  // namespace

absl::StatusOr<mapper::KeyNorm> ReadKeyNorm(const fs::path& model_dir, int32_t layers,
                                            int32_t head_dim) {
  mapper::KeyNorm norm{.kind = mapper::KeyNorm::Kind::kKNorm};
  KVB_ASSIGN_OR_RETURN(const Json config, ReadJson(model_dir / "config.json"));
  KVB_ASSIGN_OR_RETURN(norm.eps, base::GetFinite(config, "rms_norm_eps", "config.json"));
  KVB_ASSIGN_OR_RETURN(ModelFiles files, ModelFiles::Open(model_dir));
  for (int32_t l = 0; l < layers; ++l) {
    KVB_ASSIGN_OR_RETURN(const StTensor* tensor, files.Find(TensorName(l)));
    KVB_ASSIGN_OR_RETURN(std::vector<float> row, ReadRow(*tensor, TensorName(l), head_dim));
    norm.gamma.push_back(std::move(row));
  }
  return norm;
}

}  // namespace kvbridge::artifact
