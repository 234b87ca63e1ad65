// The CPU backend with faults: for tests that need it to wait or to compute wrongly.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

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
  uint64_t TileBytes(const device::ResidentMapper& mapper, int64_t tokens,
                     device::SourceUse use) const override {
    return real_->TileBytes(mapper, tokens, use);
  }
  uint64_t CallBytes(const device::ResidentMapper& mapper, int64_t tokens) const override {
    return real_->CallBytes(mapper, tokens);
  }
  absl::StatusOr<std::unique_ptr<device::PreparedTile>> Prepare(
      const device::ResidentMapper& mapper, const device::TileSource& source) override {
    return real_->Prepare(mapper, source);
  }
  std::vector<absl::StatusOr<device::TileChecks>> MapTogether(
      const device::ResidentMapper& mapper, kv::LayerRange layers,
      std::span<const device::TilePart> parts) override {
    auto answers = real_->MapTogether(mapper, layers, parts);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (answers[i].ok()) after_map(*parts[i].target, &*answers[i]);
    }
    return answers;
  }

 private:
  std::unique_ptr<device::CpuBackend> real_;
};

}  // namespace kvbridge::store
