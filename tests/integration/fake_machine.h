// A machine whose free memory the test sets. It outlives the stages that watch it.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/synchronization/mutex.h"
#include "daemon/pressure/pressure_monitor.h"
#include "tests/temp_dir.h"

namespace lime {

class FakeMachine {
 public:
  FakeMachine() {
    std::filesystem::create_directories(dir_ / "proc");
    SetAvailable(8 * kGiB);
  }
  void SetAvailable(Bytes bytes) {
    const std::string path = dir_ / "proc/meminfo";
    std::ofstream(path + ".new") << "MemTotal: 16777216 kB\nMemFree: " << bytes / kKiB << " kB\nMemAvailable: " << bytes / kKiB << " kB\n";
    std::filesystem::rename(path + ".new", path);
  }
  PressureMonitor::Options Watch() const {
    PressureMonitor::Options options;
    options.proc = dir_ / "proc";
    options.groups = {};
    options.use_events = false;
    options.interval = options.near_interval = absl::Milliseconds(10);
    options.on_sample = [this](const MemorySample&) {
      absl::MutexLock lock(&mutex_);
      ++samples_;
    };
    return options;
  }
  // Waits until stages have looked at the memory `count` more times, and have reacted to it.
  void AwaitSamples(int64_t count) const {
    absl::MutexLock lock(&mutex_);
    const int64_t until = samples_ + count;
    const auto came = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return samples_ >= until; };
    mutex_.Await(absl::Condition(&came));
  }

 private:
  TempDir dir_;
  mutable absl::Mutex mutex_;
  mutable int64_t samples_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace lime
