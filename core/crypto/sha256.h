// SHA-256 of bytes, of streams, and of large files on every core.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "core/base/worker_pool.h"

struct evp_md_ctx_st;

namespace kvbridge::crypto {

using Digest = std::array<uint8_t, 32>;

// 64 lower-case hex digits, the only spelling that ParseDigest takes back.
std::string ToHex(const Digest& digest);
// INVALID_ARGUMENT unless `hex` is exactly 64 characters of 0-9 and a-f.
absl::StatusOr<Digest> ParseDigest(absl::string_view hex);

absl::StatusOr<Digest> Sha256Of(std::span<const std::byte> bytes);
absl::StatusOr<std::string> Sha256Hex(absl::string_view bytes);

// Incremental. Thread contract: one thread at a time. Move-only; unusable after Finish().
class Sha256 {
 public:
  static absl::StatusOr<Sha256> Create();

  absl::Status Update(std::span<const std::byte> bytes);
  absl::StatusOr<Digest> Finish();

 private:
  struct FreeContext {
    void operator()(evp_md_ctx_st* context) const;
  };
  using Context = std::unique_ptr<evp_md_ctx_st, FreeContext>;
  explicit Sha256(Context context) : context_(std::move(context)) {}
  Context context_;
};

inline constexpr uint64_t kTreeChunkBytes = uint64_t{8} << 20;

// A plain SHA-256 cannot be split over cores, so large files are bound by a tree of depth one: the
// digest of each `kTreeChunkBytes` chunk (the last one shorter), and `root`, the SHA-256 over the
// concatenated raw chunk digests. No bytes: no chunks, and the root is the SHA-256 of nothing.
struct TreeDigest {
  std::vector<Digest> chunks;
  Digest root{};

  friend bool operator==(const TreeDigest&, const TreeDigest&) = default;
};

// The root that belongs to `chunks`.
absl::StatusOr<Digest> TreeRoot(const std::vector<Digest>& chunks);

// Hashes chunks on the pool's workers and the calling thread.
absl::StatusOr<TreeDigest> HashTree(std::span<const std::byte> bytes, base::WorkerPool* pool);

// The same, and shows `visit` each piece of at most kPieceBytes right after it was hashed, while it
// is in the core's cache: whoever needs the bytes too reads them from memory once. Pieces of a
// chunk come in order on one thread, chunks in any order and at once.
inline constexpr uint64_t kPieceBytes = uint64_t{512} << 10;
absl::StatusOr<TreeDigest> HashTree(std::span<const std::byte> bytes, base::WorkerPool* pool,
                                    absl::FunctionRef<void(std::span<const std::byte>)> visit);

}  // namespace kvbridge::crypto
