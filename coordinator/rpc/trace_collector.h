// Collects the spans that devices record while they work, and compares their clocks with ours.
//
// A device keeps a bounded number of spans, so they are read all the time, in bounded messages.
// Every answer also gives a sample of the device's clock. Reading costs the device one control
// message per interval, and adds nothing to the path of a token.
//
// Threads: one for each device, from the constructor to Finish; they share nothing else.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "coordinator/logic/clock_alignment.h"
#include "proto/convert/convert.h"

namespace lime {

// Capacity for spans on a device: some steps of a plan with hundreds of parts, in one megabyte.
// They are read long before it is full.
inline constexpr int64_t kTraceSpans = int64_t{1} << 14;

// The spans of one device for one plan.
struct DeviceTrace {
  std::string device;
  int64_t epoch = -1;
  ClockAlignment clock;
  int64_t lost = 0;  // spans dropped by the device or here
  std::vector<TimelineSpan> spans;
  absl::Status status;  // of the last call, if it failed
};

class TraceCollector {
 public:
  // Answers a TraceCall; called on a thread of its own, one call at a time.
  using Source = std::function<absl::StatusOr<TraceChunk>(const TraceCall& call)>;
  struct Device {
    std::string name;
    Source source;
  };
  struct Options {
    absl::Duration every = absl::Milliseconds(50);
    size_t most_spans = 1'000'000;  // per device: 48 MB
  };
  TraceCollector(std::vector<Device> devices, const Options& options);
  ~TraceCollector();

  // Fetches the remaining spans and ends. Returns the spans of the newest plan, by device. Call it
  // once, while the plan is still installed.
  std::vector<DeviceTrace> Finish();

 private:
  struct Collecting {
    Device device;
    DeviceTrace trace;
    int64_t dropped = 0;  // here, because most_spans was reached
    std::thread thread;
  };
  void Collect(Collecting& collecting) const;
  int64_t Ask(Collecting& collecting, int64_t most) const;
  void CompareClocks(Collecting& collecting) const;
  void Add(Collecting& collecting, const TraceChunk& chunk) const;

  const Options options_;
  absl::Notification finishing_;
  std::vector<std::unique_ptr<Collecting>> devices_;
};

}  // namespace lime
