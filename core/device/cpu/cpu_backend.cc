#include "core/device/cpu/cpu_backend.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/device/cpu/map_layers.h"
#include "core/device/cpu/prepared_tile.h"
#include "core/device/cpu/resident_weights.h"

namespace kvbridge::device {
namespace {

// Only this backend's own mappers are handed back to it.
const cpu::ResidentWeights& Own(const ResidentMapper& mapper) {
  return static_cast<const cpu::ResidentWeights&>(mapper);
}

}  // namespace

CpuBackend::CpuBackend(Isa isa, base::WorkerPool* workers, std::shared_ptr<kv::BufferPool> pool)
    : kernels_(cpu::KernelsFor(isa)), workers_(*workers), pool_(std::move(pool)) {}

absl::StatusOr<std::unique_ptr<CpuBackend>> CpuBackend::Create(
    Options options, base::WorkerPool* workers, std::shared_ptr<kv::BufferPool> pool) {
  const std::vector<Isa> supported = cpu::SupportedIsas();
  const Isa isa = options.isa.value_or(supported.front());
  if (std::find(supported.begin(), supported.end(), isa) == supported.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("cpu backend: this machine has no ", cpu::KernelsFor(isa).name));
  }
  return std::unique_ptr<CpuBackend>(new CpuBackend(isa, workers, std::move(pool)));
}

std::string CpuBackend::name() const { return kernels_.name; }

absl::StatusOr<std::unique_ptr<ResidentMapper>> CpuBackend::MakeResident(
    std::shared_ptr<const mapper::Mapper> mapper, Precision precision,
    const VerifyWeights& verify) {
  return cpu::ResidentWeights::Create(std::move(mapper), precision, verify, workers_);
}

uint64_t CpuBackend::TileBytes(const ResidentMapper& mapper, int64_t tokens, SourceUse use) const {
  return cpu::CpuTile::Bytes(Own(mapper), tokens, use);
}

uint64_t CpuBackend::CallBytes(const ResidentMapper& mapper, int64_t tokens) const {
  return cpu::CallBytes(Own(mapper), tokens, workers_.threads() + 1);
}

absl::StatusOr<std::unique_ptr<PreparedTile>> CpuBackend::Prepare(const ResidentMapper& mapper,
                                                                  const TileSource& source) {
  return cpu::CpuTile::Create(Own(mapper), source, kernels_, *pool_, workers_);
}

std::vector<absl::StatusOr<TileChecks>> CpuBackend::MapTogether(const ResidentMapper& mapper,
                                                                kv::LayerRange layers,
                                                                std::span<const TilePart> parts) {
  return cpu::MapTogether(Own(mapper), layers, parts, kernels_, *pool_, workers_);
}

}  // namespace kvbridge::device
