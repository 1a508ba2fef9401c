// Finds threads that wait until another thread wakes them. If all threads wait so, nothing more
// happens by itself, and a test knows this without waiting for some time.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace lime {

// Whether a thread of this process is in a wait that has no time limit.
inline bool WaitsToBeWoken(const std::string& thread) {
  std::ifstream file("/proc/self/task/" + thread + "/syscall");  // number and arguments; "running"
  int64_t number = -1;
  uint64_t address = 0, operation = 0, value = 0, timeout = 0;
  if (!(file >> number >> std::hex >> address >> operation >> value >> timeout) || number != SYS_futex) return false;
  const uint64_t command = operation & FUTEX_CMD_MASK;
  return (command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET) && timeout == 0;
}

// The number of waits that the thread has begun; -1: it has ended.
inline int64_t WaitsSoFar(const std::string& thread) {
  std::ifstream file("/proc/self/task/" + thread + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("voluntary_ctxt_switches:")) return std::stoll(line.substr(24));
  }
  return -1;
}

// Waits until the thread waits to be woken; false after 20 s.
inline bool AwaitWaiting(const std::string& thread) {
  for (const absl::Time until = absl::Now() + absl::Seconds(20); !WaitsToBeWoken(thread); absl::SleepFor(absl::Milliseconds(1))) {
    if (absl::Now() > until) return false;
  }
  return true;
}

// The threads that this process starts from now on.
class StartedThreads {
 public:
  StartedThreads() : before_(All()) {}

  // Waits until all of them wait to be woken at the same time; false after 20 s.
  bool AwaitIdle() const {
    for (const absl::Time until = absl::Now() + absl::Seconds(20); !AreIdle(); absl::SleepFor(absl::Milliseconds(1))) {
      if (absl::Now() > until) return false;
    }
    return true;
  }

 private:
  static std::set<std::string> All() {
    std::set<std::string> threads;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) threads.insert(entry.path().filename());
    return threads;
  }
  std::set<std::string> Started() const {
    std::set<std::string> threads = All();
    for (const std::string& thread : before_) threads.erase(thread);
    return threads;
  }
  static int64_t WaitsOf(const std::set<std::string>& threads) {
    int64_t waits = 0;
    for (const std::string& thread : threads) waits += WaitsSoFar(thread);
    return waits;
  }
  // If a thread waits now and later and began no wait in between, it has waited all the time.
  bool AreIdle() const {
    const std::set<std::string> threads = Started();
    const int64_t waits = WaitsOf(threads);
    for (int look = 0; look < 2; ++look) {
      for (const std::string& thread : threads) {
        if (!WaitsToBeWoken(thread)) return false;
      }
    }
    return WaitsOf(threads) == waits && Started() == threads;
  }

  const std::set<std::string> before_;
};

}  // namespace lime
