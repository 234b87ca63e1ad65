#include "core/artifact/artifact.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

#include "core/artifact/formats.h"
#include "core/artifact/integrity.h"
#include "core/artifact/safetensors_writer.h"
#include "core/artifact/spec_json.h"
#include "core/artifact/weights.h"
#include "core/base/file.h"
#include "core/base/status_macros.h"
#include "core/crypto/sha256.h"

namespace kvbridge::artifact {
namespace {

using base::Json;

constexpr uint64_t kMaxManifestBytes = uint64_t{64} << 20;

absl::StatusOr<Json> ReadManifest(const std::filesystem::path& dir) {
  std::error_code error;
  if (!std::filesystem::is_directory(dir, error)) {
    return absl::NotFoundError("artifact folder: does not exist or is no folder");
  }
  KVB_ASSIGN_OR_RETURN(const std::string text,
                       base::ReadFile(dir / std::string(kManifestFile), kMaxManifestBytes));
  KVB_ASSIGN_OR_RETURN(Json json, base::ParseStrictJson(text, kManifestFile));
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kManifestFile, ": expected an object, got ", json.type_name()));
  }
  return json;
}

absl::StatusOr<Format> DetectFormat(const Json& json) {
  const auto format = json.find("format");
  if (format != json.end() && *format == "kvbridge-mapper") return Format::kNative;
  if (format != json.end() && *format == "kvbridge") return Format::kPrototype;
  if (format == json.end() && json.contains("mapper_id")) return Format::kRouter;
  return absl::InvalidArgumentError(absl::StrCat(
      kManifestFile,
      ".format: expected \"kvbridge-mapper\", \"kvbridge\", or none and a mapper_id, "
      "got ",
      format == json.end()
          ? "nothing"
          : format->dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 60)));
}

std::string CountsText(const model::KvGeometry& geometry) {
  return absl::StrCat(geometry.layers, " layers x ", geometry.kv_heads, " kv heads x ",
                      geometry.head_dim);
}

absl::Status CheckCounts(absl::string_view role, const model::KvGeometry& artifact,
                         const model::KvGeometry& config) {
  if (artifact.layers == config.layers && artifact.kv_heads == config.kv_heads &&
      artifact.head_dim == config.head_dim) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(role, " config: expected the artifact's ",
                                                 CountsText(artifact), ", got ",
                                                 CountsText(config)));
}

// Frequencies that were computed on another machine may differ in their last bits.
bool SameRotation(const model::RopeParams& a, const model::RopeParams& b) {
  const auto near = [](double x, double y) {
    return std::abs(x - y) <= 1e-12 * std::max(std::abs(x), std::abs(y));
  };
  return a.rotary_dim == b.rotary_dim && a.pairing == b.pairing &&
         near(a.attention_factor, b.attention_factor) &&
         std::equal(a.inv_freq.begin(), a.inv_freq.end(), b.inv_freq.begin(), b.inv_freq.end(),
                    near);
}

absl::Status CheckAgainstConfig(absl::string_view role, const model::ModelSpec& stated,
                                const std::optional<model::ModelSpec>& config) {
  if (!config) return absl::OkStatus();
  KVB_RETURN_IF_ERROR(CheckCounts(role, stated.geometry, config->geometry));
  for (int32_t l = 0; l < stated.geometry.layers; ++l) {
    if (!SameRotation(stated.rope.ForLayer(l), config->rope.ForLayer(l))) {
      return absl::InvalidArgumentError(
          absl::StrCat(role, " config: layer ", l, ": its RoPE differs from the artifact's"));
    }
  }
  return absl::OkStatus();
}

// The mapper whose weights lie in `file`, which belongs to `manifest`.
absl::StatusOr<mapper::Mapper> ReadWeights(const Manifest& manifest,
                                           const std::shared_ptr<const base::MappedFile>& file,
                                           const LoadOptions& options) {
  KVB_ASSIGN_OR_RETURN(const SafeTensors tensors, SafeTensors::Parse(file->bytes(), kWeightsFile));
  KVB_ASSIGN_OR_RETURN(const auto metadata, WeightsMetadata(manifest));
  if (tensors.metadata() != metadata) {
    return absl::DataLossError(absl::StrCat(
        kWeightsFile, " __metadata__: it belongs to another manifest: expected manifest_sha256 ",
        metadata.at("manifest_sha256")));
  }
  KVB_ASSIGN_OR_RETURN(const StTensor* first, tensors.Find("key_bias.0"));
  if (first->dtype != StDType::kF32 && first->dtype != StDType::kBf16) {
    return absl::InvalidArgumentError(absl::StrCat(
        kWeightsFile, " tensor \"key_bias.0\": expected BF16 or F32, got ", Name(first->dtype)));
  }
  KVB_ASSIGN_OR_RETURN(mapper::Mapper mapper,
                       AssembleMapper(manifest, tensors, first->dtype, file));
  if (options.check_finite) KVB_RETURN_IF_ERROR(CheckFinite(tensors.tensors(), options.pool));
  return mapper;
}

}  // namespace

absl::string_view Name(Format format) {
  switch (format) {
    case Format::kNative:
      return "native";
    case Format::kPrototype:
      return "prototype";
    case Format::kRouter:
      return "router";
  }
  return "";
}

namespace internal {

absl::Status CompleteSpec(absl::string_view role, const std::optional<model::ModelSpec>& config,
                          bool rope_needed, model::ModelSpec* spec) {
  if (!config) {
    if (!rope_needed) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "this artifact format carries no RoPE: the ", role, " model's config.json is needed (--",
        role, "-config, or a route's ", role, "_config)"));
  }
  KVB_RETURN_IF_ERROR(CheckCounts(role, spec->geometry, config->geometry));
  spec->geometry = config->geometry;
  spec->rope = config->rope;
  if (spec->identity.family.empty()) spec->identity.family = config->identity.family;
  return absl::OkStatus();
}

absl::StatusOr<std::string> ForeignDigest(const Json& json, const model::ModelSpec& source,
                                          const model::ModelSpec& target) {
  return crypto::Sha256Hex(base::CanonicalJson(
      {{"manifest", json}, {"source", SpecToJson(source)}, {"target", SpecToJson(target)}}));
}

absl::StatusOr<Artifact> LoadNative(const std::filesystem::path& dir, const Json& json,
                                    const LoadOptions& options) {
  KVB_RETURN_IF_ERROR(CheckFolder(dir, {std::string(kManifestFile), std::string(kWeightsFile)}));
  KVB_ASSIGN_OR_RETURN(Manifest manifest, ManifestFromJson(json));
  KVB_RETURN_IF_ERROR(CheckAgainstConfig("source", manifest.source, options.source));
  KVB_RETURN_IF_ERROR(CheckAgainstConfig("target", manifest.target, options.target));
  KVB_ASSIGN_OR_RETURN(const std::shared_ptr<const base::MappedFile> weights,
                       base::MappedFile::Open(dir / std::string(kWeightsFile)));
  const auto verify = [weights, entry = manifest.files.at(std::string(kWeightsFile)),
                       pool = options.pool](absl::FunctionRef<void(std::span<const std::byte>)> v) {
    return VerifyTree(*weights, entry, kWeightsFile, pool, v);
  };
  const auto ignore = [](std::span<const std::byte>) {};
  if (!options.verify_later) KVB_RETURN_IF_ERROR(verify(ignore));
  absl::StatusOr<mapper::Mapper> mapper = ReadWeights(manifest, weights, options);
  if (!mapper.ok()) {
    // Damage is the better answer than what damage looks like.
    if (options.verify_later) KVB_RETURN_IF_ERROR(verify(ignore));
    return mapper.status();
  }
  KVB_ASSIGN_OR_RETURN(mapper->digest, crypto::Sha256Hex(base::CanonicalJson(json)));
  Artifact artifact{std::make_shared<mapper::Mapper>(*std::move(mapper)),
                    std::move(manifest.provenance), Format::kNative, weights};
  if (options.verify_later) artifact.verify = verify;
  return artifact;
}

}  // namespace internal

absl::StatusOr<Artifact> LoadArtifact(const std::filesystem::path& dir,
                                      const LoadOptions& options) {
  KVB_ASSIGN_OR_RETURN(const Json json, ReadManifest(dir));
  KVB_ASSIGN_OR_RETURN(const Format format, DetectFormat(json));
  switch (format) {
    case Format::kNative:
      return internal::LoadNative(dir, json, options);
    case Format::kPrototype:
      return internal::LoadPrototype(dir, json, options);
    case Format::kRouter:
      return internal::LoadRouter(dir, json, options);
  }
  return absl::InternalError("unknown artifact format");
}

absl::StatusOr<std::string> SaveArtifact(const std::filesystem::path& dir,
                                         const mapper::Mapper& mapper, const Provenance& provenance,
                                         const SaveOptions& options) {
  KVB_RETURN_IF_ERROR(mapper::Validate(mapper));
  KVB_ASSIGN_OR_RETURN(const auto tensors, WeightTensors(mapper));
  KVB_RETURN_IF_ERROR(CheckFinite(tensors, options.pool));
  Manifest manifest = ManifestOf(mapper, provenance);
  KVB_ASSIGN_OR_RETURN(const auto metadata, WeightsMetadata(manifest));

  KVB_ASSIGN_OR_RETURN(const std::unique_ptr<base::AtomicDir> out,
                       base::AtomicDir::Begin(dir, options.overwrite));
  const std::filesystem::path weights_path = out->dir() / std::string(kWeightsFile);
  KVB_RETURN_IF_ERROR(WriteSafeTensors(weights_path, tensors, metadata));
  KVB_ASSIGN_OR_RETURN(const std::shared_ptr<const base::MappedFile> written,
                       base::MappedFile::Open(weights_path));
  FileEntry& entry = manifest.files[std::string(kWeightsFile)];
  entry.bytes = written->size();
  KVB_ASSIGN_OR_RETURN(entry.tree, crypto::HashTree(written->bytes(), options.pool));

  const Json json = ManifestToJson(manifest);
  // What was written must be readable: a mapper beyond the manifest's bounds fails here.
  KVB_RETURN_IF_ERROR(ManifestFromJson(json).status());
  KVB_RETURN_IF_ERROR(base::WriteFileAtomic(out->dir() / std::string(kManifestFile),
                                            json.dump(1, ' ', /*ensure_ascii=*/true) + "\n"));
  if (options.before_commit) KVB_RETURN_IF_ERROR(options.before_commit());
  KVB_RETURN_IF_ERROR(out->Commit());
  return crypto::Sha256Hex(base::CanonicalJson(json));
}

}  // namespace kvbridge::artifact
