// Memory that the backend allocates once. Later accesses cause no page faults.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "planner/base/bytes.h"

namespace lime::cpu {

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<std::byte[], FreeMemory>;

// Returns zeroed memory, written once, aligned to 64 bytes. Large buffers are on 2 MiB pages if the
// system supports that.
// Throws std::bad_alloc; OpenCpuBackend turns it into a Status.
inline Buffer MakePrefaulted(Bytes bytes) {
  constexpr Bytes kLine = 64, kHugePage = Bytes{2} << 20;
  const Bytes rounded = std::max(kLine, RoundUp(bytes, kLine));
  Buffer buffer(static_cast<std::byte*>(std::aligned_alloc(kLine, static_cast<size_t>(rounded))));
  if (buffer == nullptr) throw std::bad_alloc();
  const Bytes begin = static_cast<Bytes>(reinterpret_cast<uintptr_t>(buffer.get()));
  const Bytes first = RoundUp(begin, kHugePage), last = (begin + rounded) / kHugePage * kHugePage;
  if (first < last) madvise(buffer.get() + (first - begin), static_cast<size_t>(last - first), MADV_HUGEPAGE);
  std::memset(buffer.get(), 0, static_cast<size_t>(rounded));
  return buffer;
}

}  // namespace lime::cpu
