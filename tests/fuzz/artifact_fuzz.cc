// Fuzz target of everything that reads an artifact's bytes: the safetensors container, the native
// manifest, and whole folders of the native and the prototype's layout.
//
// Input: u32 little-endian length of the manifest, the manifest, the weights. Digests are put right
// before a folder is loaded, so that mutations get past them.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "core/artifact/artifact.h"
#include "core/artifact/safetensors.h"
#include "core/base/strict_json.h"
#include "core/base/worker_pool.h"
#include "core/crypto/sha256.h"
#include "tests/core/artifact/file_util.h"
#include "tests/core/artifact/temp_dir.h"

namespace kvbridge::artifact {
namespace {

using base::Json;

// An error must be one that a caller can act on.
void RequireNamed(const absl::Status& status) {
  if (status.ok()) return;
  if (absl::IsInternal(status) || absl::IsUnknown(status) || status.message().empty()) {
    std::fprintf(stderr, "unnamed error: %s\n", status.ToString().c_str());
    std::abort();
  }
}

// Reads every byte that a parsed tensor claims to have: out of bounds, a sanitizer sees it.
void Touch(const SafeTensors& file) {
  [[maybe_unused]] static volatile std::byte sink;
  for (const auto& [name, tensor] : file.tensors()) {
    for (const std::byte byte : tensor.data) sink = byte;
  }
}

void PutDigestsRight(const std::string& weights, base::WorkerPool* pool, Json* manifest) {
  (*manifest)["weights_sha256"] = crypto::Sha256Hex(weights).value();
  if (!manifest->contains("files")) return;
  manifest->erase("weights_sha256");
  const crypto::TreeDigest tree = crypto::HashTree(std::as_bytes(std::span(weights)), pool).value();
  Json chunks = Json::array();
  for (const crypto::Digest& chunk : tree.chunks) chunks.push_back(crypto::ToHex(chunk));
  (*manifest)["files"] = {{"mapper.safetensors",
                           {{"bytes", weights.size()},
                            {"chunk_bytes", crypto::kTreeChunkBytes},
                            {"chunks", chunks},
                            {"sha256", crypto::ToHex(tree.root)}}}};
}

void LoadFolder(const std::string& manifest, const std::string& weights, base::WorkerPool* pool) {
  static const TempDir dir;
  // Truncating a file in place makes some file systems flush it to disk.
  std::filesystem::remove(dir / "manifest.json");
  std::filesystem::remove(dir / "mapper.safetensors");
  Spill(dir / "manifest.json", manifest);
  Spill(dir / "mapper.safetensors", weights);
  RequireNamed(LoadArtifact(dir.path(), {.pool = pool, .allow_missing_rope = true}).status());
}

void FuzzOne(const std::string& manifest, const std::string& weights) {
  static auto& pool = *base::WorkerPool::Create({.threads = 1}).value().release();
  const auto parsed = SafeTensors::Parse(std::as_bytes(std::span(weights)), "fuzz");
  RequireNamed(parsed.status());
  if (parsed.ok()) Touch(*parsed);

  LoadFolder(manifest, weights, &pool);
  auto json = base::ParseStrictJson(manifest, "fuzz");
  RequireNamed(json.status());
  if (!json.ok() || !json->is_object()) return;
  RequireNamed(ManifestFromJson(*json).status());
  PutDigestsRight(weights, &pool, &*json);
  LoadFolder(json->dump(), weights, &pool);
}

}  // namespace
}  // namespace kvbridge::artifact

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint32_t length = 0;
  if (size < sizeof(length)) return 0;
  std::memcpy(&length, data, sizeof(length));
  const std::string rest(reinterpret_cast<const char*>(data) + sizeof(length),
                         size - sizeof(length));
  const size_t split = length < rest.size() ? length : rest.size();
  kvbridge::artifact::FuzzOne(rest.substr(0, split), rest.substr(split));
  return 0;
}
