// A machine whose memory the test decides.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

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
    return options;
  }

 private:
  TempDir dir_;
};

}  // namespace lime
