#include "planner/plan/prediction.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lime {
namespace {

struct Explanation {
  DifferenceCause cause = DifferenceCause::kUnknown;
  double ms = 0;  // longer, or less long where negative, per step
  std::string text;
};

std::string Rate(double bytes_per_second) {
  return absl::StrFormat("%.2f GB/s", bytes_per_second / 1e9);
}

// Of a second of wall time, the seconds that the computing threads did not get although they wanted them: what was stolen from us, and what
// others used of the cores that we needed. Threads wait for the slowest, so what one loses all lose.
double LostShare(const PredictionObservations& seen) {
  if (seen.wall_seconds <= 0 || seen.threads <= 0) return 0;
  const double spare = static_cast<double>(std::max(0, seen.cores - seen.threads)) * seen.wall_seconds;
  const double taken = std::max(0.0, seen.other_seconds + seen.stolen_seconds - spare);
  return std::clamp(taken / (seen.wall_seconds * static_cast<double>(seen.threads)), 0.0, 1.0);
}

// Reading hides behind computing as far as that goes: a slower disk costs what is beyond the prediction, a faster one gains only where the
// prediction was about the disk.
Explanation OfDisk(const PredictionObservations& seen, double predicted_ms) {
  constexpr double kBoundByDisk = 0.8;  // of the predicted time, the reading
  if (seen.disk_bytes <= 0 || seen.disk_busy_seconds <= 0 || seen.disk_rate_profiled <= 0 || seen.steps <= 0) return {};
  const double profiled_ms = 1000 * seen.disk_bytes / seen.steps / seen.disk_rate_profiled;
  const double busy_ms = 1000 * seen.disk_busy_seconds / seen.steps;
  const double gain = profiled_ms >= kBoundByDisk * predicted_ms ? std::min(0.0, busy_ms - profiled_ms) : 0;
  return {DifferenceCause::kDiskRate, busy_ms > profiled_ms ? std::max(0.0, busy_ms - predicted_ms) : gain,
          absl::StrCat("the disk read at ", Rate(seen.disk_bytes / seen.disk_busy_seconds), " where the profile says ",
                       Rate(seen.disk_rate_profiled))};
}

Explanation OfShedding(const PredictionObservations& seen) {
  const double rate =
      seen.disk_busy_seconds > 0 && seen.disk_bytes > 0 ? seen.disk_bytes / seen.disk_busy_seconds : seen.disk_rate_profiled;
  if (seen.blocks_shed <= 0 || rate <= 0) return {};
  return {DifferenceCause::kMemoryShed, 1000 * seen.shed_bytes_per_step / rate,
          absl::StrCat("memory pressure took ", seen.blocks_shed, " blocks out of memory, and ",
                       FormatBytes(static_cast<Bytes>(seen.shed_bytes_per_step)), " more were read for every step")};
}

Explanation OfCpu(const PredictionObservations& seen, double measured_ms) {
  const double wall = seen.wall_seconds * static_cast<double>(seen.threads);
  if (wall <= 0) return {};
  return {DifferenceCause::kCpuTaken, measured_ms * LostShare(seen),
          absl::StrFormat("the CPUs were not ours alone: other processes used %.0f %% and the hypervisor %.0f %% of what %d threads need",
                          100 * seen.other_seconds / wall, 100 * seen.stolen_seconds / wall, seen.threads)};
}

Explanation OfMemory(const PredictionObservations& seen, double predicted_ms) {
  if (seen.memory_rate <= 0 || seen.memory_rate_profiled <= 0) return {};
  return {DifferenceCause::kMemoryRate, predicted_ms * (seen.memory_rate_profiled / seen.memory_rate - 1),
          absl::StrCat("memory now reads at ", Rate(seen.memory_rate), " where the profile says ", Rate(seen.memory_rate_profiled))};
}

Explanation Unexplained(const PredictionObservations& seen) {
  if (!seen.compute_profiled) {
    return {DifferenceCause::kNotProfiled, 0,
            "the time was estimated from the rates of this machine; `lime profile --model` measures this model's blocks"};
  }
  return {DifferenceCause::kUnknown, 0,
          "neither disk, memory nor other processes explain it; `lime profile --model` measures this machine anew"};
}

// The one that explains most, if it is of the difference's direction and enough of it.
Explanation Best(std::vector<Explanation> all, double difference, const PredictionObservations& seen) {
  const auto towards = [&](const Explanation& e) { return difference > 0 ? e.ms : -e.ms; };
  const auto best = std::ranges::max_element(all, {}, towards);
  return towards(*best) >= kLeastExplained * std::abs(difference) ? *best : Unexplained(seen);
}

}  // namespace

std::string_view CauseName(DifferenceCause cause) {
  switch (cause) {
    case DifferenceCause::kNone:
      return "none";
    case DifferenceCause::kNotProfiled:
      return "not_profiled";
    case DifferenceCause::kDiskRate:
      return "disk_rate";
    case DifferenceCause::kMemoryShed:
      return "memory_shed";
    case DifferenceCause::kCpuTaken:
      return "cpu_taken";
    case DifferenceCause::kMemoryRate:
      return "memory_rate";
    case DifferenceCause::kUnknown:
      return "unknown";
  }
  return "unknown";
}

PredictionReport ExplainDifference(double predicted_ms, double measured_ms, const PredictionObservations& seen) {
  PredictionReport report{.predicted_ms = predicted_ms, .measured_ms = measured_ms};
  if (!(predicted_ms > 0 && measured_ms > 0)) return report;
  report.error = predicted_ms / measured_ms - 1;
  if (std::abs(report.error) <= kPredictionTolerance) return report;
  const double difference = measured_ms - predicted_ms;
  Explanation best =
      Best({OfDisk(seen, predicted_ms), OfShedding(seen), OfCpu(seen, measured_ms), OfMemory(seen, predicted_ms)}, difference, seen);
  report.cause = best.cause;
  report.explained_ms = best.ms;
  report.sentence = absl::StrFormat("%.0f %% %s than predicted: %s", 100 * std::abs(difference) / predicted_ms,
                                    difference > 0 ? "slower" : "faster", best.text);
  return report;
}

}  // namespace lime
