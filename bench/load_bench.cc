// Times what stands between an artifact on disk and serving it, against hashing its bytes alone on
// the same cores, turn by turn in one process. The files should be in the page cache. JSON on
// stdout.
//
//   make_artifact DIR --layers 28 && load_bench DIR

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <functional>
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "core/artifact/artifact.h"
#include "core/base/file.h"
#include "core/base/status_macros.h"
#include "core/base/worker_pool.h"
#include "core/crypto/sha256.h"
#include "core/device/cpu/cpu_backend.h"

namespace kvbridge::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Args {
  std::filesystem::path dir;
  int threads = 0;
  int reps = 5;
};

double Seconds(const std::function<absl::Status()>& body) {
  const auto start = std::chrono::steady_clock::now();
  if (const absl::Status status = body(); !status.ok()) {
    std::cerr << status << "\n";
    std::exit(1);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Of the process, user and system.
double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

absl::Status HashAll(const std::filesystem::path& dir, base::WorkerPool* pool) {
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    KVB_ASSIGN_OR_RETURN(const auto file, base::MappedFile::Open(entry.path()));
    KVB_RETURN_IF_ERROR(crypto::HashTree(file->bytes(), pool).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> Run(const Args& args) {
  KVB_ASSIGN_OR_RETURN(const auto pool, base::WorkerPool::Create({.threads = args.threads}));
  KVB_ASSIGN_OR_RETURN(const auto backend,
                       device::CpuBackend::Create({}, pool.get(), kv::BufferPool::Create(1 << 20)));
  std::vector<double> hash, load, resident, ratio, cpu_ratio;
  uint64_t bytes = 0;
  // The first round warms the page cache and is not kept.
  for (int rep = 0; rep <= args.reps; ++rep) {
    const double cpu_begin = CpuSeconds();
    const double hash_s = Seconds([&] { return HashAll(args.dir, pool.get()); });
    const double cpu_hashed = CpuSeconds();
    artifact::Artifact loaded;
    const double load_s = Seconds([&]() -> absl::Status {
      KVB_ASSIGN_OR_RETURN(
          loaded, artifact::LoadArtifact(
                      args.dir, {.pool = pool.get(), .check_finite = false, .verify_later = true}));
      return absl::OkStatus();
    });
    std::unique_ptr<device::ResidentMapper> mapper;
    const double resident_s = Seconds([&]() -> absl::Status {
      KVB_ASSIGN_OR_RETURN(
          mapper, backend->MakeResident(loaded.mapper, device::Precision::kBf16, loaded.verify));
      return absl::OkStatus();
    });
    const double cpu_end = CpuSeconds();
    bytes = mapper->resident_bytes();
    if (rep == 0) continue;
    hash.push_back(hash_s);
    load.push_back(load_s);
    resident.push_back(resident_s);
    ratio.push_back((load_s + resident_s) / hash_s);
    cpu_ratio.push_back((cpu_end - cpu_hashed) / (cpu_hashed - cpu_begin));
  }
  return Json{{"threads", pool->threads()},
              {"reps", args.reps},
              {"resident_bytes", bytes},
              {"hash_s", Median(hash)},
              {"load_s", Median(load)},
              {"resident_s", Median(resident)},
              {"ratio", Median(ratio)},
              {"cpu_ratio", Median(cpu_ratio)},
              {"ratio_min", *std::min_element(ratio.begin(), ratio.end())},
              {"ratio_max", *std::max_element(ratio.begin(), ratio.end())}};
}

}  // namespace
}  // namespace kvbridge::bench

int main(int argc, char** argv) {
  kvbridge::bench::Args args;
  CLI::App app("Times loading an artifact against hashing it.");
  app.add_option("dir", args.dir, "artifact folder")->required();
  app.add_option("--threads", args.threads, "0: one per CPU");
  app.add_option("--reps", args.reps, "counted rounds")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  const auto result = kvbridge::bench::Run(args);
  if (!result.ok()) {
    std::cerr << result.status() << "\n";
    return 1;
  }
  std::cout << result->dump(2) << "\n";
}
