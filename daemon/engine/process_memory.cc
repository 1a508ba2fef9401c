#include "daemon/engine/process_memory.h"

#include <malloc.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace lime {
namespace {

// The first number after `key` in a file of "key: number" lines.
std::optional<int64_t> FieldOf(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    std::istringstream rest(line.substr(key.size()));
    int64_t value = 0;
    if (rest >> value) return value;
  }
  return std::nullopt;
}

}  // namespace

Bytes ProcessResidentBytes() {
  return FieldOf("/proc/self/status", "VmRSS:").value_or(0) * kKiB;
}

// getrusage(2) has a peak too, but it cannot be reset (daemon/limed/engine_profiler.cc).
Bytes ProcessPeakResidentBytes() {
  return FieldOf("/proc/self/status", "VmHWM:").value_or(0) * kKiB;
}

// A sanitizer has its own heap. glibc's heap is not set up then, and two threads that call
// malloc_trim at once would set it up twice.
void ReturnFreedMemory() {
#if defined(__GLIBC__) && !defined(LIME_SANITIZED)
  malloc_trim(0);
#endif
}

Bytes ProcessDiskReadBytes() {
  return FieldOf("/proc/self/io", "read_bytes:").value_or(0);
}

int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace lime
