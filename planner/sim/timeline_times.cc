#include "planner/sim/timeline_times.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace lime {
namespace {

using Kind = TimelineSpan::Kind;
using TimeSpan = std::pair<double, double>;  // begin, end

// The length of the union of stretches, which may overlap and be in any order.
double Covered(std::vector<TimeSpan>& stretches) {
  std::ranges::sort(stretches);
  double covered = 0, until = -std::numeric_limits<double>::infinity();
  for (const auto& [begin, end] : stretches) {
    covered += std::max(0.0, end - std::max(begin, until));
    until = std::max(until, end);
  }
  return covered;
}

}  // namespace

std::vector<DeviceTimes> TimesOf(const Timeline& timeline, double begin_ms, double end_ms) {
  std::vector<std::array<std::vector<TimeSpan>, TimelineSpan::kKinds>> stretches(timeline.devices.size());
  for (const TimelineSpan& span : timeline.spans) {
    const TimeSpan within = {std::max(span.begin_ms, begin_ms), std::min(span.end_ms, end_ms)};
    if (within.first < within.second) stretches[span.device][static_cast<size_t>(span.kind)].push_back(within);
  }
  std::vector<DeviceTimes> times;
  for (auto& of : stretches) {
    const auto covered = [&of](Kind kind) { return Covered(of[static_cast<size_t>(kind)]); };
    times.push_back({.compute_ms = covered(Kind::kCompute),
                     .wait_weights_ms = covered(Kind::kWaitWeights),
                     .wait_input_ms = covered(Kind::kWaitInput) + covered(Kind::kWaitKv) + covered(Kind::kWaitHost),
                     .load_ms = covered(Kind::kLoad),
                     .send_ms = covered(Kind::kSend)});
  }
  return times;
}

std::optional<double> HiddenLoading(const DeviceTimes& times) {
  if (!(times.load_ms > 0)) return std::nullopt;
  return std::max(0.0, 1 - times.wait_weights_ms / times.load_ms);
}

std::optional<double> HiddenLoading(const std::vector<DeviceTimes>& devices) {
  DeviceTimes all;
  for (const DeviceTimes& device : devices) all.load_ms += device.load_ms, all.wait_weights_ms += device.wait_weights_ms;
  return HiddenLoading(all);
}

}  // namespace lime
