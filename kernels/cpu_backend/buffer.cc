#include "kernels/cpu_backend/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>

namespace lime::cpu {

Buffer MakePrefaulted(Bytes bytes) {
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
