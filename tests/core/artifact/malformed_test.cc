// The 97 broken or odd prototype artifacts of tests/data/golden/malformed.
//
// `should` is the corpus's opinion. Where it leaves the choice to us:
//   metadata_missing       accepted: nothing in __metadata__ is needed, older writers left it out.
//   tensor_unknown_field   refused: a field we do not know could change a tensor's meaning.
//   schema_float           refused: a schema version is an integer.
//   fit_top_k_contradicts  refused: the lists are not what a fit with this top_k selects.
//   manifest_unknown_key   refused: what is not understood must not be ignored.
#include <fstream>
#include <iostream>
#include <map>
#include <string>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/artifact/artifact.h"
#include "core/base/file.h"
#include "core/base/strict_json.h"
#include "core/base/worker_pool.h"

namespace kvbridge::artifact {
namespace {

constexpr char kRoot[] = "tests/data/golden/malformed";

const std::map<std::string, bool>& OurChoices() {
  static const auto& choices = *new std::map<std::string, bool>{{"metadata_missing", true},
                                                                {"tensor_unknown_field", false},
                                                                {"schema_float", false},
                                                                {"fit_top_k_contradicts", false},
                                                                {"manifest_unknown_key", false}};
  return choices;
}

std::vector<base::Json> Cases() {
  std::ifstream in(std::string(kRoot) + "/cases.jsonl");
  std::vector<base::Json> cases;
  for (std::string line; std::getline(in, line);) cases.push_back(base::Json::parse(line));
  return cases;
}

bool ShouldAccept(const base::Json& test_case) {
  const auto choice = OurChoices().find(test_case["name"]);
  if (choice != OurChoices().end()) return choice->second;
  return test_case["should"].get<std::string>().rfind("accept", 0) == 0;
}

absl::Status Load(const std::string& name, base::WorkerPool* pool) {
  return LoadArtifact(std::string(kRoot) + "/" + name, {.pool = pool, .allow_missing_rope = true})
      .status();
}

class MalformedTest : public ::testing::Test {
 protected:
  std::unique_ptr<base::WorkerPool> pool_ = base::WorkerPool::Create({.threads = 2}).value();
};

TEST_F(MalformedTest, EveryCaseEndsAsItShould) {
  const std::vector<base::Json> cases = Cases();
  ASSERT_EQ(cases.size(), 97u);
  for (const base::Json& test_case : cases) {
    const std::string name = test_case["name"];
    const absl::Status status = Load(name, pool_.get());
    std::cout << name << ": " << status << "\n";
    EXPECT_EQ(status.ok(), ShouldAccept(test_case)) << name << ": " << status;
    if (!status.ok()) {
      EXPECT_NE(status.code(), absl::StatusCode::kInternal) << name;
      EXPECT_NE(status.code(), absl::StatusCode::kUnknown) << name;
      EXPECT_GT(status.message().size(), 10u) << name;
    }
  }
}

TEST_F(MalformedTest, ErrorsNameWhatIsWrong) {
  const std::map<std::string, std::pair<absl::StatusCode, std::string>> expected = {
      {"sha_mismatch", {absl::StatusCode::kDataLoss, "mapper.safetensors: expected SHA-256"}},
      {"sha_uppercase", {absl::StatusCode::kInvalidArgument, "mapper.safetensors: SHA-256"}},
      {"fingerprint_tampered", {absl::StatusCode::kDataLoss, "manifest.source_fingerprint"}},
      {"signature_tampered", {absl::StatusCode::kDataLoss, "manifest.source_fingerprint"}},
      {"tokenizer_differs", {absl::StatusCode::kDataLoss, "manifest.target_fingerprint"}},
      {"attention_kind_sliding", {absl::StatusCode::kUnimplemented, "attention_kind"}},
      {"selected_swapped", {absl::StatusCode::kInvalidArgument, "selected_layers[1]"}},
      {"selected_empty_row", {absl::StatusCode::kInvalidArgument, "selected_layers[0]"}},
      {"manifest_duplicate_keys", {absl::StatusCode::kInvalidArgument, "schema_version"}},
      {"schema_true", {absl::StatusCode::kInvalidArgument, "schema_version"}},
      {"fit_content_space_string", {absl::StatusCode::kInvalidArgument, "content_space"}},
      {"extra_tensor", {absl::StatusCode::kInvalidArgument, "key_weight.99"}},
      {"missing_tensor", {absl::StatusCode::kInvalidArgument, "value_bias.1"}},
      {"nan_weight", {absl::StatusCode::kInvalidArgument, "key_weight.0"}},
      {"inf_bias", {absl::StatusCode::kInvalidArgument, "value_bias.1"}},
      {"path_traversal", {absl::StatusCode::kInvalidArgument, "manifest.weights: unknown key"}},
      {"weights_missing", {absl::StatusCode::kNotFound, "mapper.safetensors"}},
      {"manifest_missing", {absl::StatusCode::kNotFound, "manifest.json"}},
  };
  for (const auto& [name, want] : expected) {
    const absl::Status status = Load(name, pool_.get());
    EXPECT_EQ(status.code(), want.first) << name << ": " << status;
    EXPECT_NE(status.message().find(want.second), absl::string_view::npos)
        << name << ": " << status;
  }
}

// A declared size must not be allocated before the file is seen to justify it. Sanitizers reserve
// terabytes of address space, so they cannot run under the limit.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(MalformedAllocationTest, NoCaseNeedsMoreThanItsFilesJustify) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto pool = base::WorkerPool::Create({.threads = 1}).value();
    std::ifstream statm("/proc/self/statm");
    uint64_t pages = 0;
    statm >> pages;
    const rlim_t limit = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + (48 << 20);
    const struct rlimit bound = {limit, limit};
    if (setrlimit(RLIMIT_AS, &bound) != 0) _exit(2);
    for (const base::Json& test_case : Cases()) {
      if (Load(test_case["name"], pool.get()).ok() != ShouldAccept(test_case)) _exit(3);
    }
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "wait status " << status;
}
#endif

}  // namespace
}  // namespace kvbridge::artifact
