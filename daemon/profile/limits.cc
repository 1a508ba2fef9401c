#include "daemon/profile/limits.h"

#include <chrono>
#include <cstdlib>
#include <cstring>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "kernels/cpu/base/hwy_targets.h"
#include "kernels/cpu/linear/linear_bf16.h"
#include "planner/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "daemon/profile/limits.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lime::bench::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// A value that depends on every byte, so that the compiler keeps every load.
uint64_t ReadAll(const char* p, int64_t bytes) {
  const hn::ScalableTag<uint64_t> d;
  constexpr int64_t kStep = 256;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), vector = lanes * 8;
  auto a = hn::Zero(d), b = hn::Zero(d);
  for (int64_t i = 0; i + kStep <= bytes; i += kStep) {
    for (int64_t j = 0; j < kStep; j += 2 * vector) {
      a = hn::Or(a, hn::LoadU(d, reinterpret_cast<const uint64_t*>(p + i + j)));
      b = hn::Or(b, hn::LoadU(d, reinterpret_cast<const uint64_t*>(p + i + j + vector)));
    }
  }
  return hn::GetLane(hn::Or(a, b));
}

// Does 2 * 12 * lanes * rounds operations.
float MultiplyAdds(int64_t rounds) {
  const hn::ScalableTag<float> d;
  const auto x = hn::Set(d, 0.999f), y = hn::Set(d, 0.001f);
  // Twelve different chains: equal ones would be computed only once.
  auto a0 = x, a1 = hn::Add(a0, y), a2 = hn::Add(a1, y), a3 = hn::Add(a2, y), a4 = hn::Add(a3, y), a5 = hn::Add(a4, y);
  auto a6 = hn::Add(a5, y), a7 = hn::Add(a6, y), a8 = hn::Add(a7, y), a9 = hn::Add(a8, y), a10 = hn::Add(a9, y), a11 = hn::Add(a10, y);
  for (int64_t i = 0; i < rounds; ++i) {
    a0 = hn::MulAdd(a0, x, y), a1 = hn::MulAdd(a1, x, y), a2 = hn::MulAdd(a2, x, y), a3 = hn::MulAdd(a3, x, y);
    a4 = hn::MulAdd(a4, x, y), a5 = hn::MulAdd(a5, x, y), a6 = hn::MulAdd(a6, x, y), a7 = hn::MulAdd(a7, x, y);
    a8 = hn::MulAdd(a8, x, y), a9 = hn::MulAdd(a9, x, y), a10 = hn::MulAdd(a10, x, y), a11 = hn::MulAdd(a11, x, y);
  }
  const auto sum = hn::Add(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)), hn::Add(hn::Add(a4, a5), hn::Add(a6, a7)));
  return hn::GetLane(hn::Add(sum, hn::Add(hn::Add(a8, a9), hn::Add(a10, a11))));
}

int64_t VectorLanes() {
  return static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>()));
}

}  // namespace
}  // namespace lime::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lime::bench {

HWY_EXPORT(ReadAll);
HWY_EXPORT(MultiplyAdds);
HWY_EXPORT(VectorLanes);

namespace {

constexpr int64_t kHugePage = 2 << 20;

template <typename T>
void KeepResult(T value) {
  asm volatile("" : : "g"(value) : "memory");
}

template <typename Fn>
double Seconds(Fn&& fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

HugeMemory::HugeMemory(int64_t bytes) : bytes_(bytes) {
  const int64_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  data_ = static_cast<char*>(std::aligned_alloc(kHugePage, rounded));
  LIME_CHECK(data_ != nullptr) << rounded << " bytes to measure with";
#if defined(__linux__)
  madvise(data_, rounded, MADV_HUGEPAGE);
#endif
  std::memset(data_, 1, rounded);
}

HugeMemory::~HugeMemory() {
  std::free(data_);
}

double ReadSeconds(cpu::ThreadPool& pool, const char* memory, int64_t bytes) {
  // Large enough for one stream per thread, and small enough that all threads end together.
  const int64_t task_bytes = 1 << 20, tasks = (bytes + task_bytes - 1) / task_bytes;
  return Seconds([&] {
    pool.ParallelFor(tasks, [&](int64_t task, int) {
      const int64_t begin = task * task_bytes, count = bytes - begin < task_bytes ? bytes - begin : task_bytes;
      KeepResult(HWY_DYNAMIC_DISPATCH(ReadAll)(memory + begin, count));
    });
  });
}

namespace {

// Operations per second of a loop that does `operations` per round.
template <typename Fn>
double Rate(cpu::ThreadPool& pool, int64_t operations, Fn&& loop) {
  constexpr int64_t kRounds = 4000, kTasksPerThread = 64;
  const int64_t tasks = kTasksPerThread * pool.num_threads();
  const double seconds = Seconds([&] { pool.ParallelFor(tasks, [&](int64_t, int) { KeepResult(loop(kRounds)); }); });
  return static_cast<double>(operations * kRounds * tasks) / seconds;
}

}  // namespace

double MultiplyAddRate(cpu::ThreadPool& pool) {
  return Rate(pool, 2 * 12 * HWY_DYNAMIC_DISPATCH(VectorLanes)(),
              [](int64_t rounds) { return HWY_DYNAMIC_DISPATCH(MultiplyAdds)(rounds); });
}

double Bf16Rate(cpu::ThreadPool& pool, cpu::Numerics numerics, bool packed) {
  const cpu::Bf16Kernels* kernels = packed ? cpu::ChoosePackedBf16(numerics) : cpu::ChooseBf16(numerics);
  return kernels == nullptr ? MultiplyAddRate(pool) : Rate(pool, cpu::kSpinSteps * cpu::kStepOperations, kernels->spin);
}

}  // namespace lime::bench
#endif  // HWY_ONCE
