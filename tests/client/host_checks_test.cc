#include "client/cli/host_checks.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace kvbridge::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A host of files: a big, well set up one until a test changes it.
class HostChecksTest : public ::testing::Test {
 protected:
  HostChecksTest() {
    std::string pattern = (fs::temp_directory_path() / "kvbridge-host-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
    fs::create_directories(root_ / "run");
    Limits("20000", "unlimited");
    Write("proc/meminfo",
          "MemTotal: 67108864 kB\nMemAvailable: 50331648 kB\nHugePages_Free: 4\nHugepagesize: 2048 "
          "kB\n");
    Write("proc/cpuinfo", "processor : 0\nflags : fpu avx2 avx512_bf16 amx_bf16 amx_tile\n");
    Write("proc/self/status", "Name: x\nCpus_allowed_list:\t0-7,16\n");
    Write("proc/self/cgroup", "0::/\n");
    Write("sys/kernel/mm/transparent_hugepage/shmem_enabled",
          "always within_size [advise] never\n");
    Write("sys/devices/system/node/online", "0\n");
    Write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
    Write("sys/fs/cgroup/cpu.max", "max 100000\n");
  }
  ~HostChecksTest() override { fs::remove_all(root_); }

  void Write(const fs::path& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  void Limits(const std::string& files, const std::string& locked) {
    Write("proc/self/limits",
          "Limit                     Soft Limit           Hard Limit\n"
          "Max open files            " +
              files +
              "   20000   files\n"
              "Max locked memory         " +
              locked + "   unlimited   bytes\n");
  }

  Finding Find(const std::string& check) { return Find(check, root_ / "run/fd.sock"); }
  Finding Find(const std::string& check, const std::string& socket) {
    for (Finding& finding : CheckHost(root_, socket)) {
      if (finding.check == check) return finding;
    }
    ADD_FAILURE() << "no check " << check;
    return {};
  }

  fs::path root_;
};

TEST_F(HostChecksTest, AGoodHostNeedsNoAdvice) {
  for (const Finding& finding : CheckHost(root_, root_ / "run/fd.sock")) {
    if (finding.check == "dev_shm" || finding.check == "prefault") continue;  // of this machine
    EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.check << ": " << finding.found;
    EXPECT_THAT(finding.advice, IsEmpty()) << finding.check;
    EXPECT_THAT(finding.why, Not(IsEmpty())) << finding.check;
  }
}

TEST_F(HostChecksTest, LimitsAreJudged) {
  Limits("1024", "8388608");
  EXPECT_EQ(Find("open_files").verdict, Verdict::kWarn);
  EXPECT_EQ(Find("open_files").found, "1024");
  EXPECT_THAT(Find("open_files").advice, HasSubstr("LimitNOFILE"));
  EXPECT_EQ(Find("locked_memory").verdict, Verdict::kWarn);
  EXPECT_EQ(Find("locked_memory").found, "8.0 MiB");
  Limits("64", "unlimited");
  EXPECT_EQ(Find("open_files").verdict, Verdict::kBad);
  Limits("unlimited", "unlimited");
  EXPECT_EQ(Find("open_files").verdict, Verdict::kOk);
}

TEST_F(HostChecksTest, TheCgroupsMemoryCountsAndItsPageCacheDoesNot) {
  Write("sys/fs/cgroup/memory.max", "2147483648\n");
  Write("sys/fs/cgroup/memory.current", "1073741824\n");
  Write("sys/fs/cgroup/memory.stat", "anon 536870912\ninactive_file 536870912\n");
  const Finding memory = Find("memory");
  EXPECT_EQ(memory.verdict, Verdict::kWarn);
  EXPECT_EQ(memory.found, "1.5 GiB available of 64.0 GiB, cgroup limit 2.0 GiB");
  Write("sys/fs/cgroup/memory.max", "1207959552\n");
  Write("sys/fs/cgroup/memory.stat", "inactive_file 0\n");
  EXPECT_EQ(Find("memory").verdict, Verdict::kBad);
}

TEST_F(HostChecksTest, TheProcessesOwnCgroupIsRead) {
  Write("proc/self/cgroup", "0::/system.slice/kvbridged.service\n");
  Write("sys/fs/cgroup/system.slice/kvbridged.service/memory.stat", "inactive_file 0\n");
  Write("sys/fs/cgroup/system.slice/kvbridged.service/memory.max", "8589934592\n");
  Write("sys/fs/cgroup/system.slice/kvbridged.service/memory.current", "0\n");
  EXPECT_EQ(Find("memory").found, "8.0 GiB available of 64.0 GiB, cgroup limit 8.0 GiB");
}

TEST_F(HostChecksTest, CgroupsOfVersionOneAreReadToo) {
  fs::remove(root_ / "sys/fs/cgroup/cgroup.controllers");
  Write("proc/self/cgroup", "5:cpu:/x\n4:memory:/box\n");
  Write("sys/fs/cgroup/memory/box/memory.stat", "total_inactive_file 0\n");
  Write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "6442450944\n");
  Write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "1073741824\n");
  EXPECT_EQ(Find("memory").found, "5.0 GiB available of 64.0 GiB, cgroup limit 6.0 GiB");
  Write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_THAT(Find("memory").found, HasSubstr("no cgroup limit"));
}

TEST_F(HostChecksTest, AQuotaBelowTheCoresIsNamed) {
  EXPECT_EQ(Find("cores").found, "9");
  Write("sys/fs/cgroup/cpu.max", "250000 100000\n");
  const Finding cores = Find("cores");
  EXPECT_EQ(cores.verdict, Verdict::kWarn);
  EXPECT_EQ(cores.found, "9, of which the cgroup pays 2.5");
  EXPECT_THAT(cores.advice, HasSubstr("engine.threads"));
}

TEST_F(HostChecksTest, WithoutHugePagesOfEitherKindItSaysWhatToDo) {
  Write("proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 50331648 kB\nHugePages_Free: 0\n");
  EXPECT_EQ(Find("huge_pages").verdict, Verdict::kOk) << "transparent ones serve";
  Write("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always advise [never]\n");
  EXPECT_EQ(Find("huge_pages").verdict, Verdict::kWarn);
  EXPECT_EQ(Find("transparent_huge_pages").found, "shared memory: never");
  EXPECT_THAT(Find("transparent_huge_pages").advice, HasSubstr("shmem_enabled"));
}

TEST_F(HostChecksTest, SlowProcessorsAndFarMemoryAreNamed) {
  Write("proc/cpuinfo", "flags : fpu sse2 avx2\n");
  Write("sys/devices/system/node/online", "0-1\n");
  EXPECT_EQ(Find("cpu").verdict, Verdict::kWarn);
  EXPECT_EQ(Find("cpu").found, "avx2");
  EXPECT_EQ(Find("numa_nodes").verdict, Verdict::kWarn);
  EXPECT_EQ(Find("numa_nodes").found, "2");
}

TEST_F(HostChecksTest, TheSocketsFolderIsLookedAt) {
  EXPECT_EQ(Find("socket_folder", root_ / "none/fd.sock").verdict, Verdict::kWarn);
  EXPECT_EQ(Find("socket_folder", std::string(108, 'a')).verdict, Verdict::kBad);
  EXPECT_EQ(Find("socket_folder", "").verdict, Verdict::kBad);
  fs::permissions(root_ / "run", fs::perms::all);
  EXPECT_THAT(Find("socket_folder").advice, HasSubstr("chmod o-w"));
}

TEST_F(HostChecksTest, AHostThatTellsNothingIsNotBad) {
  fs::remove_all(root_ / "proc");
  fs::remove_all(root_ / "sys");
  for (const Finding& finding : CheckHost(root_, root_ / "run/fd.sock")) {
    EXPECT_NE(finding.verdict, Verdict::kBad) << finding.check << ": " << finding.found;
  }
}

TEST_F(HostChecksTest, AServersSideSocketIsTried) {
  EXPECT_EQ(CheckSideSocket("").verdict, Verdict::kWarn);
  const std::string path = root_ / "run/side.sock";
  EXPECT_EQ(CheckSideSocket(path).verdict, Verdict::kBad);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof(name.sun_path) - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  EXPECT_EQ(CheckSideSocket(path).verdict, Verdict::kOk);
  close(fd);
}

}  // namespace
}  // namespace kvbridge::cli
