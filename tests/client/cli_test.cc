// Runs the built binary, as a script would.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/cli/spec_convert.h"
#include "core/artifact/cache_file.h"
#include "core/artifact/spec_json.h"
#include "core/base/strict_json.h"
#include "tests/support/fake_kvbridge_server.h"

namespace kvbridge::cli {
namespace {

namespace fs = std::filesystem;
using base::Json;
using test::Behaviour;
using test::FakeKvbridgeServer;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kFamily[] = "tests/data/family";
constexpr char kArtifact[] = "tests/data/family/artifacts/prototype-small-to-large-k4-bf16";

std::string ReadAll(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

struct Finished {
  int code = -1;
  std::string out;
  std::string err;

  Json json() const { return base::ParseStrictJson(out, "stdout").value(); }
  Json error() const { return base::ParseStrictJson(err, "stderr").value(); }
};

class CliTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    dir_ = fs::path(::testing::TempDir()) /
           (std::string("kvbridge-cli-") + info->name() + "-" + std::to_string(getpid()));
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  Finished Run(const std::string& arguments) const {
    const std::string command = std::string(KVBRIDGE_CLI) + " " + arguments + " >" +
                                (dir_ / "out").string() + " 2>" + (dir_ / "err").string();
    const int status = std::system(command.c_str());
    return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
            .out = ReadAll(dir_ / "out"),
            .err = ReadAll(dir_ / "err")};
  }
  std::string Path(const std::string& name) const { return (dir_ / name).string(); }

  // The family's artifact with RoPE and the target's key norms.
  std::string NativeArtifact() const {
    const Finished converted = Run(std::string("artifact convert --source-config ") + kFamily +
                                   "/small/config.json --target-config " + kFamily +
                                   "/large/config.json --key-norm-from " + kFamily + "/large " +
                                   kArtifact + " " + Path("native"));
    EXPECT_EQ(converted.code, 0) << converted.err;
    return Path("native");
  }

  // A cache of the artifact's source model, every element the same.
  void WriteSource(const std::string& artifact, int64_t tokens) {
    const Json inspected = Run("inspect --format json " + artifact).json();
    artifact::CacheFile cache;
    cache.spec = artifact::SpecFromJson(inspected["source"], "source").value();
    cache.positions.resize(static_cast<size_t>(tokens));
    std::iota(cache.positions.begin(), cache.positions.end(), 0);
    const auto& g = cache.spec.geometry;
    std::vector<std::byte> bytes(static_cast<size_t>(g.token_bytes() * tokens));
    for (size_t i = 1; i < bytes.size(); i += 2) bytes[i] = std::byte{0x3f};  // bf16 0.5
    cache.view = kv::DenseHeadMajorView(bytes.data(), bytes.data() + bytes.size() / 2, g.dtype,
                                        g.layers, tokens, g.kv_heads, g.head_dim);
    ASSERT_TRUE(artifact::WriteCacheFile(Path("in"), cache).ok());
    source_ = cache.spec;
  }

  fs::path dir_;
  model::ModelSpec source_;
};

TEST_F(CliTest, VersionIsDataOnStdout) {
  EXPECT_THAT(Run("version").out, StartsWith("kvbridge "));
  const Finished json = Run("version --format json");
  EXPECT_EQ(json.code, 0);
  EXPECT_EQ(json.json()["schema"], "kvbridge.version/v1");
  EXPECT_EQ(json.err, "");
}

TEST_F(CliTest, UsageErrorsAreTwoAndNameTheNearestWord) {
  const auto expect = [&](const std::string& arguments, const std::string& message) {
    const Finished run = Run(arguments);
    EXPECT_EQ(run.code, 2) << arguments;
    EXPECT_EQ(run.out, "") << arguments;
    EXPECT_THAT(run.err, HasSubstr(message)) << arguments;
  };
  expect("", "expected a command; see kvbridge --help");
  expect("trasnfer", "unknown command trasnfer (did you mean transfer?)");
  expect("artifact lsit", "unknown command lsit (did you mean list?); see kvbridge artifact");
  expect("transfer --inn x", "unknown option --inn (did you mean --in?)");
  expect("version --formt=json", "unknown option --formt (did you mean --format?)");
  expect("version --format xml", "--format");
  expect("transfer --in a --out b", "--artifact DIR or --server ADDR");
  expect("transfer --in a --out b --server c:1", "--route");
  expect("transfer --in a --out b --artifact c --server d:1 --route e", "excludes");
  expect("plan --artifact a", "--prompt-tokens");
  expect("inspect", "an artifact folder or --config");
  expect("health", "--server");
  expect("routes set", "; see kvbridge routes set --help");
  expect("routes set r --server a:1", "--stage or --circuit is required");
  expect("fit accumulate s -o m --shard 3/2", "--shard: expected I/N with I from 1 to N, got 3/2");
  for (const char* weight : {"code", "=1", "code=", "code=0", "code=-1", "code=nan", "code=x"}) {
    expect(std::string("fit accumulate s -o m --domain-weight ") + weight,
           std::string("--domain-weight: expected DOMAIN=WEIGHT with a weight above 0, got ") +
               weight);
  }
  expect("health --server /run/k.sock",
         "--server: expected host:port or unix:/path.sock, got /run/k.sock (did you mean "
         "unix:/run/k.sock?); see kvbridge health --help");
  for (const char* address :
       {"localhost", "host:", "host:x", "host:70000", ":1", "http://host:1"}) {
    expect(std::string("health --server ") + address,
           std::string("--server: expected host:port or unix:/path.sock, got ") + address + ";");
  }
  const Finished json = Run("health --format json");
  EXPECT_EQ(json.code, 2);
  EXPECT_EQ(json.error()["schema"], "kvbridge.error/v1");
  EXPECT_EQ(json.error()["exit_code"], 2);
}

// A word that is a command elsewhere, too.
TEST_F(CliTest, WhatFollowsACommandIsTheCommands) {
  EXPECT_THAT(Run("man transfer").out, StartsWith(".TH KVBRIDGE\\-TRANSFER 1 "));
  EXPECT_EQ(Run("man routes set").out, Run("man kvbridge-routes-set").out);
  EXPECT_EQ(Run("man").out, Run("man kvbridge").out);
  const Finished unknown = Run("man routes sett");
  EXPECT_EQ(unknown.code, 3);
  EXPECT_THAT(unknown.err, HasSubstr("kvbridge-routes-sett (did you mean kvbridge-routes-set?)"));
  EXPECT_THAT(Run("man kvbridged").err, HasSubstr("kvbridged --man-page"));
  EXPECT_THAT(Run("inspect transfer").err, StartsWith("kvbridge: transfer: artifact folder"));
}

TEST_F(CliTest, ErrorsNameTheFileAsItWasGiven) {
  const auto expect = [&](const std::string& arguments, const std::string& message) {
    const Finished run = Run(arguments);
    EXPECT_EQ(run.code, 3) << arguments;
    EXPECT_EQ(run.err, "kvbridge: " + message + "\n") << arguments;
  };
  const std::string artifact = std::string(" --artifact ") + kArtifact;
  expect("inspect /nowhere/a", "/nowhere/a: artifact folder: does not exist or is no folder");
  expect("inspect --config /nowhere/c", "open /nowhere/c: No such file or directory");
  expect("plan --fit /nowhere/f", "open /nowhere/f: No such file or directory");
  expect("transfer --in /nowhere/i --out " + Path("o") + artifact,
         "open /nowhere/i: No such file or directory");
  expect("validate r --gate /nowhere/g" + artifact, "open /nowhere/g: No such file or directory");
  expect("artifact convert /nowhere/a " + Path("o"),
         "/nowhere/a: expected an artifact folder, got none");
  expect("fit /nowhere/s -o " + Path("o"),
         "/nowhere/s: expected a folder of shards: No such file or directory");
  expect("fit solve --moments /nowhere/m -o " + Path("o"),
         "open /nowhere/m: No such file or directory");
  expect("version --output /nowhere/v", "create /nowhere/v: No such file or directory");
}

// The name of a file may be any bytes.
TEST_F(CliTest, AnErrorAboutAnyFileIsJson) {
  const Finished run = Run("--format json inspect $(printf 'a\\377\\033')");
  EXPECT_EQ(run.code, 3);
  EXPECT_EQ(run.error()["message"],
            "a\xef\xbf\xbd\x1b: artifact folder: does not exist or is no folder");
}

TEST_F(CliTest, HelpIsNoError) {
  const Finished help = Run("--help");
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("Exit codes"));
}

TEST_F(CliTest, InspectPrintsATableOfLayers) {
  const Finished run = Run(std::string("inspect ") + kArtifact);
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("format       prototype\n"));
  EXPECT_THAT(run.out, HasSubstr("(every file verified)\n"));
  EXPECT_THAT(run.out, HasSubstr("8 layers, 2 heads x 64, bf16\n"));
  EXPECT_THAT(run.out, HasSubstr("evidence     UNPROVEN\n"));
  EXPECT_THAT(run.out, HasSubstr(R"(
TARGET LAYER  KEYS FROM  VALUES FROM  SUPPORT
           0  0 1 2 3    0 1 2 3      full
           1  1 2 0 3    1 2 0 3      full
           2  1 2 0 3    1 2 0 3      full
           3  1 2 3 0    1 2 3 0      full
           4  2 1 3 0    2 1 3 0      full
           5  2 3 1 0    2 3 1 0      full
           6  3 2 1 0    3 2 1 0      full
           7  3 2 1 0    3 2 1 0      full
)"));
}

TEST_F(CliTest, InspectOfAConfigIsTheProtoMessage) {
  const std::string arguments = std::string("inspect --config ") + kFamily + "/small/config.json";
  const Json text = Run(arguments).json();
  EXPECT_EQ(text["geometry"]["layers"], 4);
  const Json document = Run(arguments + " --format json").json();
  EXPECT_EQ(document["schema"], "kvbridge.model/v1");
  EXPECT_EQ(document["model"], text);
}

TEST_F(CliTest, ADamagedArtifactIsThree) {
  fs::copy(kArtifact, dir_ / "damaged");
  std::fstream weights(dir_ / "damaged" / "mapper.safetensors",
                       std::ios::in | std::ios::out | std::ios::binary);
  weights.seekp(-1, std::ios::end);
  weights.put('\x7f');
  weights.close();
  const Finished run = Run("inspect --format json " + Path("damaged"));
  EXPECT_EQ(run.code, 3);
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(run.error()["code"], "data_loss");
  EXPECT_EQ(Run("inspect " + Path("nowhere")).code, 3);
}

TEST_F(CliTest, OutputGoesToAFile) {
  const Finished run = Run("version --output " + Path("version.txt"));
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.out, "");
  EXPECT_THAT(ReadAll(Path("version.txt")), StartsWith("kvbridge "));
}

TEST_F(CliTest, TheSourceIsNeverOverwrittenByTheAnswer) {
  const std::string native = NativeArtifact();
  WriteSource(native, 20);
  const std::string before = ReadAll(Path("in"));
  const Finished run = Run("transfer --format json --allow-unproven --artifact " + native +
                           " --in " + Path("in") + " --out " + Path("in"));
  EXPECT_EQ(run.code, 3) << run.out;
  EXPECT_THAT(std::string(run.error()["message"]), HasSubstr("--out: expected another file"));
  EXPECT_EQ(ReadAll(Path("in")), before);
}

TEST_F(CliTest, ConvertedArtifactsMapInThisProcess) {
  const std::string native = NativeArtifact();
  WriteSource(native, 20);
  const std::string transfer = "transfer --format json --artifact " + native + " --in " +
                               Path("in") + " --out " + Path("out.safetensors");
  const Finished unproven = Run(transfer);
  EXPECT_EQ(unproven.code, 0);
  EXPECT_EQ(unproven.json()["reason"], "unproven_pair");
  EXPECT_THAT(unproven.err, HasSubstr("--allow-unproven"));
  EXPECT_EQ(Run(transfer + " --fail-on-fallback").code, 1);
  EXPECT_FALSE(fs::exists(Path("out.safetensors")));

  const Finished run = Run(transfer + " --allow-unproven --native-tail 4");
  EXPECT_EQ(run.code, 0) << run.err;
  const Json report = run.json();
  EXPECT_EQ(report["schema"], "kvbridge.transfer/v1");
  EXPECT_EQ(report["outcome"], "applied") << run.out;
  EXPECT_EQ(report["covered_tokens"], 16);
  EXPECT_EQ(report["out"], Path("out.safetensors"));
  const auto answer = artifact::ReadCacheFile(Path("out.safetensors"));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->view.layers, 8);
  EXPECT_EQ(answer->view.tokens, 16);
  EXPECT_EQ(answer->positions.size(), 16u);
}

TEST_F(CliTest, ALatencyBudgetOfZeroFallsBack) {
  const std::string native = NativeArtifact();
  WriteSource(native, 20);
  const Finished run = Run("transfer --format json --allow-unproven --max-latency 0 --artifact " +
                           native + " --in " + Path("in") + " --out " + Path("o"));
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.json()["reason"], "latency_budget");
  EXPECT_EQ(run.json()["reason_class"], "capacity");
}

TEST_F(CliTest, AnotherModelsCacheIsFour) {
  const std::string native = NativeArtifact();
  WriteSource(native, 4);
  artifact::CacheFile other = artifact::ReadCacheFile(Path("in")).value();
  other.spec.identity.tokenizer_sha256 = std::string(64, '0');
  ASSERT_TRUE(artifact::WriteCacheFile(Path("other"), other).ok());
  const Finished run = Run("transfer --format json --allow-unproven --artifact " + native +
                           " --in " + Path("other") + " --out " + Path("o"));
  EXPECT_EQ(run.code, 4) << run.err << run.out;
  EXPECT_EQ(run.json()["reason"], "incompatible_model");
  EXPECT_THAT(std::string(run.json()["detail"]), HasSubstr("tokenizer_sha256"));
}

TEST_F(CliTest, ConvertingLeavesAnExistingFolderAlone) {
  const std::string native = NativeArtifact();
  const std::string again = std::string("artifact convert --source-config ") + kFamily +
                            "/small/config.json --target-config " + kFamily +
                            "/large/config.json " + kArtifact + " " + native;
  EXPECT_EQ(Run(again).code, 3);
  EXPECT_EQ(Run("inspect --format json " + native).json()["key_norm"], "k_norm");
  EXPECT_EQ(Run(again + " --overwrite").code, 0);
  EXPECT_EQ(Run("inspect --format json " + native).json()["key_norm"], "none");
}

TEST_F(CliTest, PlansAPairFromItsConfigs) {
  const std::string pair =
      "plan pair tests/data/family/small/config.json tests/data/family/large/config.json ";
  const auto find = [](const Json& plan, const char* stage, const char* name) {
    for (const auto& q : plan["quantities"]) {
      if (q["stage"] == stage && q["name"] == name) return q;
    }
    return Json();
  };
  Json plan = Run(pair + "-k 4 --no-measure --format json").json();
  EXPECT_EQ(plan["schema"], "kvbridge.pair-plan/v1");
  // 2 components x 8 layers x 2 heads x 64, of 4 layers x 128 features and a bias.
  EXPECT_EQ(find(plan, "mapper", "parameters")["value"], 2 * 8 * 128 * (4 * 128 + 1));
  EXPECT_EQ(find(plan, "accumulate", "time")["source"], "unmeasured");
  EXPECT_TRUE(find(plan, "accumulate", "time")["value"].is_null());
  plan = Run(pair + "--prefill-rate 2000 --format json").json();
  EXPECT_EQ(find(plan, "accumulate", "time")["source"], "measured");
  EXPECT_GT(find(plan, "serve", "break-even")["value"], 0);

  EXPECT_EQ(Run(pair + "--memory 1MB").code, 6);
  EXPECT_EQ(Run(pair + "--stride 0").code, 3);
  EXPECT_EQ(Run("plan pair tests/data/family/small/config.json").code, 2);
}

TEST_F(CliTest, PlanWithoutAServerKnowsSizesOnly) {
  const Finished run =
      Run(std::string("plan --format json --prompt-tokens 1000 --artifact ") + kArtifact);
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.json()["schema"], "kvbridge.plan/v1");
  EXPECT_EQ(run.json()["covered_tokens"], 999);
  EXPECT_EQ(run.json()["map_seconds"]["source"], "unmeasured");
}

TEST_F(CliTest, HealthIsATableAndAGate) {
  FakeKvbridgeServer server({});
  const Finished run = Run("health --server " + server.target());
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.out, R"(state    ready
version  9.9.9

ROUTE           STAGE  CIRCUIT  SERVING  ARTIFACT      VERDICT  DETAIL
small-to-large  live   closed   yes      aaaaaaaaaaaa  PASS     -
)");
  EXPECT_EQ(Run("health --route nowhere --server " + server.target()).code, 3);
  const Finished down = Run("health --format json --server 127.0.0.1:1");
  EXPECT_EQ(down.code, 5);
  EXPECT_EQ(down.error()["code"], "unavailable");
}

TEST_F(CliTest, DoctorJudgesThisHostAndAServer) {
  const Finished host = Run("doctor --format json --socket " + (dir_ / "fd.sock").string());
  const Json document = host.json();
  EXPECT_EQ(document["schema"], "kvbridge.doctor/v1");
  EXPECT_EQ(host.code, document["verdict"] == "bad" ? 1 : 0);
  for (const Json& check : document["checks"]) {
    EXPECT_EQ(check["advice"] == "", check["verdict"] == "ok") << check;
  }

  FakeKvbridgeServer server({});
  const Finished both = Run("doctor --server " + server.target());
  EXPECT_THAT(both.out, StartsWith("VERDICT  CHECK"));
  EXPECT_THAT(both.out, HasSubstr("version 9.9.9, "));
  EXPECT_THAT(both.out, HasSubstr("server_regions: the region plane needs it"));
  const Finished down = Run("doctor --format json --server 127.0.0.1:1");
  EXPECT_EQ(down.code, 1);
  EXPECT_EQ(down.json()["checks"].back()["check"], "server");
  EXPECT_EQ(down.json()["checks"].back()["verdict"], "bad");
}

TEST_F(CliTest, AServersArtifactsAreListedLoadedAndUnloaded) {
  FakeKvbridgeServer server({});
  EXPECT_EQ(Run("artifact list --server " + server.target()).out,
            R"(ROUTE           ARTIFACT      RESIDENT  VERDICT  LOAD S  LAST ERROR
small-to-large  aaaaaaaaaaaa  4.0 KiB   PASS        1.5  -
)");
  const std::string route = " --route small-to-large --server " + server.target();
  EXPECT_EQ(Run("artifact load --format json" + route).json()["artifacts"][0]["verdict"],
            "UNPROVEN");
  EXPECT_EQ(Run("artifact load" + route + " damaged").code, 3);
  EXPECT_EQ(Run("artifact unload" + route).code, 0);
}

TEST_F(CliTest, PlanAsksTheServer) {
  FakeKvbridgeServer server({});
  const Finished run =
      Run("plan --route small-to-large --prompt-tokens 100 --server " + server.target());
  EXPECT_EQ(run.code, 0);
  EXPECT_THAT(run.out, HasSubstr("worth it  yes\n"));
  EXPECT_THAT(run.out, HasSubstr("0.25 s (measured)"));
}

// An identity route: the answer is the source.
TEST_F(CliTest, AServerMapsAFile) {
  WriteSource(NativeArtifact(), 20);
  FakeKvbridgeServer server({.route_target = ToProto(source_).value()});
  const std::string transfer = "transfer --format json --in " + Path("in") + " --out " +
                               Path("answer") + " --server " + server.target() + " --route ";
  const Finished run = Run(transfer + "small-to-large");
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.json()["outcome"], "applied") << run.out;
  EXPECT_EQ(run.json()["plane"], "inline");
  EXPECT_EQ(run.json()["plane_reason"], "not_offered");
  const Json insisting = Run(transfer + "small-to-large --plane region").json();
  EXPECT_EQ(insisting["reason"], "transport");
  EXPECT_THAT(std::string(insisting["detail"]), HasSubstr("not_offered"));
  const auto source = artifact::ReadCacheFile(Path("in")).value();
  const auto answer = artifact::ReadCacheFile(Path("answer")).value();
  EXPECT_EQ(answer.view.tokens, 19);
  EXPECT_EQ(answer.spec, source.spec);
  std::vector<float> expected(static_cast<size_t>(19 * source.view.row()));
  std::vector<float> got(expected.size());
  kv::ReadRows(source.view, 3, kv::Component::kValue, {0, 19}, expected.data());
  kv::ReadRows(answer.view, 3, kv::Component::kValue, {0, 19}, got.data());
  EXPECT_EQ(got, expected);

  const Finished unknown = Run(transfer + "nowhere");
  EXPECT_EQ(unknown.code, 3);
  EXPECT_THAT(std::string(unknown.error()["message"]), HasSubstr("small-to-large"));
}

TEST_F(CliTest, AServerThatBreaksOffLeavesNoFile) {
  WriteSource(NativeArtifact(), 20);
  FakeKvbridgeServer server(
      {.behaviour = Behaviour::kCloseMidway, .route_target = ToProto(source_).value()});
  const Finished run = Run("transfer --in " + Path("in") + " --out " + Path("answer") +
                           " --server " + server.target() + " --route small-to-large");
  EXPECT_EQ(run.code, 5);
  EXPECT_THAT(run.out, HasSubstr("transport (infra)"));
  EXPECT_FALSE(fs::exists(Path("answer")));
}

}  // namespace
}  // namespace kvbridge::cli
