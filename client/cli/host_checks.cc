#include "client/cli/host_checks.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/base/units.h"
#include "core/memory/host_memory.h"
#include "core/memory/region.h"

namespace kvbridge::cli {
namespace {

namespace fs = std::filesystem;
using base::HumanBytes;

constexpr size_t kLongestSocketPath = sizeof(sockaddr_un::sun_path) - 1;

std::string Text(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::vector<std::string> Words(absl::string_view text) {
  return absl::StrSplit(text, absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
}

// What follows `key` in its line; empty when there is none.
std::string After(const std::string& text, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::ConsumePrefix(&line, key)) return std::string(line);
  }
  return "";
}

std::optional<uint64_t> FirstNumber(absl::string_view text) {
  const std::vector<std::string> words = Words(text);
  uint64_t value = 0;
  if (words.empty() || !absl::SimpleAtoi(words[0], &value)) return std::nullopt;
  return value;
}

// The soft limit; none = unlimited.
std::optional<uint64_t> Limit(const fs::path& root, absl::string_view name) {
  return FirstNumber(After(Text(root / "proc/self/limits"), name));
}

Finding Judge(std::string check, Verdict verdict, std::string found, std::string why,
              std::string advice) {
  if (verdict == Verdict::kOk) advice.clear();
  return {std::move(check), verdict, std::move(found), std::move(why), std::move(advice)};
}

Finding OpenFiles(const fs::path& root) {
  const std::optional<uint64_t> limit = Limit(root, "Max open files");
  const Verdict verdict = !limit || *limit >= 4096 ? Verdict::kOk
                          : *limit >= 256          ? Verdict::kWarn
                                                   : Verdict::kBad;
  return Judge("open_files", verdict, limit ? absl::StrCat(*limit) : "unlimited",
               "each connection and each region on its way to a client holds a descriptor",
               "raise it to 4096 or more: LimitNOFILE= in the unit, ulimit -n in a shell");
}

Finding LockedMemory(const fs::path& root) {
  const std::optional<uint64_t> limit = Limit(root, "Max locked memory");
  return Judge("locked_memory", !limit || *limit >= 64 * base::kMiB ? Verdict::kOk : Verdict::kWarn,
               limit ? HumanBytes(*limit) : "unlimited",
               "RDMA and CUDA pin what they move; shared memory on one host needs none",
               "where hosts exchange caches over RDMA, set LimitMEMLOCK=infinity");
}

Finding SharedMemory(const fs::path& root) {
  struct statvfs info {};
  const char* const why = "engines keep their own segments there; kvbridge's regions do not use it";
  const char* const advice =
      "mount a larger one: --shm-size in Docker, an emptyDir of medium Memory in Kubernetes";
  if (statvfs((root / "dev/shm").c_str(), &info) != 0) {
    return Judge("dev_shm", Verdict::kWarn, "not there", why, advice);
  }
  const uint64_t size = uint64_t{info.f_blocks} * info.f_frsize;
  const uint64_t free = uint64_t{info.f_bavail} * info.f_frsize;
  return Judge("dev_shm",
               size > 64 * base::kMiB && free >= size / 10 ? Verdict::kOk : Verdict::kWarn,
               absl::StrCat(HumanBytes(free), " free of ", HumanBytes(size)), why, advice);
}

Finding SealedMemory() {
  const auto region =
      memory::Region::Allocate({16 * memory::PageSize(), /*writable=*/true, std::nullopt, false});
  return Judge("sealed_memory", region.ok() ? Verdict::kOk : Verdict::kBad,
               region.ok() ? "works" : std::string(region.status().message()),
               "regions are memfds whose size is sealed; without them every cache goes inline",
               "a seccomp profile may forbid memfd_create or fcntl(F_ADD_SEALS): allow both");
}

Finding Prefault() {
  const uint64_t page = memory::PageSize();
  void* const data =
      mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool mapped = data != MAP_FAILED;
  const bool works = mapped && madvise(data, page, MADV_POPULATE_WRITE) == 0;
  if (mapped) munmap(data, page);
  return Judge("prefault", works ? Verdict::kOk : Verdict::kWarn, works ? "works" : "not possible",
               "regions are made present before they are used; a client's untouched pages else "
               "fail with a signal",
               "use Linux 5.14 or newer, or only regions that the server allocates");
}

std::vector<Finding> HugePages(const fs::path& root) {
  const std::string meminfo = Text(root / "proc/meminfo");
  const uint64_t free = FirstNumber(After(meminfo, "HugePages_Free:")).value_or(0);
  const uint64_t size = FirstNumber(After(meminfo, "Hugepagesize:")).value_or(0) * base::kKiB;
  const std::string setting = Text(root / "sys/kernel/mm/transparent_hugepage/shmem_enabled");
  const size_t open = setting.find('[');
  const std::string chosen = open == std::string::npos
                                 ? "unknown"
                                 : setting.substr(open + 1, setting.find(']', open) - open - 1);
  const bool transparent =
      chosen == "always" || chosen == "within_size" || chosen == "advise" || chosen == "force";
  const Verdict verdict = free > 0 || transparent ? Verdict::kOk : Verdict::kWarn;
  const char* const why = "huge pages make the first touch and every pass over a region cheaper";
  return {
      Judge("huge_pages", verdict, absl::StrCat(free, " free of ", HumanBytes(size), " each"), why,
            "reserve some (sysctl vm.nr_hugepages), or allow transparent ones for shared "
            "memory; plain pages serve until then"),
      Judge("transparent_huge_pages", verdict, absl::StrCat("shared memory: ", chosen), why,
            "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled")};
}

// How many numbers a kernel list names: "0-3,8" is 5.
int CountOf(const std::string& list) {
  int count = 0;
  for (const absl::string_view part : absl::StrSplit(absl::StripAsciiWhitespace(list), ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    int first = 0, last = 0;
    if (!absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last)) continue;
    count += last - first + 1;
  }
  return count;
}

Finding NumaNodes(const fs::path& root) {
  const int nodes = std::max(1, CountOf(Text(root / "sys/devices/system/node/online")));
  return Judge("numa_nodes", nodes == 1 ? Verdict::kOk : Verdict::kWarn, absl::StrCat(nodes),
               "memory of another node is read at about half the speed",
               "run kvbridged on the engine's node (numactl, a cpuset) and name that node in "
               "RegisterRegion");
}

Finding Cpu(const fs::path& root) {
  const std::vector<std::string> flags = Words(After(Text(root / "proc/cpuinfo"), "flags"));
  std::string best = "none of amx_bf16, avx512_bf16, avx2";
  for (const char* flag : {"amx_bf16", "avx512_bf16", "avx2"}) {
    if (std::find(flags.begin(), flags.end(), flag) == flags.end()) continue;
    best = flag;
    break;
  }
  const bool fast = best == "amx_bf16" || best == "avx512_bf16";
  return Judge("cpu", fast ? Verdict::kOk : Verdict::kWarn, best,
               "mapping is matrix products in bf16; without these instructions it is many times "
               "slower",
               "choose machines with AMX (Sapphire Rapids and later) or AVX-512 BF16 (Zen 4 and "
               "later), and pass the processor through to virtual machines");
}

Finding Cores(const fs::path& root) {
  const int allowed =
      std::max(1, CountOf(After(Text(root / "proc/self/status"), "Cpus_allowed_list:")));
  const std::vector<std::string> quota = Words(Text(root / "sys/fs/cgroup/cpu.max"));
  double share = allowed, period = 0;
  if (quota.size() == 2 && absl::SimpleAtod(quota[0], &share) &&
      absl::SimpleAtod(quota[1], &period) && period > 0) {
    share /= period;
  } else {
    share = allowed;
  }
  const bool throttled = share < allowed;
  return Judge("cores", throttled || allowed == 1 ? Verdict::kWarn : Verdict::kOk,
               throttled ? absl::StrFormat("%d, of which the cgroup pays %.1f", allowed, share)
                         : absl::StrCat(allowed),
               "one worker per core maps tiles; more workers than the cgroup pays for are stopped "
               "in mid-tile",
               throttled ? "set engine.threads to what the cgroup pays, rounded down"
                         : "give it two or more cores");
}

Finding Memory(const fs::path& root) {
  const memory::HostMemory host = memory::ReadHostMemory(root);
  const Verdict verdict = host.available >= 4 * base::kGiB     ? Verdict::kOk
                          : host.available >= 512 * base::kMiB ? Verdict::kWarn
                                                               : Verdict::kBad;
  return Judge("memory", verdict,
               absl::StrCat(HumanBytes(host.available), " available of ", HumanBytes(host.total),
                            host.cgroup_limit
                                ? absl::StrCat(", cgroup limit ", HumanBytes(*host.cgroup_limit))
                                : ", no cgroup limit"),
               "artifacts, memory.max_bytes and limits.max_inflight_bytes must fit together; "
               "regions count where they are first touched",
               "raise the limit, or lower memory.max_bytes and limits.max_inflight_bytes");
}

Finding SocketFolder(const std::string& socket) {
  const char* const why = "descriptors of regions travel over a unix socket there";
  if (socket.empty() || socket.size() > kLongestSocketPath) {
    return Judge("socket_folder", Verdict::kBad,
                 absl::StrCat("a path of ", socket.size(), " bytes"), why,
                 absl::StrCat("choose a path of 1 to ", kLongestSocketPath, " bytes"));
  }
  const fs::path parent = fs::path(socket).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  struct stat info {};
  if (stat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return Judge("socket_folder", Verdict::kWarn, folder + " is not there", why,
                 "create it (RuntimeDirectory= in the unit), or name another with --socket");
  }
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    return Judge("socket_folder", Verdict::kBad, folder + " is not writable", why,
                 "give kvbridged's user the folder, or name another with --socket");
  }
  if ((info.st_mode & S_IWOTH) != 0 && (info.st_mode & S_ISVTX) == 0) {
    return Judge("socket_folder", Verdict::kBad, folder + " is writable for everyone", why,
                 "anyone could put a socket of their own there: chmod o-w");
  }
  return Judge("socket_folder", Verdict::kOk, folder + " is writable", why, "");
}

}  // namespace

absl::string_view Name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarn:
      return "warn";
    case Verdict::kBad:
      return "bad";
  }
  return "";
}

std::vector<Finding> CheckHost(const fs::path& root, const std::string& socket) {
  std::vector<Finding> findings = {Cpu(root),       Cores(root),    Memory(root),
                                   NumaNodes(root), SealedMemory(), Prefault()};
  for (Finding& finding : HugePages(root)) findings.push_back(std::move(finding));
  findings.push_back(SocketFolder(socket));
  findings.push_back(OpenFiles(root));
  findings.push_back(LockedMemory(root));
  findings.push_back(SharedMemory(root));
  return findings;
}

Finding CheckSideSocket(const std::string& path) {
  const char* const why = "the region plane needs it; without it caches go inline";
  if (path.empty()) {
    return Judge("server_regions", Verdict::kWarn, "none are offered", why,
                 "set memory.socket in the server's configuration, and call it over its unix "
                 "socket or loopback");
  }
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, kLongestSocketPath);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const absl::Cleanup close_fd = [fd] { close(fd); };
  if (connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0) {
    return Judge("server_regions", Verdict::kOk, path, why, "");
  }
  return Judge("server_regions", Verdict::kBad, absl::StrCat(path, ": ", std::strerror(errno)), why,
               "share the socket's folder with this process, and add its uid to "
               "memory.allowed_uids");
}

}  // namespace kvbridge::cli
