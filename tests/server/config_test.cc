#include "server/config.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace kvbridge::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kMinimal[] = R"(
routes:
  - name: small-to-large
    artifact: artifacts/small-to-large
)";

ConfigSources File(std::string text) {
  return {.file_name = "kvbridged.yaml", .file_text = std::move(text)};
}

std::string ErrorOf(const ConfigSources& sources) {
  const auto loaded = LoadConfig(sources);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(loaded.status().message());
}

std::string ReadText(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(ConfigTest, FillsEveryDefaultOfTheProto) {
  const auto loaded = LoadConfig(File(kMinimal));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const v1::Config& config = loaded->config;
  EXPECT_EQ(config.listen().grpc(0), "127.0.0.1:50061");
  EXPECT_EQ(config.listen().admin(), "127.0.0.1:9464");
  EXPECT_TRUE(config.listen().reflection());
  EXPECT_EQ(config.engine().tile_tokens(), 256);
  EXPECT_EQ(config.limits().max_request_bytes(), int64_t{64} << 30);
  EXPECT_EQ(config.limits().tiles_in_flight(), 2);
  EXPECT_EQ(config.drain().delay().seconds(), 5);
  EXPECT_EQ(config.metrics().latency_buckets_size(), 21);
  EXPECT_EQ(config.routes(0).stage(), v1::ROUTE_STAGE_LIVE);
  EXPECT_EQ(config.routes(0).policy().max_abs(), 10000);
  EXPECT_EQ(config.routes(0).policy().salt(), "kvbridge-shadow-v1");
  EXPECT_FALSE(config.routes(0).policy().has_max_latency());
  EXPECT_EQ(config.routes(0).drill().share(), 0);
  EXPECT_EQ(loaded->origins.at("engine.threads"), Origin::kDefault);
  EXPECT_EQ(loaded->origins.at("routes[0].name"), Origin::kFile);
}

TEST(ConfigTest, FlagBeatsEnvironmentBeatsFile) {
  ConfigSources sources = File(absl::StrCat(kMinimal,
                                            "engine: {threads: 1, tile_tokens: 32}\n"
                                            "limits: {max_tokens: 100}\n"));
  sources.env = {{"KVBRIDGE_ENGINE_THREADS", "2"},
                 {"KVBRIDGE_ENGINE_TILE_TOKENS", "64"},
                 {"KVBRIDGE_SERVICE_HOST", "10.0.0.1"}};
  sources.flags = {{"engine.threads", "3"}};
  const auto loaded = LoadConfig(sources);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.engine().threads(), 3);
  EXPECT_EQ(loaded->config.engine().tile_tokens(), 64);
  EXPECT_EQ(loaded->config.limits().max_tokens(), 100);
  EXPECT_EQ(loaded->origins.at("engine.threads"), Origin::kFlag);
  EXPECT_EQ(loaded->origins.at("engine.tile_tokens"), Origin::kEnv);
  EXPECT_EQ(loaded->origins.at("limits.max_tokens"), Origin::kFile);
}

TEST(ConfigTest, AListInTheEnvironmentIsSeparatedByCommas) {
  ConfigSources sources = File(kMinimal);
  sources.env = {{"KVBRIDGE_LISTEN_GRPC", "unix:/run/k.sock, 127.0.0.1:0"}};
  const auto loaded = LoadConfig(sources);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(loaded->config.listen().grpc(),
              ::testing::ElementsAre("unix:/run/k.sock", "127.0.0.1:0"));
}

TEST(ConfigTest, FriendlyFormsAreUnderstood) {
  const auto loaded = LoadConfig(File(R"(
limits: {max_inflight_bytes: 256MiB}
drain: {delay: 250ms, deadline: 1m30s}
routes:
  - {name: a, artifact: x, stage: SHADOW, policy: {max_latency: 1.5s}}
  - {name: b, artifact: x, stage: ROUTE_STAGE_CANARY, canary_share: 0.25}
)"));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.limits().max_inflight_bytes(), 256 << 20);
  EXPECT_EQ(loaded->config.drain().delay().nanos(), 250000000);
  EXPECT_EQ(loaded->config.drain().deadline().seconds(), 90);
  EXPECT_EQ(loaded->config.routes(0).stage(), v1::ROUTE_STAGE_SHADOW);
  EXPECT_EQ(loaded->config.routes(0).policy().max_latency().nanos(), 500000000);
  EXPECT_EQ(loaded->config.routes(1).stage(), v1::ROUTE_STAGE_CANARY);
}

TEST(ConfigTest, JsonIsAccepted) {
  const auto loaded = LoadConfig(File(R"({"routes": [{"name": "a", "artifact": "x"}]})"));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.routes(0).name(), "a");
}

TEST(ConfigTest, UnknownFieldIsNamedByPathWithAGuess) {
  EXPECT_EQ(ErrorOf(File(R"(
routes:
  - {name: a, artifact: x}
  - {name: b, artifact: x, policy: {max_abz: 3}}
)")),
            "kvbridged.yaml: routes[1].policy.max_abz: unknown field, did you mean max_abs?");
  EXPECT_EQ(ErrorOf(File("listne: {}")),
            "kvbridged.yaml: listne: unknown field, did you mean listen?");
  EXPECT_EQ(ErrorOf(File("zzzzzz: 1")), "kvbridged.yaml: zzzzzz: unknown field");
}

TEST(ConfigTest, ValuesOfAnotherKindAreNamedByPath) {
  EXPECT_EQ(ErrorOf(File("engine: {threads: many}")),
            "kvbridged.yaml: engine.threads: expected a 32-bit integer, got \"many\"");
  EXPECT_EQ(ErrorOf(File("engine: [1]")),
            "kvbridged.yaml: engine: expected a mapping, got \"a list\"");
  EXPECT_EQ(ErrorOf(File("routes: {name: a}")),
            "kvbridged.yaml: routes: expected a list, got \"a mapping\"");
  EXPECT_EQ(ErrorOf(File("drain: {delay: 5 parsecs}")),
            "kvbridged.yaml: drain.delay: expected a duration from 0s to 24h, such as 250ms, got "
            "\"5 parsecs\"");
  EXPECT_EQ(ErrorOf(File("drain: {delay: -5s}")),
            "kvbridged.yaml: drain.delay: expected a duration from 0s to 24h, such as 250ms, got "
            "\"-5s\"");
  EXPECT_EQ(ErrorOf(File("routes: [{stage: lively}]")),
            "kvbridged.yaml: routes[0].stage: expected one of off, shadow, canary, live, got "
            "\"lively\"");
  EXPECT_EQ(ErrorOf(File("limits: {max_inflight_bytes: 99999999999GiB}")),
            "kvbridged.yaml: limits.max_inflight_bytes: expected bytes, such as 1048576 or "
            "256MiB, got \"99999999999GiB\"");
}

TEST(ConfigTest, AnErrorInAFlagOrVariableNamesIt) {
  ConfigSources sources = File(kMinimal);
  sources.env = {{"KVBRIDGE_ENGINE_THREADS", "x"}};
  EXPECT_EQ(ErrorOf(sources),
            "KVBRIDGE_ENGINE_THREADS: engine.threads: expected a 32-bit integer, got \"x\"");
  sources.env.clear();
  sources.flags = {{"drain.delay", "x"}};
  EXPECT_THAT(ErrorOf(sources), HasSubstr("--drain-delay: drain.delay: expected a duration"));
}

TEST(ConfigTest, RepeatedKeysAreRefused) {
  EXPECT_EQ(ErrorOf(File("engine: {threads: 1, threads: 2}")),
            "kvbridged.yaml: engine.threads: the key is there twice");
}

TEST(ConfigTest, AliasBombsAndEndlessTreesAreRefused) {
  std::string bomb = "routes: [";
  for (int i = 0; i < 10000; ++i) bomb += i == 0 ? "&a {name: a, artifact: b}" : ", *a";
  EXPECT_THAT(ErrorOf(File(bomb + "]")), HasSubstr("expected at most 20000 nodes in 16 levels"));
  EXPECT_THAT(ErrorOf(File("routes: &r [{policy: *r}]")),
              HasSubstr("routes[0].policy: expected a mapping"));
}

TEST(ConfigTest, BrokenAndOversizedFilesAreRefused) {
  EXPECT_THAT(ErrorOf(File("routes: [")), HasSubstr("kvbridged.yaml: yaml-cpp: error at line"));
  EXPECT_THAT(ErrorOf(File(std::string(5000, '['))), HasSubstr("kvbridged.yaml: "));
  EXPECT_THAT(ErrorOf(File("a: 1\n---\nb: 2\n")), HasSubstr("expected one YAML document, got 2"));
  EXPECT_THAT(ErrorOf(File(std::string((1 << 20) + 1, '#'))), HasSubstr("at most 1.0 MiB"));
}

TEST(ConfigTest, AThousandRoutesAreRefusedByCount) {
  std::string text = "routes:\n";
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&text, "  - {name: r", i, ", artifact: x}\n");
  EXPECT_EQ(ErrorOf(File(text)), "routes: expected at most 64 routes, got 1000");
}

TEST(ConfigTest, ValidationNamesPathExpectedAndGot) {
  const auto with = [](const char* text) { return ErrorOf(File(text)); };
  EXPECT_EQ(with("routes: [{name: a, artifact: x}, {name: a, artifact: y}]"),
            "routes[1].name: expected a name used once, got \"a\"");
  EXPECT_EQ(with("routes: [{name: A b, artifact: x}]"),
            "routes[0].name: expected 1 to 63 characters of [a-z0-9._-], got \"A b\"");
  EXPECT_EQ(with("routes: [{name: _other, artifact: x}]"),
            "routes[0].name: expected another name than _other, got \"_other\"");
  EXPECT_EQ(with("routes: [{name: a, artifact: x, canary_share: 1.0000001}]"),
            "routes[0].canary_share: expected 0 to 1, got 1.0000001");
  EXPECT_EQ(with("routes: [{name: a}]"), "routes[0].artifact: expected a folder, got \"\"");
  EXPECT_EQ(with("routes: [{name: a, artifact: x, policy: {max_abs: 0}}]"),
            "routes[0].policy.max_abs: expected a number above 0, got 0");
  EXPECT_EQ(with("routes: [{name: a, artifact: x, canary_share: nan}]"),
            "routes[0].canary_share: expected 0 to 1, got nan");
  EXPECT_EQ(with("routes: [{name: a, artifact: x, drill: {reason: overload, share: 2}}]"),
            "routes[0].drill.share: expected 0 to 1, got 2");
  EXPECT_EQ(with("routes: [{name: a, artifact: x, drill: {share: 0.1}}]"),
            "routes[0].drill.reason: expected a reason beside a share above 0, got nothing");
  EXPECT_THAT(with("routes: [{name: a, artifact: x, drill: {reason: unreachable}}]"),
              HasSubstr("routes[0].drill.reason: expected one of invalid_request, "));
  EXPECT_EQ(with("metrics: {latency_buckets: [0.1, 0.1]}"),
            "metrics.latency_buckets[1]: expected a number above 0.1 (ascending, in seconds), got "
            "0.1");
  EXPECT_EQ(with("engine: {tile_tokens: 5000}"),
            "engine.tile_tokens: expected 16 to 4096, got 5000");
  EXPECT_EQ(with("log: {level: loud}"),
            "log.level: expected one of debug, info, warn, error, got \"loud\"");
  EXPECT_EQ(with("routes: [{name: a, artifact: x, source_config: c.json}]"),
            "routes[0].target_config: expected both source_config and target_config or neither, "
            "got \"\"");
}

TEST(ConfigTest, AllProblemsAreToldAtOnce) {
  EXPECT_THAT(ErrorOf(File("engine: {threads: -1}\nlimits: {max_tokens: 0}")),
              AllOf(HasSubstr("engine.threads: expected 0 to 1024, got -1"),
                    HasSubstr("limits.max_tokens: expected at least 1, got 0")));
}

TEST(ConfigTest, PlaintextOffHostIsRefusedUnlessAllowed) {
  EXPECT_THAT(ErrorOf(File("listen: {grpc: ['0.0.0.0:50061']}")),
              HasSubstr("listen.grpc[0]: expected a loopback or unix address"));
  EXPECT_THAT(ErrorOf(File("listen: {admin: '0.0.0.0:9464'}")),
              HasSubstr("listen.admin: expected a loopback address"));
  EXPECT_TRUE(
      LoadConfig(File("listen: {grpc: ['0.0.0.0:50061'], allow_plaintext_off_host: true}")).ok());
}

TEST(ConfigTest, TlsServesOtherHostsButNotTheAdminPages) {
  const std::string tls = "tls: {cert_file: c.pem, key_file: k.pem}";
  EXPECT_TRUE(LoadConfig(File("listen: {grpc: ['0.0.0.0:50061'], " + tls + "}")).ok());
  EXPECT_THAT(ErrorOf(File("listen: {admin: '0.0.0.0:9464', " + tls + "}")),
              HasSubstr("listen.admin: expected a loopback address"));
}

TEST(ConfigTest, TheHealthListenerMayBeOffThisHost) {
  EXPECT_TRUE(LoadConfig(File("listen: {health: '0.0.0.0:50062'}")).ok());
  EXPECT_THAT(ErrorOf(File("listen: {health: 'unix:/run/h.sock'}")),
              HasSubstr("listen.health: expected host:port or nothing"));
}

TEST(ConfigTest, HalfOfTlsIsRefused) {
  EXPECT_THAT(ErrorOf(File("listen: {tls: {cert_file: c.pem}}")),
              HasSubstr("listen.tls.key_file: expected both cert_file and key_file or neither"));
  EXPECT_THAT(ErrorOf(File("listen: {tls: {client_ca_file: ca.pem}}")),
              HasSubstr("listen.tls.client_ca_file: expected a file beside listen.tls.cert_file"));
  EXPECT_THAT(ErrorOf(File("listen: {tls: {refresh_interval: 0s}}")),
              HasSubstr("listen.tls.refresh_interval: expected more than 0s, got 0"));
}

TEST(ConfigTest, GrantsNameKnownGroupsAndNeedAnAuthority) {
  const auto with = [](const std::string& grant) {
    return ErrorOf(File("auth: {san: [" + grant + "]}"));
  };
  EXPECT_THAT(with("{name: a, groups: [transfer, root]}"),
              AllOf(HasSubstr("auth.san: expected none without listen.tls.client_ca_file, got 1"),
                    HasSubstr("auth.san[0].groups: expected transfer, plan, memory or admin, got "
                              "\"root\"")));
  EXPECT_THAT(with("{name: a}"), HasSubstr("auth.san[0].groups: expected at least one group"));
}

TEST(ConfigTest, TenantsAreNamedOnceAndWeighSomething) {
  EXPECT_THAT(ErrorOf(File("tenants: [{name: a, weight: 0}, {name: a}, {name: 'b c'}]")),
              AllOf(HasSubstr("tenants[0].weight: expected a number above 0, at most 1000, got 0"),
                    HasSubstr("tenants[1].name: expected a name used once, got \"a\""),
                    HasSubstr("tenants[2].name: expected 1 to 128 printable characters")));
}

TEST(ConfigTest, NamedSharedMemoryIsSomebodysAlone) {
  const auto with = [](const std::string& named) {
    return LoadConfig(File("memory: {socket: /run/m.sock, named_shm: [" + named + "]}"));
  };
  const auto good = with("{prefix: psm_, uid: 1000}, {tenant: ben, prefix: ben-}");
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_FALSE(good->config.memory().named_shm(1).has_uid());
  EXPECT_THAT(PrintYaml(*good),
              AllOf(HasSubstr("tenant: \"\"  # default"), HasSubstr("prefix: \"psm_\"  # file"),
                    HasSubstr("uid: 1000  # file")));
  EXPECT_THAT(
      std::string(with("{tenant: 'b c', prefix: .x}, {prefix: ben-}, {prefix: ben-2-}, {tenant: a}")
                      .status()
                      .message()),
      AllOf(HasSubstr("memory.named_shm[0].tenant: expected nothing, or a tenant's name"),
            HasSubstr("memory.named_shm[0].prefix: expected 1 to 64 characters of "
                      "[A-Za-z0-9._-], first no dot, got \".x\""),
            HasSubstr("memory.named_shm[2].prefix: expected names apart from "
                      "named_shm[1]'s, got \"ben-2-\""),
            HasSubstr("memory.named_shm[3].prefix: expected 1 to 64 characters")));
  EXPECT_THAT(std::string(with("{prefix: a, uid: -1}").status().message()),
              HasSubstr("memory.named_shm[0].uid: expected"));
  EXPECT_THAT(ErrorOf(File("memory: {named_shm: [{prefix: a}]}")),
              HasSubstr("memory.named_shm: expected none without memory.socket, got 1"));
}

TEST(ConfigTest, NestedSettingsHaveFlagsAndVariables) {
  const auto loaded = LoadConfig({.env = {{"KVBRIDGE_LISTEN_TLS_REFRESH_INTERVAL", "3s"},
                                          {"KVBRIDGE_MEMORY_ALLOWED_UIDS", "7,8"}},
                                  .flags = {{"listen.tls.refresh_interval", "2s"}}});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.listen().tls().refresh_interval().seconds(), 2);
  EXPECT_EQ(loaded->config.memory().allowed_uids(1), 8u);
  EXPECT_EQ(loaded->origins.at("listen.tls.refresh_interval"), Origin::kFlag);
  EXPECT_EQ(FlagName("listen.tls.refresh_interval"), "--listen-tls-refresh-interval");
}

TEST(ConfigTest, BadAndRepeatedAddressesAreRefused) {
  EXPECT_THAT(ErrorOf(File("listen: {grpc: [localhost]}")),
              HasSubstr("listen.grpc[0]: expected host:port or unix:/path, got \"localhost\""));
  EXPECT_THAT(ErrorOf(File("listen: {grpc: ['127.0.0.1:99999']}")), HasSubstr("listen.grpc[0]"));
  EXPECT_THAT(ErrorOf(File("listen: {grpc: ['127.0.0.1:5', '127.0.0.1:5']}")),
              HasSubstr("listen.grpc[1]: expected an address listed once"));
}

TEST(ConfigTest, ThePrintedYamlReadsBackToTheSameConfiguration) {
  const auto loaded = LoadConfig(File(R"(
drain: {delay: 1500ms}
routes:
  - {name: a, artifact: "x # \"y\"", stage: canary, policy: {max_latency: 2s, salt: "true"}}
)"));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const std::string text = PrintYaml(*loaded);
  EXPECT_THAT(text, HasSubstr("  delay: \"1.5s\"  # file\n"));
  EXPECT_THAT(text, HasSubstr("  threads: 0  # default\n"));
  const auto again = LoadConfig(File(text));
  ASSERT_TRUE(again.ok()) << again.status() << "\n" << text;
  EXPECT_EQ(again->config.SerializeAsString(), loaded->config.SerializeAsString());
}

TEST(ConfigTest, ThePrintedJsonHoldsValuesAndOrigins) {
  const auto loaded = LoadConfig(File(kMinimal));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const auto json = nlohmann::json::parse(PrintJson(*loaded));
  EXPECT_EQ(json["config"]["engine"]["tile_tokens"], 256);
  EXPECT_EQ(json["config"]["routes"][0]["stage"], "live");
  EXPECT_EQ(json["origins"]["routes[0].artifact"], "file");
  EXPECT_EQ(json["origins"]["engine.tile_tokens"], "default");
}

TEST(ConfigTest, SettingsAreTheScalarsOutsideRoutes) {
  const auto settings = Settings();
  EXPECT_THAT(settings, ::testing::Contains("listen.allow_plaintext_off_host"));
  EXPECT_EQ(EnvName("listen.grpc"), "KVBRIDGE_LISTEN_GRPC");
  EXPECT_EQ(FlagName("limits.max_tokens"), "--limits-max-tokens");
}

TEST(ConfigTest, EveryExampleLoads) {
  int examples = 0;
  for (const auto& entry : std::filesystem::directory_iterator("configs")) {
    if (entry.path().extension() != ".yaml") continue;
    const auto loaded =
        LoadConfig({.file_name = entry.path().filename(), .file_text = ReadText(entry.path())});
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    ++examples;
  }
  EXPECT_GE(examples, 2);
}

// The full example is the reference: it states every setting there is.
TEST(ConfigTest, TheFullExampleNamesEverySetting) {
  const auto loaded =
      LoadConfig({.file_name = "full.yaml", .file_text = ReadText("configs/full.yaml")});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  for (const std::string& setting : Settings()) {
    EXPECT_EQ(loaded->origins.at(setting), Origin::kFile) << setting;
  }
}

}  // namespace
}  // namespace kvbridge::server
