// Makes one system call fail, for one thread, to see what a full or forbidding host does.
#pragma once

#include <cstddef>
#include <functional>
#include <thread>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

namespace kvbridge::memory {

// Runs `body` on a thread of its own in which `number` fails with `error`. False where the host
// does not allow such filters; `body` has not run then.
inline bool WithFailing(long number, int error, const std::function<void()>& body) {
  bool filtered = false;
  std::thread([&] {
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog filter{4, program};
    filtered = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
               prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
    if (filtered) body();
  }).join();
  return filtered;
}

}  // namespace kvbridge::memory
