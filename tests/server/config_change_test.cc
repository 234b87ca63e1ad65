#include "server/config_change.h"

#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"

namespace kvbridge::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

LoadedConfig Read(const std::string& text) {
  const auto loaded = LoadConfig({.file_name = "test", .file_text = text});
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return *loaded;
}

TEST(ConfigChangeTest, TheSameConfigurationChangesNothing) {
  const LoadedConfig config = Read("routes: [{name: a, artifact: x}]");
  const ConfigChange change = TakeWhatCanChange(config, config);
  EXPECT_THAT(change.need_restart, IsEmpty());
  EXPECT_TRUE(
      google::protobuf::util::MessageDifferencer::Equals(change.effective.config, config.config));
  EXPECT_EQ(change.effective.origins, config.origins);
}

TEST(ConfigChangeTest, RoutesTenantsAuthAndTheLogLevelAreTaken) {
  const ConfigChange change =
      TakeWhatCanChange(Read("routes: [{name: a, artifact: x}, {name: b, artifact: x}]"),
                        Read("routes: [{name: c, artifact: y, stage: shadow}]\n"
                             "tenants: [{name: t}]\n"
                             "auth: {tokens_file: t}\n"
                             "log: {level: debug}"));
  EXPECT_THAT(change.need_restart, IsEmpty());
  const v1::Config& config = change.effective.config;
  ASSERT_EQ(config.routes_size(), 1);
  EXPECT_EQ(config.routes(0).stage(), v1::ROUTE_STAGE_SHADOW);
  EXPECT_EQ(config.tenants(0).name(), "t");
  EXPECT_EQ(config.auth().tokens_file(), "t");
  EXPECT_EQ(config.log().level(), "debug");
  EXPECT_EQ(change.effective.origins.at("routes[0].stage"), Origin::kFile);
  EXPECT_EQ(change.effective.origins.count("routes[1].name"), 0u);
}

TEST(ConfigChangeTest, TheRestStaysAndIsNamed) {
  const ConfigChange change =
      TakeWhatCanChange(Read(""), Read("listen: {grpc: ['127.0.0.1:1', '127.0.0.1:2']}\n"
                                       "limits: {max_tokens: 7, idle_timeout: 7s}\n"
                                       "log: {format: json}\n"
                                       "peers: [{name: p, address: '127.0.0.1:1'}]"));
  EXPECT_THAT(change.need_restart,
              ::testing::UnorderedElementsAre("listen.grpc", "limits.max_tokens",
                                              "limits.idle_timeout", "log.format", "peers"));
  EXPECT_EQ(change.effective.config.limits().max_tokens(), 131072);
  EXPECT_EQ(change.effective.origins.at("limits.max_tokens"), Origin::kDefault);
}

TEST(ConfigChangeTest, ASettingWhoseNameBeginsLikeOneThatIsTakenIsNot) {
  const ConfigChange change = TakeWhatCanChange(Read(""), Read("log: {level: warn, format: json}"));
  EXPECT_THAT(change.need_restart, ElementsAre("log.format"));
}

}  // namespace
}  // namespace kvbridge::server
