#include "core/memory/device_imports.h"

#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"

namespace kvbridge::memory {
namespace {

using absl::StatusCode::kInvalidArgument;
using absl::StatusCode::kOutOfRange;
using ::testing::HasSubstr;

constexpr uint64_t kAllocation = 1 << 20;

DeviceUuid Uuid(int value) { return {std::byte(value)}; }
std::string Handle(char value) { return std::string(kHandleBytes, value); }

// One driver with the devices 1 and 2. Like CUDA's it refuses to open what is open already.
class FakeDriver {
 public:
  FakeDriver() {
    table_.self = this;
    table_.context = [](void*, const DeviceUuid& device) -> absl::StatusOr<uint64_t> {
      if (device != Uuid(1) && device != Uuid(2)) return absl::NotFoundError("device: not found");
      return static_cast<uint64_t>(device[0]);
    };
    table_.open = [](void* self, uint64_t context, HandleKind, HandleView handle) {
      return static_cast<FakeDriver*>(self)->Open(context, static_cast<char>(handle[0]));
    };
    table_.size = [](void* self, uint64_t) {
      return absl::StatusOr<uint64_t>(static_cast<FakeDriver*>(self)->size);
    };
    table_.close = [](void* self, uint64_t, HandleKind, uint64_t base) {
      static_cast<FakeDriver*>(self)->Close(base);
    };
    table_.read_flag = [](void* self, uint64_t address) {
      static_cast<FakeDriver*>(self)->flag_address = address;
      return absl::StatusOr<uint64_t>(static_cast<FakeDriver*>(self)->flag);
    };
    table_.rest = [](void* self) {
      auto* const driver = static_cast<FakeDriver*>(self);
      driver->clock.Advance(absl::Milliseconds(1));
      driver->flag += driver->raise;
    };
  }

  const DriverTable* table() const { return &table_; }
  size_t open() {
    base::MutexLock lock(&mutex_);
    return open_.size();
  }

  uint64_t size = kAllocation;
  uint64_t flag = 0;
  uint64_t raise = 0;  // by each rest
  uint64_t flag_address = 0;
  std::atomic<int> opened = 0;
  test::FakeClock clock;

 private:
  absl::StatusOr<uint64_t> Open(uint64_t context, char handle) {
    if (handle == '!') return absl::InternalError("invalid handle");
    const uint64_t base = (context << 40) + (static_cast<uint64_t>(handle) << 24);
    base::MutexLock lock(&mutex_);
    if (!open_.insert(base).second) return absl::InternalError("already mapped");
    ++opened;
    return base;
  }
  void Close(uint64_t base) {
    base::MutexLock lock(&mutex_);
    EXPECT_EQ(open_.erase(base), 1u);
  }

  DriverTable table_;
  base::Mutex mutex_;
  std::set<uint64_t> open_;
};

class DeviceImportsTest : public ::testing::Test {
 protected:
  static DeviceRange Range(char handle = 'a', int device = 1) {
    return {Uuid(device), HandleKind::kIpc, Handle(handle), kAllocation, 4096, 8192};
  }

  FakeDriver driver_;
  std::shared_ptr<DeviceImports> imports_ = *DeviceImports::Create(driver_.table());
};

TEST_F(DeviceImportsTest, TheOffsetIsAddedToTheAllocationsBaseOnce) {
  const auto import = imports_->Import(Range());
  ASSERT_TRUE(import.ok()) << import.status();
  EXPECT_EQ(import->address(), (uint64_t{1} << 40) + (uint64_t{'a'} << 24) + 4096);
  EXPECT_EQ(import->bytes(), 8192u);
}

TEST_F(DeviceImportsTest, OneAllocationIsMappedOncePerContext) {
  {
    const auto a = imports_->Import(Range());
    const auto b = imports_->Import(Range());
    const auto other_device = imports_->Import(Range('a', 2));
    ASSERT_TRUE(a.ok() && b.ok() && other_device.ok());
    EXPECT_EQ(a->address(), b->address());
    EXPECT_NE(a->address(), other_device->address());
    EXPECT_EQ(imports_->mapped(), 2u);
    EXPECT_EQ(driver_.opened, 2);
  }
  EXPECT_EQ(imports_->mapped(), 0u);
  EXPECT_EQ(driver_.open(), 0u);
  EXPECT_TRUE(imports_->Import(Range()).ok()) << "and again afterwards";
}

TEST_F(DeviceImportsTest, HandleBytesAreLengthChecked) {
  for (const size_t length : {0, 1, 63, 65, 4096}) {
    DeviceRange range = Range();
    range.handle = std::string(length, 'a');
    const absl::Status status = imports_->Import(range).status();
    EXPECT_EQ(status.code(), kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("handle: expected 64 bytes"));
  }
  EXPECT_EQ(driver_.opened, 0);
}

TEST_F(DeviceImportsTest, OffsetPlusSizeDoesNotWrap) {
  struct Case {
    uint64_t offset, bytes;
  };
  for (const Case& c : {Case{0, kAllocation + 1}, Case{kAllocation, 1}, Case{~uint64_t{0}, 2},
                        Case{2, ~uint64_t{0}}, Case{~uint64_t{0}, ~uint64_t{0}}, Case{0, 0}}) {
    DeviceRange range = Range();
    range.offset = c.offset;
    range.bytes = c.bytes;
    EXPECT_EQ(imports_->Import(range).status().code(), kOutOfRange) << c.offset << " " << c.bytes;
  }
  EXPECT_EQ(driver_.opened, 0);
}

TEST_F(DeviceImportsTest, ASizeMismatchLeavesNothingMapped) {
  DeviceRange range = Range();
  range.allocation_bytes = 2 * kAllocation;
  EXPECT_EQ(imports_->Import(range).status().code(), kInvalidArgument);
  EXPECT_EQ(driver_.opened, 1);
  EXPECT_EQ(driver_.open(), 0u);
  EXPECT_EQ(imports_->mapped(), 0u);

  const auto kept = imports_->Import(Range());
  EXPECT_EQ(imports_->Import(range).status().code(), kInvalidArgument);
  EXPECT_EQ(driver_.open(), 1u) << "the mapping of another use stays";
}

TEST_F(DeviceImportsTest, ADeviceThatIsNotHereIsNotFound) {
  EXPECT_EQ(imports_->Import(Range('a', 9)).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(DeviceImportsTest, AHandleThatTheDriverRefusesLeavesNothing) {
  EXPECT_EQ(imports_->Import(Range('!')).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(imports_->mapped(), 0u);
}

TEST_F(DeviceImportsTest, ADisabledFeatureAnswersInsteadOfDereferencingNull) {
  const auto none = DeviceImports::Create(nullptr);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ((*none)->Import(Range()).status().code(), absl::StatusCode::kUnimplemented);
  DriverTable hole = *driver_.table();
  hole.size = nullptr;
  EXPECT_EQ(DeviceImports::Create(&hole).status().code(), kInvalidArgument);
}

TEST_F(DeviceImportsTest, AFlagThatRisesEndsTheWait) {
  const auto flags = imports_->Import(Range());
  driver_.raise = 1;
  EXPECT_TRUE(
      imports_
          ->WaitForFlag(*flags, 16, 5, driver_.clock, driver_.clock.Now() + absl::Milliseconds(100))
          .ok());
  EXPECT_EQ(driver_.flag, 5u);
  EXPECT_EQ(driver_.flag_address, flags->address() + 16);
}

TEST_F(DeviceImportsTest, AFlagThatNeverRisesEndsAtTheDeadline) {
  const auto flags = imports_->Import(Range());
  const absl::Time deadline = driver_.clock.Now() + absl::Milliseconds(50);
  EXPECT_EQ(imports_->WaitForFlag(*flags, 0, 1, driver_.clock, deadline).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(driver_.clock.Now(), deadline);
  for (const uint64_t outside : {uint64_t{8192}, uint64_t{8188}, uint64_t{4}, ~uint64_t{7}}) {
    EXPECT_EQ(imports_->WaitForFlag(*flags, outside, 1, driver_.clock, deadline).code(),
              kOutOfRange);
  }
}

TEST_F(DeviceImportsTest, ManyThreadsShareOneMapping) {
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([this] {
        for (int i = 0; i < 200; ++i) {
          const auto import = imports_->Import(Range());
          EXPECT_TRUE(import.ok()) << import.status();
        }
      });
    }
  }
  EXPECT_EQ(imports_->mapped(), 0u);
  EXPECT_EQ(driver_.open(), 0u);
}

}  // namespace
}  // namespace kvbridge::memory
