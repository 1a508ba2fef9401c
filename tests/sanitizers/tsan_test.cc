// ThreadSanitizer sees what Abseil's locks order, though Abseil is built without it
// (cmake/tsan_abseil.cc), and what they do not.
#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace {

int reports = 0;

}  // namespace

// Called by ThreadSanitizer's runtime, which is not to look at it.
extern "C" __attribute__((no_sanitize("thread"))) void __tsan_on_report(void*) {
  ++reports;
}

// Reports are what is tested for: they do not fail the program.
extern "C" const char* __tsan_default_options() {
  return "exitcode=0:suppress_equal_addresses=0:suppress_equal_stacks=0";
}

namespace {

// Of two threads that do so at once.
int ReportsOf(const std::function<void()>& one, const std::function<void()>& other) {
  reports = 0;
  std::thread thread(one);
  other();
  thread.join();
  return reports;
}

constexpr int kTimes = 200;

TEST(TsanTest, FindsARaceWithoutALock) {
  int value = 0;
  const auto add = [&] {
    for (int i = 0; i < kTimes; ++i) ++value;
  };
  EXPECT_GT(ReportsOf(add, add), 0);
}

TEST(TsanTest, FindsARaceUnderTwoLocks) {
  absl::Mutex left, right;
  int value = 0;
  const auto add = [&](absl::Mutex& mutex) {
    for (int i = 0; i < kTimes; ++i) {
      absl::MutexLock lock(&mutex);
      ++value;
    }
  };
  EXPECT_GT(ReportsOf([&] { add(left); }, [&] { add(right); }), 0);
}

TEST(TsanTest, FindsAWriteUnderAReadersLock) {
  absl::Mutex mutex;
  int value = 0;
  const auto add = [&] {
    for (int i = 0; i < kTimes; ++i) {
      absl::ReaderMutexLock lock(&mutex);
      ++value;
    }
  };
  EXPECT_GT(ReportsOf(add, add), 0);
}

TEST(TsanTest, FindsMutexesLockedInBothOrders) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // that of Abseil ends the program
  absl::Mutex left, right;
  reports = 0;
  {
    absl::MutexLock first(&left);
    absl::MutexLock second(&right);
  }
  {
    absl::MutexLock first(&right);
    absl::MutexLock second(&left);
  }
  EXPECT_GT(reports, 0);
}

TEST(TsanTest, IsSilentAboutWhatALockGuards) {
  absl::Mutex mutex;
  int value = 0;
  const auto add = [&] {
    for (int i = 0; i < kTimes; ++i) {
      absl::MutexLock lock(&mutex);
      ++value;
    }
    if (mutex.TryLock()) {
      ++value;
      mutex.Unlock();
    }
    absl::ReaderMutexLock lock(&mutex);
    EXPECT_GT(value, 0);
  };
  EXPECT_EQ(ReportsOf(add, add), 0);
}

// The two take turns, each waiting in its own way; whoever gives the lock up evaluates the other's
// condition.
void Alternate(const std::function<void(absl::Mutex&, const absl::Condition&)>& await) {
  absl::Mutex mutex;
  int turn = 0;
  const auto play = [&](int me) {
    struct Mine {
      const int* turn;
      int me;
    } mine = {&turn, me};
    const auto is_mine = +[](Mine* of) { return *of->turn % 2 == of->me; };
    for (int i = 0; i < kTimes; ++i) {
      absl::MutexLock lock(&mutex);
      await(mutex, absl::Condition(is_mine, &mine));
      ++turn;
    }
  };
  EXPECT_EQ(ReportsOf([&] { play(0); }, [&] { play(1); }), 0);
  EXPECT_EQ(turn, 2 * kTimes);
}

TEST(TsanTest, IsSilentAboutConditions) {
  Alternate([](absl::Mutex& mutex, const absl::Condition& condition) { mutex.Await(condition); });
  Alternate([](absl::Mutex& mutex, const absl::Condition& condition) {
    while (!mutex.AwaitWithTimeout(condition, absl::Microseconds(50))) continue;
  });
  Alternate([](absl::Mutex& mutex, const absl::Condition& condition) {
    while (!mutex.AwaitWithDeadline(condition, absl::Now() + absl::Microseconds(50))) continue;
  });
  Alternate([](absl::Mutex& mutex, const absl::Condition& condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    mutex.Unlock();
    mutex.LockWhen(condition);
  });
}

TEST(TsanTest, IsSilentAboutConditionVariables) {
  absl::Mutex mutex;
  absl::CondVar changed;
  int turn = 0;
  const auto play = [&](int me) {
    for (int i = 0; i < kTimes; ++i) {
      absl::MutexLock lock(&mutex);
      while (turn % 2 != me) {
        if (i % 2 == 0) changed.Wait(&mutex);
        if (i % 2 == 1) changed.WaitWithTimeout(&mutex, absl::Milliseconds(1));
      }
      ++turn;
      changed.SignalAll();
    }
  };
  EXPECT_EQ(ReportsOf([&] { play(0); }, [&] { play(1); }), 0);
}

TEST(TsanTest, IsSilentAboutWhatANotificationOrders) {
  for (int i = 0; i < kTimes; ++i) {
    absl::Notification notification;
    int value = 0;
    EXPECT_EQ(ReportsOf(
                  [&] {
                    value = 1;
                    notification.Notify();
                  },
                  [&] {
                    notification.WaitForNotification();
                    EXPECT_EQ(value, 1);
                  }),
              0);
  }
}

TEST(TsanTest, IsSilentAboutASharedStatus) {
  for (int i = 0; i < kTimes; ++i) {
    absl::Status mine = absl::InternalError("of two threads"), theirs = mine;
    EXPECT_EQ(ReportsOf([&] { theirs = absl::OkStatus(); },
                        [&] {
                          EXPECT_EQ(mine.message(), "of two threads");
                          mine = absl::OkStatus();
                        }),
              0);
  }
}

// A mutex may be gone as soon as the last who waited for it has it.
TEST(TsanTest, IsSilentAboutAMutexThatGoesAtOnce) {
  for (int i = 0; i < kTimes; ++i) {
    auto* mutex = new absl::Mutex;
    bool done = false;
    EXPECT_EQ(ReportsOf(
                  [&] {
                    absl::MutexLock lock(mutex);
                    done = true;
                  },
                  [&] {
                    mutex->Lock();
                    mutex->Await(absl::Condition(&done));
                    mutex->Unlock();
                    delete mutex;
                  }),
              0);
  }
}

}  // namespace
