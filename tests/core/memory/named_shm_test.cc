#include "core/memory/named_shm.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/bus_guard.h"
#include "core/memory/region.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/memory/client_shm.h"
#include "tests/core/memory/failing_syscall.h"
#include "tests/core/memory/host_state.h"
#include "tests/core/memory/registry_fixture.h"

namespace kvbridge::memory {
namespace {

using absl::StatusCode::kDataLoss;
using absl::StatusCode::kInvalidArgument;
using absl::StatusCode::kResourceExhausted;
using absl::StatusCode::kUnimplemented;
using ::testing::Each;
using ::testing::HasSubstr;

RegistryOptions Named(uint32_t uid = geteuid()) {
  return {.huge_pages = false,
          .named_shm = {{"ana", ShmPrefix("ana"), uid}, {"ben", ShmPrefix("ben"), uid}}};
}

std::string Mine(absl::string_view rest) { return absl::StrCat(ShmPrefix("ana"), rest); }
std::string PathOf(const std::string& name) { return "/dev/shm/" + name; }

class NamedShmTest : public RegistryTest {
 protected:
  explicit NamedShmTest(const RegistryOptions& options = Named()) : RegistryTest(options) {}

  absl::StatusOr<RegionGrant> Register(const std::string& name, bool writable = false,
                                       uint64_t bytes = kRegionBytes) {
    return registry_->RegisterRegion("ana", session_,
                                     {.bytes = bytes, .shm_name = name, .writable = writable});
  }
  PoolPin PinOf(const ClientShm& segment, bool writable) {
    const auto region = Register(segment.name(), writable);
    EXPECT_TRUE(region.ok()) << region.status();
    region_id_ = region->region_id;
    auto pin = Pin(NewPool(region_id_));
    EXPECT_TRUE(pin.ok()) << pin.status();
    return *std::move(pin);
  }
  // What this process holds of segments, beside those of its clients.
  struct Held {
    HostState host = HostState::Now();
    size_t guards = base::BusGuard::InUse();
    uint64_t charged;
    bool operator==(const Held&) const = default;
  };
  Held held() const { return {.charged = registry_->use().mapped_bytes}; }

  std::string region_id_;
};

TEST_F(NamedShmTest, BothSidesSeeTheSegmentAndItStaysTheClients) {
  const ClientShm segment(Mine("good"), kRegionBytes);
  ASSERT_TRUE(segment.ok());
  const Held before = held();
  const auto region = Register(segment.name(), /*writable=*/true);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ(region->ticket, "") << "the client has it already";
  EXPECT_EQ(registry_->use().mapped_bytes, kRegionBytes);
  segment.bytes()[130] = std::byte{7};
  {
    const std::vector<int32_t> pages = {1};
    const PoolPin pin = *Pin(NewPool(region->region_id));
    const kv::KvView view = *pin.View(1, pages);
    EXPECT_EQ(view.Row(0, kv::Component::kKey, 0)[2], std::byte{7});
    view.Row(0, kv::Component::kKey, 0)[3] = std::byte{8};
    EXPECT_TRUE(pin.CheckWhole().ok());
  }
  EXPECT_EQ(segment.bytes()[131], std::byte{8});
  EXPECT_FALSE(*registry_->Unregister("ana", session_, region->region_id));
  EXPECT_EQ(held(), before);
  EXPECT_EQ(segment.bytes()[130], std::byte{7}) << "it is not wiped";
  EXPECT_EQ(access(PathOf(segment.name()).c_str(), F_OK), 0) << "nor unlinked";
}

TEST_F(NamedShmTest, ASourceIsMappedReadOnly) {
  const ClientShm segment(Mine("source"), kRegionBytes, 0400);
  const PoolPin pin = PinOf(segment, /*writable=*/false);
  EXPECT_FALSE(pin.writable());
  std::ifstream maps("/proc/self/maps");
  int read_only = 0;
  for (std::string line; std::getline(maps, line);) {
    read_only += absl::StrContains(line, segment.name()) && absl::StrContains(line, " r--s ");
  }
  EXPECT_EQ(read_only, 1);
}

TEST_F(NamedShmTest, UnknownForeignAndForbiddenNamesAnswerAlike) {
  const ClientShm bens(ShmPrefix("ben") + "cache", kRegionBytes);
  const ClientShm nobodys("kvbridge-test-nobody-" + std::to_string(getpid()), kRegionBytes);
  const ClientShm bare(ShmPrefix("ana"), kRegionBytes);
  ASSERT_TRUE(bens.ok() && nobodys.ok() && bare.ok());
  const absl::Status unknown = Register(Mine("none")).status();
  EXPECT_EQ(unknown, absl::PermissionDeniedError("shm_name: no segment that the tenant may name"));
  for (const std::string& name :
       {bens.name(), nobodys.name(), bare.name(), "/" + bens.name(), Mine("../") + bens.name(),
        Mine("x/../../") + bens.name(), std::string(".."), std::string("/"), std::string("."),
        Mine(std::string(300, 'a')), bens.name() + std::string(1, '\0'), Mine("a b"),
        Mine("\xc3\xbc")}) {
    EXPECT_EQ(Register(name).status(), unknown) << name;
    EXPECT_EQ(Register(name, /*writable=*/true).status(), unknown) << name;
  }
}

TEST_F(NamedShmTest, WhoHasNoEntryMayNameNothing) {
  const ClientShm segment(Mine("cache"), kRegionBytes);
  const std::string session = *registry_->OpenSession("cleo");
  EXPECT_EQ(
      registry_
          ->RegisterRegion("cleo", session, {.bytes = kRegionBytes, .shm_name = segment.name()})
          .status(),
      absl::PermissionDeniedError("shm_name: no segment that the tenant may name"));
  Start({.huge_pages = false});
  const absl::Status off = Register(segment.name()).status();
  EXPECT_EQ(off.code(), kUnimplemented);
  EXPECT_THAT(std::string(off.message()), HasSubstr("memory.named_shm"));
}

TEST_F(NamedShmTest, ASegmentThatWillNotDoIsNamedAndLeavesNothing) {
  struct Bad {
    const char* what;
    std::function<void(const std::string& path)> make;
    const char* message;
  };
  const ClientShm bens(ShmPrefix("ben") + "target", kRegionBytes);
  const auto file = [](const std::string& path, mode_t mode, uint64_t bytes = kRegionBytes) {
    const UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
    EXPECT_EQ(posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)), 0);
    EXPECT_EQ(fchmod(fd.get(), mode), 0);
  };
  const Bad cases[] = {
      {"everyone may read it", [&](const auto& path) { file(path, 0604); }, "for others"},
      {"everyone may write it", [&](const auto& path) { file(path, 0666); }, "got 0666"},
      {"short", [&](const auto& path) { file(path, 0600, kRegionBytes - 4096); },
       "shm_name: expected at least 65536 bytes, got 61440"},
      {"empty", [&](const auto& path) { file(path, 0600, 1); }, "got 1"},
      {"a link to another tenant's",
       [&](const auto& path) { ASSERT_EQ(symlink(bens.name().c_str(), path.c_str()), 0); },
       "expected shared memory, got something else"},
      {"a second name of another tenant's",
       [&](const auto& path) { ASSERT_EQ(link(PathOf(bens.name()).c_str(), path.c_str()), 0); },
       "expected a segment of one name, got 2"},
      {"a FIFO", [](const auto& path) { ASSERT_EQ(mkfifo(path.c_str(), 0600), 0); },
       "expected shared memory, got something else"},
      {"a folder", [](const auto& path) { ASSERT_EQ(mkdir(path.c_str(), 0700), 0); },
       "expected shared memory, got something else"},
  };
  for (const Bad& bad : cases) {
    SCOPED_TRACE(bad.what);
    const std::string path = PathOf(Mine("bad"));
    bad.make(path);
    const Held before = held();
    for (const bool writable : {false, true}) {
      const absl::Status status = Register(Mine("bad"), writable).status();
      EXPECT_EQ(status.code(), kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
      EXPECT_EQ(held(), before);
    }
    EXPECT_EQ(remove(path.c_str()), 0);
  }
}

TEST_F(NamedShmTest, ASegmentOfAnotherUserIsRefused) {
  Start(Named(geteuid() + 1));
  const ClientShm segment(Mine("theirs"), kRegionBytes);
  const Held before = held();
  const absl::Status status = Register(segment.name()).status();
  EXPECT_EQ(status.code(), kInvalidArgument);
  EXPECT_EQ(status.message(), absl::StrCat("shm_name: expected one that user ", geteuid() + 1,
                                           " owns, got ", geteuid(), "'s"));
  EXPECT_EQ(held(), before);
}

TEST_F(NamedShmTest, ANameGoesWithNoTicketAndNoNode) {
  const ClientShm segment(Mine("alone"), kRegionBytes);
  const std::string ticket = *registry_->DepositFd(session_, ClientMemfd(kRegionBytes));
  const auto refused = [this](const RegionRequest& request) {
    return std::string(registry_->RegisterRegion("ana", session_, request).status().message());
  };
  EXPECT_THAT(refused({.bytes = kRegionBytes, .ticket = ticket, .shm_name = segment.name()}),
              HasSubstr("shm_name: expected none with a ticket"));
  EXPECT_THAT(refused({.bytes = kRegionBytes, .shm_name = segment.name(), .numa_node = 0}),
              HasSubstr("numa_node: expected none with a shm_name"));
}

TEST_F(NamedShmTest, ItsBytesCountLikeAnyOthers) {
  RegistryOptions options = Named();
  options.tenant_bytes = [](absl::string_view) { return 2 * kRegionBytes; };
  Start(options);
  const ClientShm segment(Mine("quota"), 3 * kRegionBytes);
  const Held before = held();
  const absl::Status status = Register(segment.name(), false, 3 * kRegionBytes).status();
  EXPECT_EQ(status.code(), kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("in all regions of the tenant"));
  EXPECT_EQ(held(), before);
}

TEST_F(NamedShmTest, ASparseSegmentThatTheHostCannotBackIsRefused) {
  const ClientShm segment(Mine("sparse"), kRegionBytes);
  const Held before = held();
  absl::Status status;
  const bool filtered =
      WithFailing(SYS_madvise, EFAULT, [&] { status = Register(segment.name()).status(); });
  if (!filtered) GTEST_SKIP() << "this host does not allow seccomp filters";
  EXPECT_EQ(status.code(), kResourceExhausted) << status;
  EXPECT_EQ(held(), before);
}

// --- cut short

TEST_F(NamedShmTest, CuttingItShortIsSeenWhetherTouchedOrNot) {
  const ClientShm segment(Mine("cut"), kRegionBytes);
  const PoolPin pin = PinOf(segment, /*writable=*/false);
  ASSERT_TRUE(segment.Cut(kRegionBytes - 1));
  const absl::Status cut = pin.CheckWhole();
  EXPECT_EQ(cut.code(), kDataLoss);
  EXPECT_THAT(std::string(cut.message()), HasSubstr("cut the shared memory short"));
}

TEST_F(NamedShmTest, ReadingWhatWasCutOffGivesZerosSaysSoAndLeavesNothing) {
  const ClientShm segment(Mine("read"), kRegionBytes);
  const Held before = held();
  std::byte* gone = nullptr;
  {
    std::fill(segment.bytes().begin(), segment.bytes().end(), std::byte{1});
    const PoolPin pin = PinOf(segment, /*writable=*/false);
    const std::vector<int32_t> pages = {0};
    gone = pin.View(1, pages)->Row(0, kv::Component::kKey, 0);
    ASSERT_EQ(*gone, std::byte{1});
    ASSERT_TRUE(segment.Cut(0));
    EXPECT_EQ(*gone, std::byte{0});
    ASSERT_TRUE(segment.Cut(kRegionBytes));
    EXPECT_EQ(pin.CheckWhole().code(), kDataLoss) << "growing it again does not mend it";
    EXPECT_TRUE(*registry_->Unregister("ana", session_, region_id_)) << "the pin is on it";
  }
  EXPECT_EQ(held(), before);
  EXPECT_EQ(msync(gone, kRegionBytes, MS_ASYNC), -1) << "the pages in its place are gone, too";
  EXPECT_EQ(errno, ENOMEM);
}

TEST_F(NamedShmTest, WritingWhereItWasCutOffReachesNobody) {
  const ClientShm segment(Mine("write"), kRegionBytes);
  const PoolPin pin = PinOf(segment, /*writable=*/true);
  const std::vector<int32_t> pages = {7};
  std::byte* const row = pin.View(1, pages)->Row(0, kv::Component::kKey, 0);
  ASSERT_TRUE(segment.Cut(0));
  *row = std::byte{9};
  EXPECT_EQ(*row, std::byte{9});
  EXPECT_EQ(pin.CheckWhole().code(), kDataLoss);
  ASSERT_TRUE(segment.Cut(kRegionBytes));
  EXPECT_THAT(segment.bytes(), Each(std::byte{0}));
}

TEST_F(NamedShmTest, OneThatIsCutShortTakesNothingFromTheOthers) {
  const ClientShm cut(Mine("a"), kRegionBytes), kept(Mine("b"), kRegionBytes);
  const PoolPin first = PinOf(cut, false);
  const PoolPin second = PinOf(kept, false);
  ASSERT_TRUE(cut.Cut(0));
  EXPECT_EQ(first.CheckWhole().code(), kDataLoss);
  EXPECT_TRUE(second.CheckWhole().ok());
}

TEST_F(NamedShmTest, WithoutAGuardNoneIsMapped) {
  RegistryOptions options = Named();
  options.max_regions = 1000;
  Start(options);
  const ClientShm segment(Mine("many"), kRegionBytes);
  for (size_t i = 0; i < Region::kMostUnsealed; ++i) {
    ASSERT_TRUE(Register(segment.name()).ok()) << i;
  }
  const Held before = held();
  const absl::Status status = Register(segment.name()).status();
  EXPECT_EQ(status.code(), kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("at most 128 segments"));
  EXPECT_EQ(held(), before);
  EXPECT_TRUE(registry_->RegisterRegion("ana", session_, {.bytes = kRegionBytes}).ok())
      << "one that is sealed needs none";
}

TEST_F(NamedShmTest, TenThousandCyclesLeaveDescriptorsMapsAndGuardsAsTheyWere) {
  const ClientShm segment(Mine("cycle"), kRegionBytes);
  const Held before = held();
  for (int i = 0; i < 10'000; ++i) {
    const auto region = Register(segment.name(), i % 2 == 0);
    ASSERT_TRUE(region.ok()) << region.status();
    ASSERT_FALSE(*registry_->Unregister("ana", session_, region->region_id));
  }
  EXPECT_EQ(held(), before);
}

TEST(ShmPrefixTest, IsAFileNamesBeginning) {
  for (const char* good : {"a", "psm_", "vllm-0.9_", "X"}) EXPECT_TRUE(IsShmPrefix(good)) << good;
  for (const std::string& bad :
       {std::string(), std::string("."), std::string(".hidden"), std::string("a/"),
        std::string("/a"), std::string("a b"), std::string(65, 'a'), std::string("a\0", 2)}) {
    EXPECT_FALSE(IsShmPrefix(bad)) << bad;
  }
}

}  // namespace
}  // namespace kvbridge::memory
