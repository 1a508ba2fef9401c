// What this machine can do at most: the limits that measured speeds are compared with.
//
// The bandwidth of a shared memory bus and the clock under vector load drift from minute to minute: measure a limit between the runs it is
// compared with.
#pragma once

#include <cstdint>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/thread_pool.h"

namespace lime::bench {

// Anonymous memory in huge pages where the system grants them, touched once, so that reading it is not paging.
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

// Seconds that all threads of the pool together take to read `bytes` of `memory` once, each a contiguous share.
double ReadSeconds(cpu::ThreadPool& pool, const char* memory, int64_t bytes);

// fp32 operations per second, a fused multiply-add counting two, of all threads together with enough independent accumulators and no memory
// access.
double MultiplyAddRate(cpu::ThreadPool& pool);

// The same for what bf16 weights meet bf16 activations with under `numerics`: dot products of pairs, or fp32.
double Bf16Rate(cpu::ThreadPool& pool, cpu::Numerics numerics);

}  // namespace lime::bench
