// The most that this machine can do. Measured speeds are compared with these limits.
//
// The bandwidth of a shared memory bus and the clock under vector load drift from minute to minute.
// So measure a limit between the runs that it is compared with.
#pragma once

#include <cstdint>

#include "kernels/cpu/base/thread_pool.h"
#include "kernels/cpu/linear/linear.h"

namespace lime::bench {

// Anonymous memory, in huge pages if the system grants them. Touched once: reading it never pages.
class HugeMemory {
 public:
  explicit HugeMemory(int64_t bytes);
  ~HugeMemory();
  HugeMemory(const HugeMemory&) = delete;
  HugeMemory& operator=(const HugeMemory&) = delete;

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  char* data_;
  int64_t bytes_;
};

// Seconds in which all threads of the pool together read `bytes` of `memory` once.
double ReadSeconds(cpu::ThreadPool& pool, const char* memory, int64_t bytes);

// fp32 operations per second of all threads together; a fused multiply-add counts as two. With
// enough independent accumulators, and no memory access.
double MultiplyAddRate(cpu::ThreadPool& pool);

// As MultiplyAddRate, for the operation that bf16 weights, or packed ones, need with bf16 activations
// under `numerics`: dot products of pairs, or fp32.
double Bf16Rate(cpu::ThreadPool& pool, cpu::Numerics numerics, bool packed);

}  // namespace lime::bench
