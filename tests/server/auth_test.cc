#include "server/auth.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/artifact/temp_dir.h"

namespace kvbridge::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kTransfer[] = "/kvbridge.v1.KvBridge/Transfer";
constexpr char kPlan[] = "/kvbridge.v1.KvBridge/Plan";
constexpr char kAdmin[] = "/kvbridge.v1.Admin/Drain";
constexpr char kToken[] = "0123456789abcdef";
constexpr char kHeader[] = "Bearer 0123456789abcdef";

class AuthTest : public ::testing::Test {
 protected:
  AuthTest() {
    WriteTokens(std::string(kToken) + " router transfer\n");
    config_.set_tokens_file(File());
    v1::SanGrant& san = *config_.add_san();
    san.set_name("spiffe://test/operator");
    san.add_groups("admin");
    san.add_groups("plan");
  }

  std::string File() const { return (dir_ / "tokens").string(); }
  void WriteTokens(const std::string& text) {
    std::ofstream(File()) << text;
    std::filesystem::permissions(
        File(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  }
  Grants Read() {
    auto grants = ReadGrants(config_);
    EXPECT_TRUE(grants.ok()) << grants.status();
    return *std::move(grants);
  }
  double Failures(const std::string& reason) {
    for (const auto& family : registry_.Collect()) {
      if (family.name != "kvbridge_auth_failures_total") continue;
      for (const auto& metric : family.metric) {
        if (metric.label[0].value == reason) return metric.counter.value;
      }
    }
    return -1;
  }
  void ExpectRefused(absl::string_view path, const Credentials& shown, absl::StatusCode code,
                     const std::string& reason) {
    const double before = Failures(reason);
    const auto tenant = Authorizer(Read(), &metrics_).Authorize(path, shown);
    EXPECT_EQ(tenant.status().code(), code) << tenant.status();
    EXPECT_EQ(Failures(reason), before + 1) << reason;
    EXPECT_THAT(std::string(tenant.status().message()),
                ::testing::AllOf(Not(HasSubstr(kToken)), Not(HasSubstr("router"))));
  }

  artifact::TempDir dir_;
  v1::AuthConfig config_;
  prometheus::Registry registry_;
  metrics::OperationMetrics metrics_{&registry_};
};

TEST_F(AuthTest, ATokenTellsTheTenantOfTheGroupsThatItGrants) {
  const Authorizer authorizer(Read(), &metrics_);
  EXPECT_EQ(authorizer.Authorize(kTransfer, {.authorization = kHeader, .names = {}}).value(),
            "router");
  EXPECT_EQ(authorizer
                .Authorize("/kvbridge.v1.KvBridge/ReportQuality",
                           {.authorization = "bearer 0123456789abcdef", .names = {}})
                .value(),
            "router");
}

TEST_F(AuthTest, ACertificatesNameTellsATenantOfItsOwn) {
  const Authorizer authorizer(Read(), &metrics_);
  const Credentials shown{.authorization = {}, .names = {"localhost", "spiffe://test/operator"}};
  EXPECT_EQ(authorizer.Authorize(kAdmin, shown).value(), "spiffe://test/operator");
  EXPECT_EQ(authorizer.Authorize("/grpc.reflection.v1alpha.ServerReflection/X", shown).value(),
            "spiffe://test/operator");
}

TEST_F(AuthTest, WhatIsNotGrantedIsRefusedAndCounted) {
  const auto denied = absl::StatusCode::kPermissionDenied;
  const auto unknown = absl::StatusCode::kUnauthenticated;
  ExpectRefused(kPlan, {.authorization = kHeader, .names = {}}, denied, "no_grant");
  ExpectRefused("/kvbridge.v1.Memory/List", {.authorization = kHeader, .names = {}}, denied,
                "no_grant");
  ExpectRefused("/kvbridge.v1.Memory/List",
                {.authorization = {}, .names = {"spiffe://test/operator"}}, denied, "no_grant");
  ExpectRefused(kTransfer, {}, unknown, "missing");
  ExpectRefused("/unheard.of/Method", {}, unknown, "missing");
  ExpectRefused(kTransfer, {.authorization = {}, .names = {"localhost"}}, unknown, "unknown_name");
  for (const char* header : {"Bearer 0123456789abcdeX", "Bearer ", "", "Basic 0123456789abcdef",
                             "0123456789abcdef", "Bearer 0123456789abcdef "}) {
    ExpectRefused(kTransfer, {.authorization = header, .names = {}}, unknown, "bad_token");
  }
}

TEST_F(AuthTest, AGoodCertificateDoesNotMakeUpForABadToken) {
  ExpectRefused(kAdmin, {.authorization = "Bearer nonsense", .names = {"spiffe://test/operator"}},
                absl::StatusCode::kUnauthenticated, "bad_token");
}

TEST_F(AuthTest, HealthIsOpen) {
  EXPECT_EQ(Authorizer(Read(), &metrics_).Authorize("/grpc.health.v1.Health/Check", {}).value(),
            std::nullopt);
}

TEST_F(AuthTest, WithoutGrantsNobodyIsAsked) {
  const Authorizer authorizer(ReadGrants({}).value(), &metrics_);
  EXPECT_EQ(authorizer.Authorize(kTransfer, {}).value(), std::nullopt);
  EXPECT_EQ(authorizer.Authorize(kTransfer, {.authorization = "x", .names = {}}).value(),
            std::nullopt);
}

TEST_F(AuthTest, AnEmptyTokensFileStillAsksEverybody) {
  WriteTokens("");
  config_.clear_san();
  ExpectRefused(kPlan, {}, absl::StatusCode::kUnauthenticated, "missing");
}

TEST_F(AuthTest, ReplacedGrantsCountFromThenOn) {
  Authorizer authorizer(Read(), &metrics_);
  WriteTokens("fedcba9876543210 router transfer\n");
  authorizer.Replace(Read());
  EXPECT_EQ(
      authorizer.Authorize(kTransfer, {.authorization = kHeader, .names = {}}).status().code(),
      absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(
      authorizer.Authorize(kTransfer, {.authorization = "Bearer fedcba9876543210", .names = {}})
          .value(),
      "router");
}

TEST_F(AuthTest, AFileThatCannotBeReadIsNamed) {
  config_.set_tokens_file("/nowhere/tokens");
  const auto grants = ReadGrants(config_);
  EXPECT_EQ(grants.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(grants.status().message()),
              HasSubstr("auth.tokens_file: /nowhere/tokens: "));
}

TEST_F(AuthTest, AFileThatOthersMayReadIsAWarning) {
  EXPECT_THAT(Read().warnings, IsEmpty());
  std::filesystem::permissions(File(), std::filesystem::perms::others_read,
                               std::filesystem::perm_options::add);
  EXPECT_THAT(Read().warnings, SizeIs(1));
}

}  // namespace
}  // namespace kvbridge::server
