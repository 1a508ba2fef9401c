// Anonymous memory on 2 MiB pages: a block of weights then needs a few page table entries instead
// of thousands.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

inline constexpr Bytes kHugePageBytes = 2 * kMiB;

// Aligned to 2 MiB, zero until written, returned to the system on destruction. A rest shorter than
// 2 MiB is on small pages.
class HugeBuffer {
 public:
  // Reserves address space and asks for 2 MiB pages. The system allocates memory at the first
  // write, so it does that while a read fills the buffer.
  static absl::StatusOr<HugeBuffer> Allocate(Bytes bytes);
  // The same, with every page present.
  static absl::StatusOr<HugeBuffer> AllocatePresent(Bytes bytes);

  HugeBuffer() = default;
  HugeBuffer(HugeBuffer&& other) noexcept;
  HugeBuffer& operator=(HugeBuffer&& other) noexcept;
  ~HugeBuffer();

  std::byte* data() const { return data_; }
  Bytes bytes() const { return bytes_; }

  // Makes every page present now, so that computing a token causes no page fault. If `stop` is
  // given, returns kCancelled soon after it is set.
  absl::Status Prefault(const std::atomic<bool>* stop = nullptr);

 private:
  std::byte* data_ = nullptr;
  Bytes bytes_ = 0;
};

// Returns whole pages within these bytes to the system; their addresses stay reserved. REQUIRES:
// nothing reads these bytes any more.
void ReturnPages(const std::byte* data, Bytes bytes);

// Makes the pages of these bytes present after ReturnPages. They keep their content, so reads may be
// filling them already. Without support of the system they come when they are written first.
// ResourceExhausted if there is no memory.  REQUIRES: the bytes are of a HugeBuffer
absl::Status BringPagesBack(std::byte* data, Bytes bytes);

// Makes a buffer's pages present while it is being filled, from its beginning, with several
// threads. One core clears pages no faster than a fast disk fills them, and several times slower in
// a virtual machine whose host must find the memory first. Pages that are filled already keep their
// content. The threads stop if memory runs out, or if the system cannot populate pages while
// another thread writes to them.
class Prefaulting {
 public:
  // One of the threads calls `present` once, when all pages are present. `present` may be empty.
  // REQUIRES: `buffer` outlives this object and does not move.
  Prefaulting(HugeBuffer& buffer, int threads, std::function<void()> present = {});
  // Stops the threads. Each first ends its current step of 16 MiB.
  ~Prefaulting();
  Prefaulting(const Prefaulting&) = delete;
  Prefaulting& operator=(const Prefaulting&) = delete;

 private:
  void Run();

  HugeBuffer& buffer_;
  const std::function<void()> present_;
  std::atomic<Bytes> next_ = 0;
  std::atomic<Bytes> done_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace lime
