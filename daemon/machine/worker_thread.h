// Runs slow work, one task after another, so that threads with urgent work need not wait for it.
//
// Thread: any may call Post. The work runs on a thread of its own.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "absl/synchronization/mutex.h"

namespace lime {

class WorkerThread {
 public:
  WorkerThread() : thread_([this] { Run(); }) {}
  // Waits for the running task, and drops the others.
  ~WorkerThread() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    thread_.join();
  }

  void Post(std::function<void()> work) {
    absl::MutexLock lock(&mutex_);
    waiting_.push_back(std::move(work));
  }

 private:
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !waiting_.empty(); }

  void Run() {
    while (true) {
      std::function<void()> work;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(this, &WorkerThread::HasNews));
        if (stopping_) return;
        work = std::move(waiting_.front());
        waiting_.pop_front();
      }
      work();
    }
  }

  absl::Mutex mutex_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lime
