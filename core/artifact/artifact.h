// Reads mapper artifacts from disk: verified, checked, mapped; never half-believed.
//
// Three layouts are recognised by their manifest.json:
//   native     manifest.h
//   prototype  the Python KVBridge's schema 1; carries no RoPE (prototype_format.h)
//   router     vllm-project/semantic-router pull 4009; carries neither RoPE nor the source's layer
//   count
//              (router_format.h)
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "core/artifact/manifest.h"
#include "core/base/file.h"
#include "core/base/worker_pool.h"
#include "core/mapper/mapper.h"
#include "core/model/model_spec.h"

namespace kvbridge::artifact {

enum class Format : uint8_t { kNative, kPrototype, kRouter };
absl::string_view Name(Format format);  // "native", "prototype", "router"

struct LoadOptions {
  base::WorkerPool* pool = nullptr;  // required; outlives the call
  // What the models' config.json files say (model/hf_config.h). The prototype's and the router's
  // artifacts need both; a native one must agree with those that are given.
  std::optional<model::ModelSpec> source;
  std::optional<model::ModelSpec> target;
  // Answers without RoPE where the format has none and no configs were given: enough to look at an
  // artifact, not to serve it. Otherwise that is FAILED_PRECONDITION.
  bool allow_missing_rope = false;
  // Refuse NaN and infinity here. False where Backend::MakeResident, which refuses them too,
  // follows: it spares one pass over the weights.
  bool check_finite = true;
  // Leave the digest of the weights to Artifact::verify, for MakeResident to ask while it reads
  // them anyway. Nothing of the weights may be believed before.
  bool verify_later = false;
};

struct Artifact {
  // Weights stay in the mapped file, which the mapper keeps open. They were verified, but a mapped
  // file can be changed by others afterwards: what serves is the copy that Backend::MakeResident
  // packs.
  std::shared_ptr<const mapper::Mapper> mapper;
  Provenance provenance;
  Format format = Format::kNative;
  // The mapped file: whoever has copied the weights asks it whether they were still the verified
  // ones.
  std::shared_ptr<const base::MappedFile> weights;
  // With LoadOptions::verify_later, for formats whose digest is by chunks: DATA_LOSS unless the
  // weights are what the manifest says; shows each piece after it was hashed (crypto::HashTree).
  // Empty where they were verified. Uses LoadOptions::pool; not from inside a pool job.
  std::function<absl::Status(absl::FunctionRef<void(std::span<const std::byte>)> visit)> verify;
};

// NOT_FOUND: the folder or a file is missing. DATA_LOSS: bytes differ from a digest.
// INVALID_ARGUMENT: malformed or contradictory, naming what. UNIMPLEMENTED: well-formed, but not
// served by this version. FAILED_PRECONDITION: model configs are needed. Blocks; any thread, not
// from inside a pool job.
//
// The mapper's digest is the native manifest's; of the other formats, the SHA-256 over the
// canonical JSON {"manifest": theirs, "source": ModelSpec, "target": ModelSpec}.
absl::StatusOr<Artifact> LoadArtifact(const std::filesystem::path& dir, const LoadOptions& options);

struct SaveOptions {
  base::WorkerPool* pool = nullptr;  // required
  bool overwrite = false;            // replace an existing artifact, atomically
  // Asked just before the folder takes its place: an error abandons it. None = go on.
  std::function<absl::Status()> before_commit;
};

// Writes a native artifact; returns its digest. The same mapper and provenance give the same bytes.
// A mapper that Validate or CheckFinite refuses leaves nothing behind, nor touches an existing
// folder.
absl::StatusOr<std::string> SaveArtifact(const std::filesystem::path& dir,
                                         const mapper::Mapper& mapper, const Provenance& provenance,
                                         const SaveOptions& options);

}  // namespace kvbridge::artifact
