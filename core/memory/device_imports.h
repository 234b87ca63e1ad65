// Device memory of other processes: who has it mapped, how often, and until when.
//
// No GPU has run this. It is the bookkeeping alone, driven in tests by a table of their own; the
// table that calls CUDA comes with the CUDA backend.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "core/base/clock.h"
#include "core/base/mutex.h"

namespace kvbridge::memory {

using DeviceUuid = std::array<std::byte, 16>;  // never an ordinal: those differ between processes
inline constexpr size_t kHandleBytes = 64;
using HandleView = std::span<const std::byte, kHandleBytes>;

// How the allocation was exported: cudaIpcGetMemHandle of its base, or a VMM allocation's
// CU_MEM_HANDLE_TYPE_FABRIC where the pointer is not legacy-IPC capable.
enum class HandleKind { kIpc, kFabric };

// What the bookkeeping asks of a driver. `self` is passed back; every function may be called from
// any thread and is called under no lock.
struct DriverTable {
  void* self = nullptr;
  // A number of the device's context here, the same each time. NOT_FOUND: no such device.
  absl::StatusOr<uint64_t> (*context)(void* self, const DeviceUuid& device) = nullptr;
  // Maps a whole allocation; its device address. Not called for one that is mapped already.
  absl::StatusOr<uint64_t> (*open)(void* self, uint64_t context, HandleKind kind,
                                   HandleView handle) = nullptr;
  // Bytes of the allocation mapped at `base`.
  absl::StatusOr<uint64_t> (*size)(void* self, uint64_t base) = nullptr;
  void (*close)(void* self, uint64_t context, HandleKind kind, uint64_t base) = nullptr;
  // The completion flag at a device address, and a short rest between two looks at it.
  absl::StatusOr<uint64_t> (*read_flag)(void* self, uint64_t address) = nullptr;
  void (*rest)(void* self) = nullptr;
};

// A range inside another process's allocation.
struct DeviceRange {
  DeviceUuid device{};
  HandleKind kind = HandleKind::kIpc;
  std::string handle;             // of the allocation's base, 64 bytes as the driver made them
  uint64_t allocation_bytes = 0;  // of the whole allocation
  uint64_t offset = 0;            // of the range from the base
  uint64_t bytes = 0;
};

class DeviceImports;

// One use of an imported allocation; it is unmapped with the last. Move-only; keeps its
// DeviceImports alive.
class DeviceImport {
 public:
  DeviceImport(DeviceImport&& other) noexcept = default;
  ~DeviceImport();

  uint64_t address() const { return address_; }  // of the range
  uint64_t bytes() const { return bytes_; }

 private:
  friend class DeviceImports;
  using Key = std::tuple<uint64_t, HandleKind, std::string>;  // context, kind, handle
  DeviceImport(std::shared_ptr<DeviceImports> imports, Key key, uint64_t address, uint64_t bytes);

  std::shared_ptr<DeviceImports> imports_;
  Key key_;
  uint64_t address_;
  uint64_t bytes_;
};

// Thread contract: every method may be called from any thread. Two imports of one allocation at
// once map it once; the second waits for the first's driver call.
class DeviceImports : public std::enable_shared_from_this<DeviceImports> {
 public:
  // `driver` is borrowed; null = none: every import then answers UNIMPLEMENTED. INVALID_ARGUMENT: a
  // table with a function missing.
  static absl::StatusOr<std::shared_ptr<DeviceImports>> Create(const DriverTable* driver);

  // INVALID_ARGUMENT: handle bytes, sizes that differ from the driver's; OUT_OF_RANGE: the range
  // leaves the allocation; NOT_FOUND: the device. A failure leaves nothing mapped.
  absl::StatusOr<DeviceImport> Import(const DeviceRange& range);

  // Waits on the host until the 64-bit flag at `offset` of the range is at least `value`:
  // cuStreamWriteValue64 only ever raises it. DEADLINE_EXCEEDED after `deadline` of `clock`.
  absl::Status WaitForFlag(const DeviceImport& flags, uint64_t offset, uint64_t value,
                           const base::Clock& clock, absl::Time deadline) const;

  size_t mapped() const;

 private:
  friend class DeviceImport;
  using Key = DeviceImport::Key;
  enum class Phase { kOpening, kOpen, kClosing };
  struct Mapping {
    Phase phase = Phase::kOpening;
    uint64_t base = 0;
    uint64_t bytes = 0;
    int64_t uses = 0;
  };
  explicit DeviceImports(const DriverTable* driver) : driver_(driver) {}
  absl::StatusOr<uint64_t> Open(const Key& key, uint64_t expected_bytes);
  void Release(const Key& key);

  const DriverTable* const driver_;
  mutable base::Mutex mutex_;
  base::CondVar changed_;
  std::map<Key, Mapping> mappings_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvbridge::memory
