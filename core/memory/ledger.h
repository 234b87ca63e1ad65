// Who uses how many bytes of shared memory. Counted before it is allocated, given back after it is
// unmapped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "core/base/mutex.h"

namespace kvbridge::memory {

class Ledger;

// Bytes that were granted. Gives them back when destroyed. Move-only; keeps its ledger alive.
class Charge {
 public:
  Charge(Charge&& other) noexcept
      : ledger_(std::move(other.ledger_)), id_(std::exchange(other.id_, 0)) {}
  ~Charge();

  // Unique among the ledger's charges, never reused, never 0.
  uint64_t id() const { return id_; }

 private:
  friend class Ledger;
  Charge(std::shared_ptr<Ledger> ledger, uint64_t id) : ledger_(std::move(ledger)), id_(id) {}
  std::shared_ptr<Ledger> ledger_;
  uint64_t id_;
};

// Thread contract: every method may be called from any thread.
class Ledger : public std::enable_shared_from_this<Ledger> {
 public:
  static std::shared_ptr<Ledger> Create(uint64_t max_bytes) {
    return std::shared_ptr<Ledger>(new Ledger(max_bytes));
  }

  // RESOURCE_EXHAUSTED names the limit; of other tenants' use it says nothing.
  absl::StatusOr<Charge> Take(absl::string_view tenant, uint64_t bytes, uint64_t tenant_limit);
  // The owner has let go of it; it counts until it is destroyed.
  void MarkDraining(uint64_t id);
  // Whether the charge still counts.
  bool Holds(uint64_t id) const;

  struct Totals {
    uint64_t bytes = 0;  // live and draining
    uint64_t draining_bytes = 0;
  };
  Totals totals() const;

 private:
  friend class Charge;
  explicit Ledger(uint64_t max_bytes) : max_bytes_(max_bytes) {}
  void GiveBack(uint64_t id);

  struct Entry {
    std::string tenant;
    uint64_t bytes = 0;
    bool draining = false;
  };
  const uint64_t max_bytes_;
  mutable base::Mutex mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  Totals totals_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, uint64_t> tenants_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvbridge::memory
