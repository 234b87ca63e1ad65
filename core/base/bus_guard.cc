#include "core/base/bus_guard.h"

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
  std::atomic<bool> hit{false};
};
std::array<Slot, 256> slots;
struct sigaction previous;
uintptr_t page_size;

// Async-signal-safe: atomics and system calls only.
bool PutZeros(uintptr_t address) {
  for (Slot& slot : slots) {
    if (address >= slot.end.load(std::memory_order_acquire) || address < slot.begin.load())
      continue;
    void* const page = reinterpret_cast<void*>(address & ~(page_size - 1));
    slot.hit.store(true);
    return mmap(page, page_size, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == page;
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

int TakeSlot() {
  for (size_t i = 0; i < slots.size(); ++i) {
    if (!slots[i].taken.exchange(true)) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace

BusGuard::BusGuard(const void* data, size_t size) : slot_(size == 0 ? -1 : TakeSlot()) {
  static const bool installed = Install();
  if (!installed || slot_ < 0) return;
  Slot& slot = slots[slot_];
  slot.hit.store(false);
  slot.begin.store(reinterpret_cast<uintptr_t>(data));
  slot.end.store(reinterpret_cast<uintptr_t>(data) + size, std::memory_order_release);
}

BusGuard::~BusGuard() {
  if (slot_ < 0) return;
  slots[slot_].end.store(0);
  slots[slot_].taken.store(false);
}

bool BusGuard::hit() const { return slot_ >= 0 && slots[slot_].hit.load(); }

}  // namespace kvbridge::base
