#include "daemon/machine/parallel.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"

namespace lime {

absl::Status ParallelFor(int64_t count, const std::function<absl::Status(int64_t)>& work) {
  std::atomic<int64_t> next = 0;
  std::atomic<bool> failed = false;
  absl::Mutex mutex;
  absl::Status first_error;
  const auto run = [&] {
    for (int64_t i = next++; i < count && !failed; i = next++) {
      absl::Status status = work(i);
      if (status.ok()) continue;
      failed = true;
      absl::MutexLock lock(&mutex);
      first_error.Update(status);
    }
  };
  std::vector<std::thread> threads;
  const int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  for (int64_t i = 1; i < std::min(cores, count); ++i) threads.emplace_back(run);
  run();
  for (std::thread& thread : threads) thread.join();
  return first_error;
}

}  // namespace lime
