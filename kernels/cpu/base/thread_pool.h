// A fixed set of compute threads for the operators. A thread spins briefly for work, then parks.
//
// Thread: one thread at a time (the compute thread) calls ParallelFor. It works too; num_threads
// includes it. Work is divided into small tasks, so a thread that loses its core delays only one
// task. Waiting threads park, so the scheduler can move the delayed thread to a free core. Nothing
// allocates after the constructor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace lime::cpu {

class ThreadPool {
 public:
  // num_threads >= 1, the calling thread included.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // Calls fn(task, thread) for every task in [0, num_tasks), each once, on any thread. Returns
  // when all are done. thread is in [0, num_threads); calls that overlap have different ones.
  // Memory written by the tasks is visible on return.
  template <typename Fn>
  void ParallelFor(int64_t num_tasks, Fn&& fn) {
    using F = std::remove_reference_t<Fn>;
    Run(num_tasks, const_cast<void*>(static_cast<const void*>(&fn)),
        [](void* context, int64_t task, int thread) { (*static_cast<F*>(context))(task, thread); });
  }

 private:
  using TaskFn = void (*)(void* context, int64_t task, int thread);
  void Run(int64_t num_tasks, void* context, TaskFn fn);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Calls fn(begin, end) on ranges that cover [0, rows), in tasks of about 16K elements. If there is
// only one task, it calls fn directly.
template <typename Fn>
void ParallelRows(ThreadPool& pool, int64_t rows, int64_t elements_per_row, Fn&& fn) {
  constexpr int64_t kElementsPerTask = 16 * 1024;
  const int64_t rows_per_task = std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, elements_per_row));
  const int64_t tasks = (rows + rows_per_task - 1) / rows_per_task;
  if (tasks <= 1 || pool.num_threads() == 1) {
    if (rows > 0) fn(int64_t{0}, rows);
    return;
  }
  pool.ParallelFor(tasks, [&](int64_t task, int /*thread*/) { fn(task * rows_per_task, std::min(rows, (task + 1) * rows_per_task)); });
}

}  // namespace lime::cpu
