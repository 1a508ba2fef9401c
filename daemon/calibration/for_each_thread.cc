#include "daemon/calibration/for_each_thread.h"

#include <memory>

#include "kernels/cpu/base/thread_pool.h"

namespace lime {

ForEach ForEachOnThreads(int num_threads) {
  return [pool = std::make_shared<cpu::ThreadPool>(num_threads)](int64_t count, const std::function<void(int64_t i)>& body) {
    pool->ParallelFor(count, [&body](int64_t i, int /*thread*/) { body(i); });
  };
}

}  // namespace lime
