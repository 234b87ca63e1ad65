#include "core/base/bus_guard.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <list>
#include <optional>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace kvbridge::base {
namespace {

// A file in memory that its owner may cut short, and one mapping of it.
class Shrinking {
 public:
  explicit Shrinking(size_t pages, bool writable = false)
      : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))),
        size_(pages * page_),
        fd_(memfd_create("shrinking", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(size_)), 0);
    const int protection = PROT_READ | (writable ? PROT_WRITE : 0);
    data_ = static_cast<char*>(mmap(nullptr, size_, protection, MAP_SHARED, fd_, 0));
    const std::string ones(size_, 1);
    EXPECT_EQ(pwrite(fd_, ones.data(), size_, 0), static_cast<ssize_t>(size_));
    guard_.emplace(data_, size_, writable);
  }
  ~Shrinking() {
    guard_.reset();
    munmap(data_, size_);
    close(fd_);
  }
  Shrinking(const Shrinking&) = delete;
  Shrinking& operator=(const Shrinking&) = delete;

  void Cut(size_t pages) { EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(pages * page_)), 0); }
  volatile char& At(size_t page) { return data_[page * page_]; }
  char InFile(size_t page) const {
    char value = -1;
    EXPECT_EQ(pread(fd_, &value, 1, static_cast<off_t>(page * page_)), 1);
    return value;
  }
  bool hit() const { return guard_->hit(); }

 private:
  const size_t page_;
  const size_t size_;
  const int fd_;
  char* data_ = nullptr;
  std::optional<BusGuard> guard_;
};

TEST(BusGuardTest, WhatIsGoneReadsAsZerosAndIsSaid) {
  Shrinking file(4), other(4);
  EXPECT_EQ(file.At(3), 1);
  EXPECT_FALSE(file.hit());
  file.Cut(2);
  EXPECT_EQ(file.At(1), 1);
  EXPECT_FALSE(file.hit()) << "what was touched is there";
  EXPECT_EQ(file.At(2), 0);
  EXPECT_TRUE(file.hit());
  EXPECT_EQ(file.At(3), 0);
  EXPECT_EQ(file.At(1), 1);
  EXPECT_FALSE(other.hit());
}

TEST(BusGuardTest, AHitStaysWhenTheFileGrowsAgain) {
  Shrinking file(2);
  file.Cut(1);
  EXPECT_EQ(file.At(1), 0);
  file.Cut(2);
  EXPECT_TRUE(file.hit());
}

TEST(BusGuardTest, WhatIsWrittenWhereTheFileEndsReachesNobody) {
  Shrinking file(4, /*writable=*/true);
  file.At(1) = 7;
  EXPECT_EQ(file.InFile(1), 7);
  file.Cut(2);
  file.At(2) = 8;
  file.At(3) = 9;
  EXPECT_TRUE(file.hit());
  EXPECT_EQ(file.At(2), 8);
  file.Cut(4);
  EXPECT_EQ(file.InFile(2), 0);
  EXPECT_EQ(file.InFile(3), 0);
}

long Mappings() {
  std::ifstream maps("/proc/self/maps");
  return std::count(std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>(), '\n');
}

// A process may have 65,530 mappings, which a large file would use up page by page.
TEST(BusGuardTest, AnyOrderOfTouchesTakesOneMappingMore) {
  constexpr size_t kPages = 4000;
  Shrinking file(kPages);
  const long before = Mappings();
  file.Cut(1);
  for (size_t i = kPages / 2; i > 0; --i) EXPECT_EQ(file.At(2 * i - 1), 0);
  EXPECT_LE(Mappings(), before + 2) << "one, and what the heap may have grown by";
}

TEST(BusGuardTest, OneTooManySaysSoAndTheNextHasItsPlaceWhenOneGoes) {
  const char byte = 0;
  ASSERT_EQ(BusGuard::InUse(), 0u);
  std::list<BusGuard> guards;
  for (size_t i = 0; i < BusGuard::kMost; ++i) EXPECT_TRUE(guards.emplace_back(&byte, 1).active());
  EXPECT_EQ(BusGuard::InUse(), BusGuard::kMost);
  EXPECT_FALSE(BusGuard(&byte, 1).active());
  guards.pop_front();
  EXPECT_TRUE(BusGuard(&byte, 1).active());
  EXPECT_EQ(BusGuard::InUse(), BusGuard::kMost - 1);
  EXPECT_FALSE(BusGuard(nullptr, 0).active());
}

}  // namespace
}  // namespace kvbridge::base
