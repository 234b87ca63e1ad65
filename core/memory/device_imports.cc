#include "core/memory/device_imports.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/base/units.h"

namespace kvbridge::memory {
namespace {

absl::Status CheckRange(const DeviceRange& range) {
  if (range.handle.size() != kHandleBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("handle: expected ", kHandleBytes, " bytes, got ", range.handle.size()));
  }
  uint64_t end = 0;
  if (range.bytes == 0 || !base::CheckedAdd(range.offset, range.bytes, &end) ||
      end > range.allocation_bytes) {
    return absl::OutOfRangeError(absl::StrCat("range: expected some bytes inside an allocation of ",
                                              range.allocation_bytes, ", got ", range.bytes, " at ",
                                              range.offset));
  }
  return absl::OkStatus();
}

absl::Status SizeMismatch(uint64_t actual, uint64_t stated) {
  return absl::InvalidArgumentError(
      absl::StrCat("allocation_bytes: expected ", actual, " as the driver says, got ", stated));
}

}  // namespace

DeviceImport::DeviceImport(std::shared_ptr<DeviceImports> imports, Key key, uint64_t address,
                           uint64_t bytes)
    : imports_(std::move(imports)), key_(std::move(key)), address_(address), bytes_(bytes) {}

DeviceImport::~DeviceImport() {
  if (imports_ != nullptr) imports_->Release(key_);
}

absl::StatusOr<std::shared_ptr<DeviceImports>> DeviceImports::Create(const DriverTable* driver) {
  if (driver != nullptr &&
      (driver->context == nullptr || driver->open == nullptr || driver->size == nullptr ||
       driver->close == nullptr || driver->read_flag == nullptr || driver->rest == nullptr)) {
    return absl::InvalidArgumentError("driver: expected every function, got a table with a hole");
  }
  return std::shared_ptr<DeviceImports>(new DeviceImports(driver));
}

absl::StatusOr<DeviceImport> DeviceImports::Import(const DeviceRange& range) {
  if (driver_ == nullptr) {
    return absl::UnimplementedError("device memory: this server has no device driver");
  }
  KVB_RETURN_IF_ERROR(CheckRange(range));
  KVB_ASSIGN_OR_RETURN(const uint64_t context, driver_->context(driver_->self, range.device));
  Key key(context, range.kind, range.handle);
  {
    base::MutexLock lock(&mutex_);
    auto it = mappings_.find(key);
    while (it != mappings_.end() && it->second.phase != Phase::kOpen) {
      changed_.Wait(&mutex_);
      it = mappings_.find(key);
    }
    if (it != mappings_.end()) {
      Mapping& mapping = it->second;
      if (mapping.bytes != range.allocation_bytes) {
        return SizeMismatch(mapping.bytes, range.allocation_bytes);
      }
      ++mapping.uses;
      return DeviceImport(shared_from_this(), std::move(key), mapping.base + range.offset,
                          range.bytes);
    }
    mappings_.emplace(key, Mapping());
  }
  const absl::StatusOr<uint64_t> base = Open(key, range.allocation_bytes);
  base::MutexLock lock(&mutex_);
  changed_.SignalAll();
  if (!base.ok()) {
    mappings_.erase(key);
    return base.status();
  }
  mappings_[key] = {Phase::kOpen, *base, range.allocation_bytes, 1};
  return DeviceImport(shared_from_this(), std::move(key), *base + range.offset, range.bytes);
}

absl::StatusOr<uint64_t> DeviceImports::Open(const Key& key, uint64_t expected_bytes) {
  const auto& [context, kind, handle] = key;
  const HandleView bytes(reinterpret_cast<const std::byte*>(handle.data()), kHandleBytes);
  KVB_ASSIGN_OR_RETURN(const uint64_t base, driver_->open(driver_->self, context, kind, bytes));
  const absl::StatusOr<uint64_t> actual = driver_->size(driver_->self, base);
  if (actual.ok() && *actual == expected_bytes) return base;
  driver_->close(driver_->self, context, kind, base);
  return actual.ok() ? SizeMismatch(*actual, expected_bytes) : actual.status();
}

void DeviceImports::Release(const Key& key) {
  uint64_t base = 0;
  {
    base::MutexLock lock(&mutex_);
    Mapping& mapping = mappings_[key];
    if (--mapping.uses > 0) return;
    mapping.phase = Phase::kClosing;
    base = mapping.base;
  }
  const auto& [context, kind, handle] = key;
  driver_->close(driver_->self, context, kind, base);
  base::MutexLock lock(&mutex_);
  mappings_.erase(key);
  changed_.SignalAll();
}

absl::Status DeviceImports::WaitForFlag(const DeviceImport& flags, uint64_t offset, uint64_t value,
                                        const base::Clock& clock, absl::Time deadline) const {
  uint64_t end = 0;
  if (!base::CheckedAdd(offset, sizeof(uint64_t), &end) || end > flags.bytes() ||
      offset % sizeof(uint64_t) != 0) {
    return absl::OutOfRangeError(absl::StrCat("flag: expected 8 aligned bytes inside ",
                                              flags.bytes(), ", got them at ", offset));
  }
  while (true) {
    KVB_ASSIGN_OR_RETURN(const uint64_t now,
                         driver_->read_flag(driver_->self, flags.address() + offset));
    if (now >= value) return absl::OkStatus();
    if (clock.Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("flag: expected ", value, " before the deadline, got ", now));
    }
    driver_->rest(driver_->self);
  }
}

size_t DeviceImports::mapped() const {
  base::MutexLock lock(&mutex_);
  return mappings_.size();
}

}  // namespace kvbridge::memory
