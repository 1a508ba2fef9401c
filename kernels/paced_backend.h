// A slow device imitated on a fast one, for experiments: every part is computed by the real kernels, and then the calling thread sleeps
// until the device of a profile would have ended it. Loading, network and heartbeats go on at their own pace, and no bit changes.
//
// Thread: the backend's.   Never in the way unless asked for: PaceBackend is the only door.
//
// Parts that follow one another without a pause are counted from the profiled end of the one before, so that what a sleep overshoots, or a
// part that the real kernels ended too late, is made up for by the next; after a pause the count begins anew.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/backend.h"
#include "planner/plan/device_profile.h"

namespace lime {

// Time as the compute thread sees it; another one in tests.
class PaceClock {
 public:
  virtual ~PaceClock() = default;
  virtual double NowMs() = 0;
  virtual void SleepUntilMs(double ms) = 0;
};

struct PaceReport {
  int64_t parts = 0;
  double real_ms = 0;   // that the kernels took
  double paced_ms = 0;  // that the profile says
  int64_t late = 0;     // parts that the kernels ended after the profile, and by how much at most: a profile too fast for this machine
  double latest_ms = 0;
};

struct PaceOptions {
  DeviceProfile profile;
  std::unique_ptr<PaceClock> clock;                     // null: that of the system
  std::function<void(const PaceReport& report)> ended;  // told with the backend's end
};

// Parts that begin within this of the end of the one before follow it without a pause.
inline constexpr double kPaceHandOverMs = 0.3;

// `real` in the pace of `options.profile`, for a model of this spec.
std::unique_ptr<Backend> PaceBackend(std::unique_ptr<Backend> real, const ModelSpec& spec, PaceOptions options);

}  // namespace lime
