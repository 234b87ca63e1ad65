#include "core/crypto/sha256.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/worker_pool.h"

namespace kvbridge::crypto {
namespace {

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(Sha256Test, AgreesWithFips180) {
  EXPECT_EQ(Sha256Hex("abc").value(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex("").value(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Sha256Test, PiecesGiveTheDigestOfTheWhole) {
  const std::string text(100'000, 'x');
  auto hash = Sha256::Create();
  ASSERT_TRUE(hash.ok());
  for (size_t at = 0; at < text.size(); at += 777) {
    ASSERT_TRUE(hash->Update(Bytes(text.substr(at, 777))).ok());
  }
  EXPECT_EQ(ToHex(hash->Finish().value()), Sha256Hex(text).value());
}

TEST(Sha256Test, DigestsAreReadBackInLowerCaseHexOnly) {
  const std::string hex = Sha256Hex("abc").value();
  EXPECT_EQ(ToHex(ParseDigest(hex).value()), hex);
  for (const std::string& bad :
       {std::string("BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD"),
        hex.substr(1), hex + "0", std::string(64, 'g'), std::string(64, '\xe9'), std::string()}) {
    EXPECT_EQ(ParseDigest(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

class HashTreeTest : public ::testing::Test {
 protected:
  std::unique_ptr<base::WorkerPool> pool_ = base::WorkerPool::Create({.threads = 3}).value();
};

TEST_F(HashTreeTest, RootIsTheDigestOverTheRawChunkDigests) {
  std::string text(2 * kTreeChunkBytes + 5, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2654435761u >> 13);
  const TreeDigest tree = HashTree(Bytes(text), pool_.get()).value();
  ASSERT_EQ(tree.chunks.size(), 3u);
  std::string concatenated;
  for (int i = 0; i < 3; ++i) {
    const std::string part = text.substr(i * kTreeChunkBytes, kTreeChunkBytes);
    EXPECT_EQ(ToHex(tree.chunks[i]), Sha256Hex(part).value()) << "chunk " << i;
    concatenated.append(tree.chunks[i].begin(), tree.chunks[i].end());
  }
  EXPECT_EQ(ToHex(tree.root), Sha256Hex(concatenated).value());
}

TEST_F(HashTreeTest, ShowsEveryPieceOnceAndHashesTheSame) {
  const std::string text(kTreeChunkBytes + 3 * kPieceBytes + 7, 'a');
  std::vector<std::atomic<int>> shown(text.size());
  const TreeDigest tree = HashTree(Bytes(text), pool_.get(), [&](std::span<const std::byte> piece) {
                            EXPECT_LE(piece.size(), kPieceBytes);
                            for (const std::byte& b : piece) ++shown[&b - Bytes(text).data()];
                          }).value();
  EXPECT_EQ(tree, HashTree(Bytes(text), pool_.get()).value());
  EXPECT_TRUE(std::all_of(shown.begin(), shown.end(), [](const auto& n) { return n == 1; }));
}

TEST_F(HashTreeTest, AnEmptyFileHasNoChunks) {
  const TreeDigest tree = HashTree({}, pool_.get()).value();
  EXPECT_TRUE(tree.chunks.empty());
  EXPECT_EQ(ToHex(tree.root), Sha256Hex("").value());
}

TEST_F(HashTreeTest, OneFlippedBitChangesOneChunkAndTheRoot) {
  std::string text(kTreeChunkBytes + 1, 'a');
  const TreeDigest before = HashTree(Bytes(text), pool_.get()).value();
  text.back() ^= 1;
  const TreeDigest after = HashTree(Bytes(text), pool_.get()).value();
  EXPECT_EQ(before.chunks[0], after.chunks[0]);
  EXPECT_NE(before.chunks[1], after.chunks[1]);
  EXPECT_NE(before.root, after.root);
}

}  // namespace
}  // namespace kvbridge::crypto
