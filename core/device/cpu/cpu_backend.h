// The CPU backend: hand-written kernels for AMX-BF16, AVX-512 BF16, AVX2 and plain x86-64, chosen
// when it is created. Tiles share the process's WorkerPool; workspace comes from its BufferPool.
//
// Bytes are reproducible for one instruction set; between instruction sets they differ by rounding.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/worker_pool.h"
#include "core/device/backend.h"
#include "core/device/cpu/isa.h"
#include "core/kv/buffer_pool.h"

namespace kvbridge::device {

class CpuBackend final : public Backend {
 public:
  // Tiles above this gain nothing; below about a quarter of it, reading the weights dominates.
  static constexpr int64_t kPreferredTileTokens = 512;

  struct Options {
    std::optional<Isa> isa;  // empty: the machine's fastest
  };

  // `workers` outlives the backend. FAILED_PRECONDITION when the machine lacks the wanted Isa.
  static absl::StatusOr<std::unique_ptr<CpuBackend>> Create(Options options,
                                                            base::WorkerPool* workers,
                                                            std::shared_ptr<kv::BufferPool> pool);

  std::string name() const override;
  absl::StatusOr<std::unique_ptr<ResidentMapper>> MakeResident(
      std::shared_ptr<const mapper::Mapper> mapper, Precision precision,
      const VerifyWeights& verify) override;
  uint64_t TileBytes(const ResidentMapper& mapper, int64_t tokens, SourceUse use) const override;
  uint64_t CallBytes(const ResidentMapper& mapper, int64_t tokens) const override;
  absl::StatusOr<std::unique_ptr<PreparedTile>> Prepare(const ResidentMapper& mapper,
                                                        const TileSource& source) override;
  std::vector<absl::StatusOr<TileChecks>> MapTogether(const ResidentMapper& mapper,
                                                      kv::LayerRange layers,
                                                      std::span<const TilePart> parts) override;

 private:
  CpuBackend(Isa isa, base::WorkerPool* workers, std::shared_ptr<kv::BufferPool> pool);

  const cpu::KernelSet& kernels_;
  base::WorkerPool& workers_;
  const std::shared_ptr<kv::BufferPool> pool_;
};

}  // namespace kvbridge::device
