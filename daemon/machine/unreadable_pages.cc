#include "daemon/machine/unreadable_pages.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>

namespace lime {
namespace {

constexpr int kMaxWatchedRanges = 16'384;  // more than the shards of a checkpoint

// The data that the signal handler reads, without lock or allocation. A slot is free if `path` is
// null.
struct Entry {
  std::atomic<const char*> path{nullptr};
  std::atomic<uintptr_t> begin{0}, end{0};
};
Entry entries[kMaxWatchedRanges];
std::atomic<int> used{0};  // highest number of slots in use so far

const char* PathOf(uintptr_t address) {
  const int count = used.load();
  for (int i = 0; i < count; ++i) {
    if (entries[i].begin.load() <= address && address < entries[i].end.load()) return entries[i].path.load();
  }
  return nullptr;
}

void Say(const char* text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
}

void OnBusError(int signal, siginfo_t* info, void*) {
  const char* const path = info->si_code == BUS_ADRERR ? PathOf(reinterpret_cast<uintptr_t>(info->si_addr)) : nullptr;
  // Not our page: let the signal have its default effect.
  if (path == nullptr) {
    ::signal(signal, SIG_DFL);
    return;
  }
  Say("lime: ");
  Say(path);
  Say(": cannot be read any more: it was truncated while it was in use, or its disk failed; copy it again and restart\n");
  ::_exit(1);
}

int ClaimEntry(const char* path) {
  for (int i = 0; i < kMaxWatchedRanges; ++i) {
    const char* free = nullptr;
    if (!entries[i].path.compare_exchange_strong(free, path)) continue;
    for (int count = used.load(); count <= i && !used.compare_exchange_weak(count, i + 1);) {
    }
    return i;
  }
  return -1;
}

}  // namespace

void ExitOnUnreadablePages() {
  struct sigaction action = {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

MappedRange::MappedRange(const void* data, size_t bytes, const char* path) : entry_(ClaimEntry(path)) {
  if (entry_ < 0) return;
  entries[entry_].begin = reinterpret_cast<uintptr_t>(data);
  entries[entry_].end = reinterpret_cast<uintptr_t>(data) + bytes;
}

MappedRange::~MappedRange() {
  if (entry_ < 0) return;
  entries[entry_].end = 0;
  entries[entry_].begin = 0;
  entries[entry_].path = nullptr;
}

}  // namespace lime
