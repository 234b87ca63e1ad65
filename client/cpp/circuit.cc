#include "client/cpp/circuit.h"

namespace kvbridge::client {

bool Circuit::Admit(absl::Time now) {
  const std::lock_guard lock(mutex_);
  if (failures_ < threshold_) return true;
  if (now < open_until_ || probing_) return false;
  probing_ = true;
  return true;
}

void Circuit::Succeeded() {
  const std::lock_guard lock(mutex_);
  failures_ = 0;
  probing_ = false;
}

void Circuit::Failed(absl::Time now) {
  const std::lock_guard lock(mutex_);
  ++failures_;
  if (failures_ >= threshold_) open_until_ = now + open_for_;
  probing_ = false;
}

void Circuit::Abandoned() {
  const std::lock_guard lock(mutex_);
  probing_ = false;
}

Circuit::State Circuit::state(absl::Time now) const {
  const std::lock_guard lock(mutex_);
  if (failures_ < threshold_) return State::kClosed;
  return now < open_until_ ? State::kOpen : State::kHalfOpen;
}

}  // namespace kvbridge::client
