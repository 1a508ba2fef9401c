// Anonymous memory on 2 MiB pages: one block of weights reads through a few page table entries instead of thousands.
#pragma once

#include <atomic>
#include <cstddef>

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

}  // namespace lime
