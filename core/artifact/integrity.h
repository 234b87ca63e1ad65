// Checks shared by the artifact formats: what lies in the folder, and whether bytes are what a
// digest says.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "core/artifact/manifest.h"
#include "core/artifact/safetensors.h"
#include "core/base/file.h"
#include "core/base/worker_pool.h"

namespace kvbridge::artifact {

// NOT_FOUND for a missing folder or file; INVALID_ARGUMENT for one that does not belong there: what
// no digest covers must not travel with what one does.
absl::Status CheckFolder(const std::filesystem::path& dir, const std::vector<std::string>& names);

// DATA_LOSS unless the file has the entry's length and chunk digests. Chunks are hashed on all
// cores, each faulted in by the core that hashes it; `visit` is shown pieces as by
// crypto::HashTree.
absl::Status VerifyTree(const base::MappedFile& file, const FileEntry& entry,
                        absl::string_view what, base::WorkerPool* pool,
                        absl::FunctionRef<void(std::span<const std::byte>)> visit);

// DATA_LOSS unless the plain SHA-256 of the file is `hex`; INVALID_ARGUMENT when `hex` is no
// digest.
absl::Status VerifySha256(const base::MappedFile& file, absl::string_view hex,
                          absl::string_view what);

// INVALID_ARGUMENT naming the first BF16 or F32 tensor that holds a NaN or an infinity.
absl::Status CheckFinite(const std::map<std::string, StTensor>& tensors, base::WorkerPool* pool);

}  // namespace kvbridge::artifact
