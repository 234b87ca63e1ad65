#include "core/device/cpu/cpu_backend.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/device/cpu/map_layers.h"
#include "core/device/cpu/prepared_tile.h"
#include "core/device/cpu/resident_weights.h"

namespace kvbridge::device {
namespace {

// Only this backend's own objects are handed back to it.
const cpu::ResidentWeights& Own(const ResidentMapper& mapper) {
  return static_cast<const cpu::ResidentWeights&>(mapper);
}

const cpu::CpuTile& Own(const PreparedTile& tile) { return static_cast<const cpu::CpuTile&>(tile); }

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

uint64_t CpuBackend::WorkspaceBytes(const ResidentMapper& mapper, int64_t tokens) const {
  return cpu::CpuTile::Bytes(Own(mapper), tokens, lanes());
}

absl::StatusOr<std::unique_ptr<PreparedTile>> CpuBackend::Prepare(const ResidentMapper& mapper,
                                                                  const TileSource& source) {
  return cpu::CpuTile::Create(Own(mapper), source, kernels_, lanes(), *pool_, workers_);
}

absl::StatusOr<TileChecks> CpuBackend::MapLayers(const ResidentMapper& mapper,
                                                 const PreparedTile& tile, kv::LayerRange layers,
                                                 const kv::KvView& target, int64_t target_begin,
                                                 absl::FunctionRef<bool()> cancelled) {
  return cpu::MapLayers(Own(mapper), Own(tile), layers, target, target_begin, kernels_, workers_,
                        cancelled);
}

}  // namespace kvbridge::device
