// The CPU backend with faults: for tests that need it to wait or to compute wrongly.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/device/cpu/cpu_backend.h"
#include "core/kv/buffer_pool.h"

namespace kvbridge::store {

class HookedBackend final : public device::Backend {
 public:
  explicit HookedBackend(base::WorkerPool* pool)
      : real_(device::CpuBackend::Create({}, pool, kv::BufferPool::Create(uint64_t{256} << 20))
                  .value()) {}

  std::function<void()> before_make_resident = [] {};
  // Sees what was written, and may change it.
  std::function<void(const kv::KvView&, device::TileChecks*)> after_map =
      [](const kv::KvView&, device::TileChecks*) {};

  std::string name() const override { return real_->name(); }
  absl::StatusOr<std::unique_ptr<device::ResidentMapper>> MakeResident(
      std::shared_ptr<const mapper::Mapper> mapper, device::Precision precision,
      const device::VerifyWeights& verify) override {
    before_make_resident();
    return real_->MakeResident(std::move(mapper), precision, verify);
  }
  uint64_t WorkspaceBytes(const device::ResidentMapper& mapper, int64_t tokens) const override {
    return real_->WorkspaceBytes(mapper, tokens);
  }
  absl::StatusOr<std::unique_ptr<device::PreparedTile>> Prepare(
      const device::ResidentMapper& mapper, const device::TileSource& source) override {
    return real_->Prepare(mapper, source);
  }
  absl::StatusOr<device::TileChecks> MapLayers(const device::ResidentMapper& mapper,
                                               const device::PreparedTile& tile,
                                               kv::LayerRange layers, const kv::KvView& target,
                                               int64_t target_begin,
                                               absl::FunctionRef<bool()> cancelled) override {
    auto checks = real_->MapLayers(mapper, tile, layers, target, target_begin, cancelled);
    if (checks.ok()) after_map(target, &*checks);
    return checks;
  }

 private:
  std::unique_ptr<device::CpuBackend> real_;
};

}  // namespace kvbridge::store
