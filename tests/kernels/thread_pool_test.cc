#include "kernels/cpu/base/thread_pool.h"

#include <unistd.h>

#include <atomic>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/waiting_threads.h"

namespace lime::cpu {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, RunsEveryTaskOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.num_threads(), GetParam());
  for (int64_t num_tasks : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<int> runs(num_tasks, 0);  // not atomic: each task owns one, and they are visible on return
    pool.ParallelFor(num_tasks, [&](int64_t task, int) { ++runs[task]; });
    for (int64_t task = 0; task < num_tasks; ++task) EXPECT_EQ(runs[task], 1) << task << " of " << num_tasks;
  }
}

TEST_P(ThreadPoolTest, NoTwoOverlappingCallsShareAThreadIndex) {
  ThreadPool pool(GetParam());
  std::vector<std::atomic<int>> inside(GetParam());
  std::atomic<int> collisions{0};
  for (int round = 0; round < 200; ++round) {
    pool.ParallelFor(50, [&](int64_t, int thread) {
      if (inside.at(thread).fetch_add(1) != 0) ++collisions;
      inside.at(thread).fetch_sub(1);
    });
  }
  EXPECT_EQ(collisions, 0);
}

TEST_P(ThreadPoolTest, ManyTinyRegionsOfChangingSizeSeeTheirOwnFunction) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> last(16, -1);  // the region that wrote each task last
  for (int64_t region = 0; region < 20000; ++region) {
    const int64_t num_tasks = region % 16;
    pool.ParallelFor(num_tasks, [&last, region](int64_t task, int) { last[task] = region; });
    for (int64_t task = 0; task < num_tasks; ++task) ASSERT_EQ(last[task], region);
  }
}

TEST_P(ThreadPoolTest, WorksAfterItsThreadsParked) {
  const StartedThreads threads;
  ThreadPool pool(GetParam());
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> runs{0};
    ASSERT_TRUE(threads.AwaitIdle());
    pool.ParallelFor(8, [&](int64_t, int) { runs.fetch_add(1); });
    EXPECT_EQ(runs, 8);
  }
}

TEST_P(ThreadPoolTest, CallerParksForASlowTask) {
  ThreadPool pool(GetParam());
  const pid_t caller = ::gettid();
  int64_t slow = 0;
  pool.ParallelFor(4, [&](int64_t task, int) {
    if (task != 3) return;
    EXPECT_TRUE(::gettid() == caller || AwaitWaiting(std::to_string(caller)));
    slow = task;
  });
  EXPECT_EQ(slow, 3);
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1, 2, 3, 16));

TEST(ThreadPoolDeathTest, RefusesARegionInsideARegion) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        ThreadPool pool(2);
        pool.ParallelFor(4, [&](int64_t, int) { pool.ParallelFor(4, [](int64_t, int) {}); });
      },
      "ParallelFor inside ParallelFor");
}

TEST(ThreadPoolTest, TwoPoolsWorkSideBySide) {
  std::atomic<int64_t> sum{0};
  auto use = [&sum] {
    ThreadPool pool(3);
    for (int round = 0; round < 1000; ++round) pool.ParallelFor(7, [&](int64_t task, int) { sum += task; });
  };
  std::thread other(use);
  use();
  other.join();
  EXPECT_EQ(sum, 2 * 1000 * 21);
}

}  // namespace
}  // namespace lime::cpu
