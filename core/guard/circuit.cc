#include "core/guard/circuit.h"

#include <algorithm>

namespace kvbridge::guard {

absl::string_view Name(CircuitState state) {
  constexpr absl::string_view kNames[] = {"closed", "open", "half_open"};
  return kNames[static_cast<size_t>(state)];
}

bool Circuit::Admit(absl::Time now) {
  base::MutexLock lock(&mutex_);
  if (override_ != CircuitOverride::kAuto) return override_ == CircuitOverride::kForceClosed;
  if (!policy_.enabled || state_ == CircuitState::kClosed) return true;
  if (state_ == CircuitState::kOpen) {
    if (now - opened_ < policy_.open_for) return false;
    state_ = CircuitState::kHalfOpen;
    trying_ = 0;
    succeeded_ = 0;
  }
  if (trying_ + succeeded_ >= policy_.probes) return false;
  ++trying_;
  return true;
}

bool Circuit::Ended(TryResult result, absl::Time now) {
  base::MutexLock lock(&mutex_);
  if (override_ != CircuitOverride::kAuto || !policy_.enabled) return false;
  const CircuitState before = state_;
  switch (state_) {
    case CircuitState::kClosed:
      if (TooMany(result, now)) Open(now);
      break;
    case CircuitState::kOpen:
      // It began before the circuit opened, and tells nothing new.
      break;
    case CircuitState::kHalfOpen:
      trying_ = std::max(0, trying_ - 1);
      if (result == TryResult::kBad) {
        Open(now);
      } else if (result == TryResult::kGood && ++succeeded_ >= policy_.probes) {
        Close();
      }
      break;
  }
  return state_ != before;
}

void Circuit::Override(CircuitOverride override) {
  base::MutexLock lock(&mutex_);
  override_ = override;
  Close();
}

void Circuit::SetPolicy(const CircuitPolicy& policy) {
  base::MutexLock lock(&mutex_);
  if (policy == policy_) return;
  policy_ = policy;
  Close();
}

CircuitState Circuit::state() const {
  base::MutexLock lock(&mutex_);
  return override_ == CircuitOverride::kForceOpen ? CircuitState::kOpen : state_;
}

void Circuit::Close() {
  state_ = CircuitState::kClosed;
  slots_.fill({});
}

void Circuit::Open(absl::Time now) {
  state_ = CircuitState::kOpen;
  opened_ = now;
}

bool Circuit::TooMany(TryResult result, absl::Time now) {
  if (result == TryResult::kNeutral) return false;
  const absl::Duration step = policy_.window / kSlots;
  const int64_t index = (now - absl::UnixEpoch()) / step;
  Slot& slot = slots_[index % kSlots];
  if (slot.index != index) slot = {.index = index};
  ++slot.total;
  slot.bad += result == TryResult::kBad ? 1 : 0;
  int32_t total = 0;
  int32_t bad = 0;
  for (const Slot& each : slots_) {
    if (index - each.index >= kSlots) continue;
    total += each.total;
    bad += each.bad;
  }
  return total >= policy_.min_transfers && bad > policy_.max_bad_share * total;
}

}  // namespace kvbridge::guard
