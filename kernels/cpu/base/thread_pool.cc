#include "kernels/cpu/base/thread_pool.h"

#include <atomic>
#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "planner/base/check.h"

namespace lime::cpu {
namespace {

// Long enough for the serial code between two operators, and short compared with a scheduler tick.
constexpr std::chrono::microseconds kSpin{50};

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Sleeps while `word` holds `value`; may return early.
void Park(std::atomic<uint32_t>& word, uint32_t value) {
#if defined(__linux__)
  static_assert(sizeof(word) == sizeof(uint32_t));
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
#else
  word.wait(value);
#endif
}

void WakeAll(std::atomic<uint32_t>& word) {
#if defined(__linux__)
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
#else
  word.notify_all();
#endif
}

// Spins until done() or until kSpin has passed; true when done.
template <typename Done>
bool SpinUntil(Done done) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (done()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return done();
}

}  // namespace

// Threads claim a region's tasks from `unclaimed` with a compare-and-swap. A claimed task keeps
// the region alive until it is done, so `context`, `fn` and `num_tasks` are read only after the
// claim. A thread that is late for one region may claim a task of the next one; it then runs the
// next one's function.
struct ThreadPool::Impl {
  alignas(64) std::atomic<int64_t> unclaimed{0};
  void* context = nullptr;
  TaskFn fn = nullptr;
  int64_t num_tasks = 0;

  alignas(64) std::atomic<uint32_t> unfinished{0};  // tasks of the region that are not done
  std::atomic<bool> caller_parked{false};           // waits on `unfinished`

  // Counts regions. It changes to start a region, or to stop.
  alignas(64) std::atomic<uint32_t> region{0};
  std::atomic<int> num_parked{0};  // workers that wait on `region`
  std::atomic<bool> stopping{false};

  std::vector<std::thread> workers;

  void RunTasks(int thread);
  void AwaitRegion(uint32_t seen);
  void AwaitUnfinished();
  void StartRegion();
  void Worker(int thread);
};

void ThreadPool::Impl::RunTasks(int thread) {
  uint32_t done = 0;
  int64_t remaining = unclaimed.load(std::memory_order_relaxed);
  while (remaining > 0) {
    if (!unclaimed.compare_exchange_weak(remaining, remaining - 1, std::memory_order_acquire, std::memory_order_relaxed)) continue;
    fn(context, num_tasks - remaining, thread);
    ++done;
    remaining = unclaimed.load(std::memory_order_relaxed);
  }
  if (done == 0) return;
  // Sequentially consistent with AwaitUnfinished: either the caller sees the count, or this thread
  // sees that it is parked.
  if (unfinished.fetch_sub(done) == done && caller_parked.load()) WakeAll(unfinished);
}

void ThreadPool::Impl::AwaitUnfinished() {
  if (SpinUntil([this] { return unfinished.load(std::memory_order_acquire) == 0; })) return;
  caller_parked.store(true);
  while (const uint32_t remaining = unfinished.load()) Park(unfinished, remaining);
  caller_parked.store(false);
}

void ThreadPool::Impl::AwaitRegion(uint32_t seen) {
  if (SpinUntil([this, seen] { return region.load(std::memory_order_acquire) != seen; })) return;
  num_parked.fetch_add(1);
  while (region.load() == seen) Park(region, seen);
  num_parked.fetch_sub(1);
}

void ThreadPool::Impl::StartRegion() {
  // Sequentially consistent with AwaitRegion, as above.
  region.fetch_add(1);
  if (num_parked.load() > 0) WakeAll(region);
}

void ThreadPool::Impl::Worker(int thread) {
  for (uint32_t seen = 0;;) {
    AwaitRegion(seen);
    seen = region.load(std::memory_order_acquire);
    if (stopping.load(std::memory_order_relaxed)) return;
    RunTasks(thread);
  }
}

ThreadPool::ThreadPool(int num_threads) : impl_(std::make_unique<Impl>()) {
  LIME_CHECK_GE(num_threads, 1);
  impl_->workers.reserve(num_threads - 1);
  for (int thread = 1; thread < num_threads; ++thread) {
    impl_->workers.emplace_back([impl = impl_.get(), thread] { impl->Worker(thread); });
  }
}

ThreadPool::~ThreadPool() {
  impl_->stopping.store(true, std::memory_order_relaxed);
  impl_->StartRegion();
  for (std::thread& worker : impl_->workers) worker.join();
}

int ThreadPool::num_threads() const {
  return static_cast<int>(impl_->workers.size()) + 1;
}

void ThreadPool::Run(int64_t num_tasks, void* context, TaskFn fn) {
  LIME_CHECK_LE(num_tasks, std::numeric_limits<int32_t>::max());
  LIME_CHECK_EQ(impl_->unfinished.load(std::memory_order_relaxed), 0u) << "ParallelFor inside ParallelFor, or from two threads at once";
  if (num_tasks <= 1 || impl_->workers.empty()) {
    for (int64_t task = 0; task < num_tasks; ++task) fn(context, task, 0);
    return;
  }
  impl_->context = context;
  impl_->fn = fn;
  impl_->num_tasks = num_tasks;
  impl_->unfinished.store(static_cast<uint32_t>(num_tasks), std::memory_order_relaxed);
  impl_->unclaimed.store(num_tasks, std::memory_order_release);
  impl_->StartRegion();
  impl_->RunTasks(0);
  impl_->AwaitUnfinished();
}

}  // namespace lime::cpu
