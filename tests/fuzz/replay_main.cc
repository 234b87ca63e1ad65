// Runs a fuzz target without a fuzzer: over every artifact of the malformed corpus and one native
// artifact, each as it is and mutated many times from a fixed seed.
//
// Usage: artifact_fuzz_replay [rounds per artifact]
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/artifact/artifact.h"
#include "core/base/worker_pool.h"
#include "tests/core/artifact/file_util.h"
#include "tests/core/artifact/synthetic_mapper.h"
#include "tests/core/artifact/temp_dir.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace kvbridge::artifact {
namespace {

constexpr uint32_t kSeed = 20261130;
constexpr int kDefaultRounds = 150;
// Larger manifests of the corpus test depth only; mutating them is slow and says nothing new.
constexpr size_t kMaxMutatedBytes = 50'000;

struct Input {
  std::string manifest;
  std::string weights;
};

std::vector<Input> Corpus() {
  std::set<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator("tests/data/golden/malformed")) {
    if (entry.is_directory()) folders.insert(entry.path());
  }
  const TempDir temp;
  auto pool = base::WorkerPool::Create({.threads = 1}).value();
  const auto mapper = SyntheticMapper({.key_norm = mapper::KeyNorm::Kind::kKNorm});
  if (!SaveArtifact(temp / "native", *mapper, {}, {.pool = pool.get()}).ok()) std::abort();
  folders.insert(temp / "native");
  std::vector<Input> corpus;
  for (const auto& folder : folders) {
    corpus.push_back({Slurp(folder / "manifest.json"), Slurp(folder / "mapper.safetensors")});
  }
  return corpus;
}

void Run(const Input& input) {
  const auto length = static_cast<uint32_t>(input.manifest.size());
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  bytes += input.manifest + input.weights;
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

// One small damage at a random place, half of the time to what looks like a number or a literal.
void Mutate(std::mt19937& random, std::string* text) {
  static const char* const kWords[] = {"-1",
                                       "1e999",
                                       "18446744073709551616",
                                       "9223372036854775807",
                                       "1.0",
                                       "true",
                                       "null",
                                       "\"\"",
                                       "[]",
                                       "{}",
                                       "0",
                                       "4294967296",
                                       "\xff",
                                       "\\ud800",
                                       "../x"};
  if (text->empty()) return;
  const size_t at = random() % text->size();
  const size_t count = 1 + random() % 8;
  switch (random() % 7) {
    case 0:
      (*text)[at] ^= static_cast<char>(1 << random() % 8);
      break;
    case 1:
      text->erase(at, count);
      break;
    case 2:
      text->insert(at, text->substr(random() % text->size(), count * 16));
      break;
    case 3:
      text->resize(at);
      break;
    default: {
      const size_t digit = text->find_first_of("0123456789", at);
      const std::string word = kWords[random() % std::size(kWords)];
      if (digit != std::string::npos) text->replace(digit, 1 + random() % 3, word);
      break;
    }
  }
}

// The length of a safetensors header after its text changed, so that the parser gets to the text.
void PutHeaderLengthRight(size_t grown, std::string* weights) {
  uint64_t length = 0;
  if (weights->size() < sizeof(length)) return;
  std::memcpy(&length, weights->data(), sizeof(length));
  length += grown;
  std::memcpy(weights->data(), &length, sizeof(length));
}

int ReplayAll(int rounds) {
  std::mt19937 random(kSeed);
  int64_t inputs = 0;
  for (const Input& original : Corpus()) {
    Run(original);
    ++inputs;
    if (original.manifest.size() > kMaxMutatedBytes) continue;
    for (int round = 0; round < rounds; ++round) {
      Input input = original;
      const size_t size = input.weights.size();
      if (round % 2 == 0) {
        Mutate(random, &input.manifest);
      } else {
        Mutate(random, &input.weights);
        if (round % 4 == 1) PutHeaderLengthRight(input.weights.size() - size, &input.weights);
      }
      Run(input);
      ++inputs;
    }
  }
  std::printf("%lld inputs from seed %u, none crashed\n", static_cast<long long>(inputs), kSeed);
  return 0;
}

}  // namespace
}  // namespace kvbridge::artifact

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : kvbridge::artifact::kDefaultRounds;
  return kvbridge::artifact::ReplayAll(rounds);
}
