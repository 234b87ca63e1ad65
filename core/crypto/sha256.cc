#include "core/crypto/sha256.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include <openssl/evp.h>

#include "core/base/status_macros.h"
#include "core/crypto/openssl_status.h"

namespace kvbridge::crypto {
namespace {

using Bytes = std::span<const std::byte>;

absl::StatusOr<Digest> HashChunk(Bytes chunk, absl::FunctionRef<void(Bytes)> visit) {
  KVB_ASSIGN_OR_RETURN(Sha256 hash, Sha256::Create());
  while (!chunk.empty()) {
    const Bytes piece = chunk.first(std::min<size_t>(kPieceBytes, chunk.size()));
    KVB_RETURN_IF_ERROR(hash.Update(piece));
    visit(piece);
    chunk = chunk.subspan(piece.size());
  }
  return hash.Finish();
}

}  // namespace

std::string ToHex(const Digest& digest) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

absl::StatusOr<Digest> ParseDigest(absl::string_view hex) {
  Digest digest{};
  const bool lower_hex = std::all_of(hex.begin(), hex.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  });
  if (hex.size() != 2 * digest.size() || !lower_hex) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a SHA-256 as 64 lower-case hex digits, got \"",
                     absl::CHexEscape(hex.substr(0, 80)), "\""));
  }
  const std::string raw = absl::HexStringToBytes(hex);
  std::copy(raw.begin(), raw.end(), digest.begin());
  return digest;
}

absl::StatusOr<Digest> Sha256Of(std::span<const std::byte> bytes) {
  Digest digest{};
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, EVP_sha256(), nullptr) != 1) {
    return DrainOpenSslErrors("SHA-256");
  }
  return digest;
}

absl::StatusOr<std::string> Sha256Hex(absl::string_view bytes) {
  KVB_ASSIGN_OR_RETURN(const Digest digest,
                       Sha256Of(std::as_bytes(std::span(bytes.data(), bytes.size()))));
  return ToHex(digest);
}

void Sha256::FreeContext::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

absl::StatusOr<Sha256> Sha256::Create() {
  Context context(EVP_MD_CTX_new());
  if (context == nullptr || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) {
    return DrainOpenSslErrors("SHA-256 setup");
  }
  return Sha256(std::move(context));
}

absl::Status Sha256::Update(std::span<const std::byte> bytes) {
  if (EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) != 1) {
    return DrainOpenSslErrors("SHA-256 update");
  }
  return absl::OkStatus();
}

absl::StatusOr<Digest> Sha256::Finish() {
  Digest digest{};
  if (EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) != 1) {
    return DrainOpenSslErrors("SHA-256 finish");
  }
  return digest;
}

absl::StatusOr<Digest> TreeRoot(const std::vector<Digest>& chunks) {
  return Sha256Of(std::as_bytes(std::span(chunks)));
}

absl::StatusOr<TreeDigest> HashTree(std::span<const std::byte> bytes, base::WorkerPool* pool) {
  return HashTree(bytes, pool, [](std::span<const std::byte>) {});
}

absl::StatusOr<TreeDigest> HashTree(std::span<const std::byte> bytes, base::WorkerPool* pool,
                                    absl::FunctionRef<void(std::span<const std::byte>)> visit) {
  const size_t count = (bytes.size() + kTreeChunkBytes - 1) / kTreeChunkBytes;
  TreeDigest tree{.chunks = std::vector<Digest>(count)};
  std::vector<absl::Status> failures(count);
  pool->ParallelFor(static_cast<int64_t>(count), [&](int64_t i) {
    const size_t begin = static_cast<size_t>(i) * kTreeChunkBytes;
    auto digest =
        HashChunk(bytes.subspan(begin, std::min(kTreeChunkBytes, bytes.size() - begin)), visit);
    if (digest.ok()) {
      tree.chunks[i] = *digest;
    } else {
      failures[i] = digest.status();
    }
  });
  for (const absl::Status& failure : failures) KVB_RETURN_IF_ERROR(failure);
  KVB_ASSIGN_OR_RETURN(tree.root, TreeRoot(tree.chunks));
  return tree;
}

}  // namespace kvbridge::crypto
