#include "core/memory/region.h"

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <limits>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/units.h"
#include "core/memory/host_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/memory/client_memfd.h"
#include "tests/core/memory/failing_syscall.h"
#include "tests/core/memory/host_state.h"

namespace kvbridge::memory {
namespace {

using ::testing::HasSubstr;

RegionOptions Plain(uint64_t bytes) { return {bytes, /*writable=*/true, std::nullopt, false}; }

TEST(RegionTest, AllocatedMemoryIsSharedWithWhoeverHasTheDescriptor) {
  auto allocated = Region::Allocate(Plain(64 * base::kKiB));
  ASSERT_TRUE(allocated.ok()) << allocated.status();
  const ClientMap client(allocated->fd, 64 * base::kKiB);
  ASSERT_TRUE(client.ok());
  client.bytes()[12345] = std::byte{7};
  EXPECT_EQ(allocated->region->bytes()[12345], std::byte{7});
  EXPECT_TRUE(allocated->region->writable());
}

TEST(RegionTest, EveryPageIsPresentBeforeAnyoneTouchesIt) {
  auto allocated = Region::Allocate(Plain(base::kMiB));
  ASSERT_TRUE(allocated.ok()) << allocated.status();
  struct stat info {};
  ASSERT_EQ(fstat(allocated->fd.get(), &info), 0);
  EXPECT_EQ(info.st_blocks * 512, static_cast<blkcnt_t>(base::kMiB));
}

TEST(RegionTest, NeitherSideCanResizeWhatTheServerAllocated) {
  auto allocated = Region::Allocate(Plain(64 * base::kKiB));
  ASSERT_TRUE(allocated.ok()) << allocated.status();
  EXPECT_EQ(ftruncate(allocated->fd.get(), 0), -1);
  EXPECT_EQ(ftruncate(allocated->fd.get(), base::kMiB), -1);
  EXPECT_EQ(fcntl(allocated->fd.get(), F_GET_SEALS), kSizeSeals);
}

TEST(RegionTest, ReleasedMemoryReadsAsZerosEvenWhereAClientKeepsIt) {
  for (const bool writable : {true, false}) {
    auto allocated = Region::Allocate({64 * base::kKiB, writable, std::nullopt, false});
    ASSERT_TRUE(allocated.ok()) << allocated.status();
    const ClientMap client(allocated->fd, 64 * base::kKiB);
    std::fill(client.bytes().begin(), client.bytes().end(), std::byte{0x5a});
    allocated->region.reset();
    struct stat info {};
    ASSERT_EQ(fstat(allocated->fd.get(), &info), 0);
    EXPECT_EQ(info.st_blocks, 0) << "the memory is the host's again";
    EXPECT_THAT(client.bytes(), ::testing::Each(std::byte{0}));
  }
}

TEST(RegionTest, ServesWithPlainPagesWhereTheHostHasNoHugeOnes) {
  auto allocated = Region::Allocate({4 * base::kMiB, true, std::nullopt, /*huge_pages=*/true});
  ASSERT_TRUE(allocated.ok()) << allocated.status();
  EXPECT_EQ(allocated->region->bytes().size(), 4 * base::kMiB);
  EXPECT_LE(allocated->region->huge_bytes(), 4 * base::kMiB);
}

TEST(RegionTest, TheNodeOfThisHostServesAndAnotherIsNamed) {
  RegionOptions options = Plain(64 * base::kKiB);
  options.numa_node = 0;
  EXPECT_TRUE(Region::Allocate(options).ok());
  for (const int32_t none : {-1, 77, std::numeric_limits<int32_t>::max()}) {
    options.numa_node = none;
    const HostState before = HostState::Now();
    const absl::Status status = Region::Allocate(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("numa_node: expected a node of this host, got ", none)));
    EXPECT_EQ(HostState::Now(), before);
  }
}

TEST(RegionTest, MoreThanTheHostHasIsRefusedBeforeItIsTaken) {
  const HostState before = HostState::Now();
  const absl::Status status = Region::Allocate(Plain(uint64_t{1} << 60)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(HostState::Now(), before);
}

// A full host, step by step: nothing stays, and nothing raises a signal.
TEST(RegionTest, AFailureAtAnyStepOfAllocatingLeavesNothing) {
  struct Step {
    long number;
    int error;
  };
  for (const Step& step : {Step{SYS_memfd_create, EMFILE}, Step{SYS_ftruncate, EFBIG},
                           Step{SYS_fallocate, ENOSPC}, Step{SYS_fcntl, EPERM}}) {
    SCOPED_TRACE(step.number);
    const HostState before = HostState::Now();
    absl::Status status;
    const bool filtered = WithFailing(step.number, step.error, [&status] {
      status = Region::Allocate({4 * base::kMiB, true, std::nullopt, true}).status();
    });
    if (!filtered) GTEST_SKIP() << "this host does not allow seccomp filters";
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(HostState::Now(), before);
  }
}

TEST(RegionTest, AHostThatForbidsChoosingANodeSaysSo) {
  absl::Status status;
  const bool filtered = WithFailing(SYS_mbind, EPERM, [&status] {
    status = Region::Allocate({64 * base::kKiB, true, 0, false}).status();
  });
  if (!filtered) GTEST_SKIP() << "this host does not allow seccomp filters";
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("numa_node: this host does not let"));
}

TEST(RegionTest, AClientsSealedMemfdIsMapped) {
  const UniqueFd fd = ClientMemfd(128 * base::kKiB);
  const ClientMap client(fd, 128 * base::kKiB);
  client.bytes()[70000] = std::byte{9};
  auto region = Region::Import(fd, 128 * base::kKiB, /*writable=*/false);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ((*region)->bytes()[70000], std::byte{9});
  EXPECT_FALSE((*region)->writable());
}

TEST(RegionTest, AClientsMemoryIsItsOwnAfterRelease) {
  const UniqueFd fd = ClientMemfd(64 * base::kKiB);
  const ClientMap client(fd, 64 * base::kKiB);
  client.bytes()[5] = std::byte{9};
  ASSERT_TRUE(Region::Import(fd, 64 * base::kKiB, true).ok());
  EXPECT_EQ(client.bytes()[5], std::byte{9});
}

TEST(RegionTest, WritesReachTheClientOnlyThroughAWritableRegion) {
  const UniqueFd fd = ClientMemfd(64 * base::kKiB);
  const ClientMap client(fd, 64 * base::kKiB);
  auto region = Region::Import(fd, 64 * base::kKiB, /*writable=*/true);
  ASSERT_TRUE(region.ok()) << region.status();
  (*region)->bytes()[3] = std::byte{1};
  EXPECT_EQ(client.bytes()[3], std::byte{1});
}

struct BadFd {
  const char* what;
  UniqueFd fd;
  const char* message;
};

TEST(RegionTest, ABadDescriptorIsNamedAndLeavesNothing) {
  constexpr uint64_t kBytes = 64 * base::kKiB;
  std::vector<BadFd> bad;
  bad.push_back({"closed", UniqueFd(), "expected a memfd"});
  bad.push_back({"a device", UniqueFd(open("/dev/zero", O_RDWR | O_CLOEXEC)), "expected a memfd"});
  bad.push_back({"a file", UniqueFd(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), "descriptor:"});
  bad.push_back({"no seals", ClientMemfd(kBytes, 0), "expected the seals"});
  bad.push_back({"may shrink", ClientMemfd(kBytes, F_SEAL_GROW | F_SEAL_SEAL), "F_SEAL_SHRINK"});
  bad.push_back({"may grow", ClientMemfd(kBytes, F_SEAL_SHRINK | F_SEAL_SEAL), "F_SEAL_GROW"});
  bad.push_back({"may be sealed", ClientMemfd(kBytes, F_SEAL_SHRINK | F_SEAL_GROW), "F_SEAL_SEAL"});
  bad.push_back({"short", ClientMemfd(kBytes - 4096), "expected at least 65536 bytes, got 61440"});
  bad.push_back({"not to be written", ClientMemfd(kBytes, kSizeSeals | F_SEAL_WRITE),
                 "expected a memfd that may be written"});
  for (const BadFd& entry : bad) {
    SCOPED_TRACE(entry.what);
    const HostState before = HostState::Now();
    const absl::Status status = Region::Import(entry.fd, kBytes, /*writable=*/true).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(entry.message));
    EXPECT_EQ(HostState::Now(), before);
  }
}

TEST(RegionTest, AnUntouchedClientMemfdThatTheHostCannotBackIsRefused) {
  const UniqueFd fd = ClientMemfd(base::kMiB);
  const HostState before = HostState::Now();
  absl::Status status;
  const bool filtered = WithFailing(SYS_madvise, EFAULT, [&] {
    status = Region::Import(fd, base::kMiB, /*writable=*/false).status();
  });
  if (!filtered) GTEST_SKIP() << "this host does not allow seccomp filters";
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(HostState::Now(), before);
}

TEST(RegionTest, ASealedMemfdCannotBeTruncatedUnderTheServer) {
  const UniqueFd fd = ClientMemfd(64 * base::kKiB);
  auto region = Region::Import(fd, 64 * base::kKiB, false);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ(ftruncate(fd.get(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ((*region)->bytes()[60000], std::byte{0});
}

}  // namespace
}  // namespace kvbridge::memory
