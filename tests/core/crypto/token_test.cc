#include "core/crypto/token.h"

#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/evp.h>

#include "core/crypto/openssl_status.h"

namespace kvbridge::crypto {
namespace {

TEST(TokenTest, RandomHexHasTwoDigitsPerByteAndDoesNotRepeat) {
  const std::string a = RandomHex(16).value();
  const std::string b = RandomHex(16).value();
  EXPECT_EQ(a.size(), 32u);
  EXPECT_EQ(a.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(a, b);
  EXPECT_EQ(RandomHex(0).value(), "");
}

TEST(TokenTest, ConstantTimeEqualsComparesContentAndLength) {
  EXPECT_TRUE(ConstantTimeEquals("", ""));
  EXPECT_TRUE(ConstantTimeEquals("secret", "secret"));
  EXPECT_FALSE(ConstantTimeEquals("secret", "secreT"));
  EXPECT_FALSE(ConstantTimeEquals("secret", "secret "));
}

TEST(OpenSslStatusTest, DrainingNamesTheReasonAndEmptiesTheQueue) {
  ERR_clear_error();
  ASSERT_EQ(EVP_MD_fetch(nullptr, "no-such-digest", nullptr), nullptr);
  const absl::Status status = DrainOpenSslErrors("fetch");
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(status.message().find("unsupported"), absl::string_view::npos) << status;
  EXPECT_EQ(ERR_peek_error(), 0u);
}

}  // namespace
}  // namespace kvbridge::crypto
