// Preloaded into tests that are built with ThreadSanitizer: says which thread handed what to which.
//
// Debian's gRPC and abseil are built without ThreadSanitizer, so it doesn't see their atomics order
// anything: whatever goes from one of gRPC's threads to another looks like a race. Each function
// here stands in front of one of theirs, calls it, and tells ThreadSanitizer of the order that the
// original guarantees: a mutex's unlock before its next lock, a batch before its completion, the
// last reference's release before the deletion. Races between kvbridge's own threads stay visible.

#include <cstddef>
#include <cstdint>

#include <dlfcn.h>

extern "C" {
// From the sanitizer's runtime; absent in a program that isn't built with it.
__attribute__((weak)) void __tsan_acquire(void* address);
__attribute__((weak)) void __tsan_release(void* address);
}

namespace {

void Acquire(void* address) {
  if (__tsan_acquire != nullptr) __tsan_acquire(address);
}

void Release(void* address) {
  if (__tsan_release != nullptr) __tsan_release(address);
}

// As absl::Time and absl::Duration, gpr_timespec and grpc_event are passed: by value, in registers.
struct AbslTime {
  int64_t high;
  uint32_t low;
};
struct GprTime {
  int64_t seconds;
  int32_t nanos;
  int clock;
};
struct GrpcEvent {
  int type;
  int success;
  void* tag;
};
constexpr int kOperationComplete = 2;

// Offsets of two counters in grpc::internal::ServerCallbackCall of gRPC 1.51, after its vtable
// pointer: what blocks OnCancel, and the reactions under way.
constexpr size_t kCancelConditions = 8;
constexpr size_t kReactions = 12;

}  // namespace

// Defines `name` in front of the library's `symbol`; `nameOriginal()` is the library's.
#define KVB_BEFORE(Result, name, symbol, ...)                                                 \
  extern "C" __attribute__((visibility("default"))) Result name(__VA_ARGS__) __asm__(symbol); \
  static decltype(&name) name##Original() {                                                   \
    static const auto original = reinterpret_cast<decltype(&name)>(dlsym(RTLD_NEXT, symbol)); \
    return original;                                                                          \
  }                                                                                           \
  Result name(__VA_ARGS__)

#define KVB_ABSL(rest) "_ZN4absl7debian3" rest

KVB_BEFORE(void, MutexLock, KVB_ABSL("5Mutex4LockEv"), void* mutex) {
  MutexLockOriginal()(mutex);
  Acquire(mutex);
}

KVB_BEFORE(bool, MutexTryLock, KVB_ABSL("5Mutex7TryLockEv"), void* mutex) {
  const bool locked = MutexTryLockOriginal()(mutex);
  if (locked) Acquire(mutex);
  return locked;
}

KVB_BEFORE(void, MutexUnlock, KVB_ABSL("5Mutex6UnlockEv"), void* mutex) {
  Release(mutex);
  MutexUnlockOriginal()(mutex);
}

KVB_BEFORE(void, MutexReaderLock, KVB_ABSL("5Mutex10ReaderLockEv"), void* mutex) {
  MutexReaderLockOriginal()(mutex);
  Acquire(mutex);
}

KVB_BEFORE(void, MutexReaderUnlock, KVB_ABSL("5Mutex12ReaderUnlockEv"), void* mutex) {
  Release(mutex);
  MutexReaderUnlockOriginal()(mutex);
}

// Waiting unlocks and locks again, past the functions above.
KVB_BEFORE(void, CondVarWait, KVB_ABSL("7CondVar4WaitEPNS0_5MutexE"), void* self, void* mutex) {
  Release(mutex);
  CondVarWaitOriginal()(self, mutex);
  Acquire(mutex);
}

KVB_BEFORE(bool, CondVarWaitUntil, KVB_ABSL("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE"),
           void* self, void* mutex, AbslTime deadline) {
  Release(mutex);
  const bool late = CondVarWaitUntilOriginal()(self, mutex, deadline);
  Acquire(mutex);
  return late;
}

KVB_BEFORE(bool, CondVarWaitFor, KVB_ABSL("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE"),
           void* self, void* mutex, AbslTime timeout) {
  Release(mutex);
  const bool late = CondVarWaitForOriginal()(self, mutex, timeout);
  Acquire(mutex);
  return late;
}

// A batch's tag comes back from the completion queue when the batch is done.
KVB_BEFORE(int, StartBatch, "grpc_call_start_batch", void* call, const void* operations,
           size_t count, void* tag, void* reserved) {
  Release(tag);
  return StartBatchOriginal()(call, operations, count, tag, reserved);
}

KVB_BEFORE(GrpcEvent, QueueNext, "grpc_completion_queue_next", void* queue, GprTime deadline,
           void* reserved) {
  const GrpcEvent event = QueueNextOriginal()(queue, deadline, reserved);
  if (event.type == kOperationComplete) Acquire(event.tag);
  return event;
}

KVB_BEFORE(GrpcEvent, QueuePluck, "grpc_completion_queue_pluck", void* queue, void* tag,
           GprTime deadline, void* reserved) {
  const GrpcEvent event = QueuePluckOriginal()(queue, tag, deadline, reserved);
  if (event.type == kOperationComplete) Acquire(event.tag);
  return event;
}

// Counted references: alarms, among others.
KVB_BEFORE(int, Unref, "gpr_unref", void* count) {
  Release(count);
  const int last = UnrefOriginal()(count);
  if (last != 0) Acquire(count);
  return last;
}

// OnDone comes after all other reactions of a call. Those that headers inline count down where
// ThreadSanitizer sees it.
KVB_BEFORE(void, ScheduleOnDone, "_ZN4grpc8internal18ServerCallbackCall14ScheduleOnDoneEb",
           char* call, bool inline_on_done) {
  Acquire(call + kReactions);
  ScheduleOnDoneOriginal()(call, inline_on_done);
}

KVB_BEFORE(void, CallOnCancel,
           "_ZN4grpc8internal18ServerCallbackCall12CallOnCancelEPNS0_13ServerReactorE", char* call,
           void* reactor) {
  Acquire(call + kCancelConditions);
  CallOnCancelOriginal()(call, reactor);
}
