#include "core/artifact/integrity.h"

#include <algorithm>
#include <cstring>
#include <system_error>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/crypto/sha256.h"

namespace kvbridge::artifact {
namespace {

// Whether any element's exponent bits are all set, which in every IEEE-like type means NaN or
// infinity. Written so that the compiler vectorises it; loads need no alignment.
template <typename Bits>
bool HasNonFinite(std::span<const std::byte> data, Bits exponent) {
  const size_t n = data.size() / sizeof(Bits);
  uint32_t found = 0;
  for (size_t i = 0; i < n; ++i) {
    Bits bits;
    std::memcpy(&bits, data.data() + i * sizeof(Bits), sizeof(Bits));
    found |= static_cast<uint32_t>((bits & exponent) == exponent);
  }
  return found != 0;
}

bool HasNonFinite(const StTensor& tensor) {
  if (tensor.dtype == StDType::kBf16) return HasNonFinite<uint16_t>(tensor.data, 0x7f80);
  if (tensor.dtype == StDType::kF32) return HasNonFinite<uint32_t>(tensor.data, 0x7f800000);
  return false;
}

}  // namespace

absl::Status CheckFolder(const std::filesystem::path& dir, const std::vector<std::string>& names) {
  std::error_code error;
  std::filesystem::directory_iterator entries(dir, error);
  if (error) {
    return absl::NotFoundError(absl::StrCat("artifact folder: cannot be read: ", error.message()));
  }
  for (const std::string& name : names) {
    if (!std::filesystem::exists(dir / name, error)) {
      return absl::NotFoundError(absl::StrCat("artifact folder: ", name, " is missing"));
    }
  }
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("artifact folder: unlisted file \"", name, "\""));
    }
  }
  return absl::OkStatus();
}

absl::Status VerifyTree(const base::MappedFile& file, const FileEntry& entry,
                        absl::string_view what, base::WorkerPool* pool,
                        absl::FunctionRef<void(std::span<const std::byte>)> visit) {
  if (file.size() != entry.bytes) {
    return absl::DataLossError(
        absl::StrCat(what, ": expected ", entry.bytes, " bytes, got ", file.size()));
  }
  KVB_ASSIGN_OR_RETURN(const crypto::TreeDigest tree, crypto::HashTree(file.bytes(), pool, visit));
  for (size_t i = 0; i < tree.chunks.size(); ++i) {
    if (tree.chunks[i] != entry.tree.chunks[i]) {
      return absl::DataLossError(absl::StrCat(what, ": chunk ", i, ": expected SHA-256 ",
                                              crypto::ToHex(entry.tree.chunks[i]), ", got ",
                                              crypto::ToHex(tree.chunks[i])));
    }
  }
  return absl::OkStatus();
}

absl::Status VerifySha256(const base::MappedFile& file, absl::string_view hex,
                          absl::string_view what) {
  const absl::StatusOr<crypto::Digest> expected = crypto::ParseDigest(hex);
  if (!expected.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": SHA-256: ", expected.status().message()));
  }
  KVB_ASSIGN_OR_RETURN(const crypto::Digest got, crypto::Sha256Of(file.bytes()));
  if (got != *expected) {
    return absl::DataLossError(
        absl::StrCat(what, ": expected SHA-256 ", hex, ", got ", crypto::ToHex(got)));
  }
  return absl::OkStatus();
}

absl::Status CheckFinite(const std::map<std::string, StTensor>& tensors, base::WorkerPool* pool) {
  std::vector<const std::pair<const std::string, StTensor>*> list;
  for (const auto& item : tensors) list.push_back(&item);
  std::vector<uint8_t> bad(list.size());
  pool->ParallelFor(static_cast<int64_t>(list.size()),
                    [&](int64_t i) { bad[i] = HasNonFinite(list[i]->second); });
  const auto first = std::find(bad.begin(), bad.end(), 1);
  if (first == bad.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tensor \"", list[first - bad.begin()]->first,
                   "\": expected finite values, got a NaN or an infinity"));
}

}  // namespace kvbridge::artifact
