#include "core/base/bus_guard.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>

#include <sys/mman.h>
#include <unistd.h>

namespace kvbridge::base {
namespace {

// Read by the signal handler: lock-free, and never freed.
struct Slot {
  std::atomic<bool> taken{false};
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};  // 0 = guards nothing
  std::atomic<bool> writable{false};
  std::atomic<bool> hit{false};
};
std::array<Slot, BusGuard::kMost> slots;
struct sigaction previous;
uintptr_t page_size;

// Async-signal-safe: atomics and system calls only. To the end of the range: a file loses its tail,
// and page by page a large one would take more mappings than a process may have.
bool PutZeros(uintptr_t address) {
  for (Slot& slot : slots) {
    const uintptr_t end = slot.end.load(std::memory_order_acquire);
    if (address >= end || address < slot.begin.load()) continue;
    const uintptr_t first = address & ~(page_size - 1);
    void* const page = reinterpret_cast<void*>(first);
    const int protection = PROT_READ | (slot.writable.load() ? PROT_WRITE : 0);
    slot.hit.store(true);
    return mmap(page, end - first, protection,
                MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == page;
  }
  return false;
}

void OnSigbus(int signal, siginfo_t* info, void* context) {
  if (PutZeros(reinterpret_cast<uintptr_t>(info->si_addr))) return;
  if ((previous.sa_flags & SA_SIGINFO) != 0) return previous.sa_sigaction(signal, info, context);
  // The access is repeated, and meets the disposition of before.
  sigaction(SIGBUS, &previous, nullptr);
}

bool Install() {
  page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  struct sigaction action = {};
  action.sa_sigaction = OnSigbus;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  return sigaction(SIGBUS, &action, &previous) == 0;
}

bool Installed() {
  static const bool installed = Install();
  return installed;
}

int TakeSlot() {
  for (size_t i = 0; i < slots.size(); ++i) {
    if (!slots[i].taken.exchange(true)) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace

BusGuard::BusGuard(const void* data, size_t size, bool writable)
    : slot_(size == 0 || !Installed() ? -1 : TakeSlot()) {
  if (slot_ < 0) return;
  Slot& slot = slots[slot_];
  slot.hit.store(false);
  slot.writable.store(writable);
  slot.begin.store(reinterpret_cast<uintptr_t>(data));
  slot.end.store(reinterpret_cast<uintptr_t>(data) + size, std::memory_order_release);
}

BusGuard::~BusGuard() {
  if (slot_ < 0) return;
  slots[slot_].end.store(0);
  slots[slot_].taken.store(false);
}

bool BusGuard::hit() const { return slot_ >= 0 && slots[slot_].hit.load(); }

size_t BusGuard::InUse() {
  return static_cast<size_t>(std::count_if(slots.begin(), slots.end(),
                                           [](const Slot& slot) { return slot.taken.load(); }));
}

}  // namespace kvbridge::base
