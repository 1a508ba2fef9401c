// Imitates a slow device on a fast one, for experiments. The real kernels compute every part; then
// the calling thread sleeps until the device of a profile would have ended it. Loading, network and
// heartbeats run at their own pace, and no bit changes.
//
// Thread: the backend's.   Only PaceBackend makes one, so it is never used unless asked for.
//
// If parts follow one another without a pause, each is counted from the profiled end of the last
// one. So the next part makes up for a sleep that was too long, or for a part that the real kernels
// ended too late. After a pause the count begins again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/backend.h"
#include "planner/plan/device/device_profile.h"

namespace lime {

// Time as the compute thread sees it; tests use their own clock.
class PaceClock {
 public:
  virtual ~PaceClock() = default;
  virtual double NowMs() = 0;
  virtual void SleepUntilMs(double ms) = 0;
};

struct PaceReport {
  int64_t parts = 0;
  double real_ms = 0;   // time that the kernels took
  double paced_ms = 0;  // time that the profile says
  // Parts that the kernels ended after the time of the profile (it is too fast for this machine),
  // and the longest such delay.
  int64_t late = 0;
  double latest_ms = 0;
};

struct PaceOptions {
  DeviceProfile profile;
  // Null: the system's clock.
  std::unique_ptr<PaceClock> clock;
  // Called when the backend is destroyed.
  std::function<void(const PaceReport& report)> ended;
};

// A part that begins within this time after the end of the last one follows it without a pause.
inline constexpr double kPaceHandOverMs = 0.3;

// Wraps `real` so that it has the pace of `options.profile`, for a model of this spec.
std::unique_ptr<Backend> PaceBackend(std::unique_ptr<Backend> real, const ModelSpec& spec, PaceOptions options);

}  // namespace lime
