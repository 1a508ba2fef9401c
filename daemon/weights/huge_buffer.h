// Anonymous memory on 2 MiB pages: one block of weights reads through a few page table entries instead of thousands.
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

// Aligned to 2 MiB, zero until written, returned to the system on destruction. A last part shorter than 2 MiB is on small pages.
class HugeBuffer {
 public:
  // Reserves address space and asks for 2 MiB pages. Memory arrives with the first write, which for reads means: as the data does.
  static absl::StatusOr<HugeBuffer> Allocate(Bytes bytes);

  HugeBuffer() = default;
  HugeBuffer(HugeBuffer&& other) noexcept;
  HugeBuffer& operator=(HugeBuffer&& other) noexcept;
  ~HugeBuffer();

  std::byte* data() const { return data_; }
  Bytes bytes() const { return bytes_; }

  // Makes every page present now, so that nothing on the token path faults. Cancelled soon after `stop` is set, where it is given.
  absl::Status Prefault(const std::atomic<bool>* stop = nullptr);

 private:
  std::byte* data_ = nullptr;
  Bytes bytes_ = 0;
};

// Gives pages that lie whole within these bytes back to the system, and keeps their addresses; nothing reads them any more.
void ReturnPages(const std::byte* data, Bytes bytes);

// Makes a buffer's pages present from its begin on, by several threads, while it is filled: clearing pages takes one core as long as a fast
// disk takes to fill them, and in a virtual machine, whose host has to find the memory first, several times as long. What is filled before
// they come to it is left as it is; where memory runs out, or the system cannot do it beside who fills the buffer, they stop.
class Prefaulting {
 public:
  // `present`, which may be empty, is called once, by one of the threads, when all pages are.
  // REQUIRES: `buffer` outlives this, at its address.
  Prefaulting(HugeBuffer& buffer, int threads, std::function<void()> present = {});
  ~Prefaulting();  // stops and waits for a step of 16 MiB
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
