#include "planner/plan/prediction.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lime {
namespace {

struct Explanation {
  DifferenceCause cause = DifferenceCause::kUnknown;
  double ms = 0;  // per step; negative: faster than predicted
  std::string text;
};

std::string Rate(double bytes_per_second) {
  return bytes_per_second >= 1e9 ? absl::StrFormat("%.2f GB/s", bytes_per_second / 1e9)
                                 : absl::StrFormat("%.0f MB/s", bytes_per_second / 1e6);
}

// "(the profile says 2.00 GB/s)".
std::string PredictedWith(RateSource source, double bytes_per_second) {
  switch (source) {
    case RateSource::kProfile:
      return absl::StrCat("(the profile says ", Rate(bytes_per_second), ")");
    case RateSource::kAssumed:
      return absl::StrCat("(", Rate(bytes_per_second), " was assumed)");
    case RateSource::kSeen:
      return absl::StrCat("(it was ", Rate(bytes_per_second), " when the run began)");
  }
  return "";
}

// Share of the wall time that the compute threads wanted but did not get: time stolen by the
// hypervisor, and time of other processes on the cores that we needed. All threads wait for the
// slowest, so a loss of one is a loss of all.
double LostShare(const PredictionObservations& seen) {
  if (seen.wall_seconds <= 0 || seen.threads <= 0) return 0;
  const double spare = static_cast<double>(std::max(0, seen.cores - seen.threads)) * seen.wall_seconds;
  const double lost = std::max(0.0, seen.other_seconds + seen.stolen_seconds - spare);
  return std::clamp(lost / (seen.wall_seconds * static_cast<double>(seen.threads)), 0.0, 1.0);
}

// Reads overlap with computing. A slower disk therefore costs only its time beyond the prediction.
// A faster disk helps only if the prediction was limited by the disk.
Explanation OfDisk(const PredictionObservations& seen, double predicted_ms) {
  constexpr double kBoundByDisk = 0.8;  // least share of reading in the predicted time
  if (seen.disk_bytes <= 0 || seen.disk_busy_seconds <= 0 || seen.disk_rate_profiled <= 0 || seen.steps <= 0) return {};
  const double profiled_ms = 1000 * seen.disk_bytes / seen.steps / seen.disk_rate_profiled;
  const double busy_ms = 1000 * seen.disk_busy_seconds / seen.steps;
  const double gain = profiled_ms >= kBoundByDisk * predicted_ms ? std::min(0.0, busy_ms - profiled_ms) : 0;
  return {DifferenceCause::kDiskRate, busy_ms > profiled_ms ? std::max(0.0, busy_ms - predicted_ms) : gain,
          absl::StrCat("the disk read at ", Rate(seen.disk_bytes / seen.disk_busy_seconds), " ",
                       PredictedWith(seen.disk_rate_source, seen.disk_rate_profiled))};
}

Explanation OfShedding(const PredictionObservations& seen) {
  const double rate =
      seen.disk_busy_seconds > 0 && seen.disk_bytes > 0 ? seen.disk_bytes / seen.disk_busy_seconds : seen.disk_rate_profiled;
  if (seen.shed_bytes_per_step <= 0 || rate <= 0) return {};
  return {DifferenceCause::kMemoryShed, 1000 * seen.shed_bytes_per_step / rate,
          absl::StrCat("other programs needed memory: ", FormatBytes(static_cast<Bytes>(seen.shed_bytes_per_step)),
                       " of weights were evicted, and were read in every step")};
}

Explanation OfCpu(const PredictionObservations& seen, double measured_ms) {
  const double wall = seen.wall_seconds * static_cast<double>(seen.threads);
  if (wall <= 0) return {};
  return {DifferenceCause::kCpuLost, measured_ms * LostShare(seen),
          absl::StrFormat(
              "other programs used the CPUs: other processes used %.0f %% and the hypervisor %.0f %% of the time that %d threads need",
              100 * seen.other_seconds / wall, 100 * seen.stolen_seconds / wall, seen.threads)};
}

Explanation OfMemory(const PredictionObservations& seen, double predicted_ms) {
  if (seen.memory_rate <= 0 || seen.memory_rate_profiled <= 0) return {};
  return {
      DifferenceCause::kMemoryRate, predicted_ms * (seen.memory_rate_profiled / seen.memory_rate - 1),
      absl::StrCat("memory now reads at ", Rate(seen.memory_rate), " ", PredictedWith(seen.memory_rate_source, seen.memory_rate_profiled))};
}

Explanation Unexplained(const PredictionObservations& seen) {
  if (!seen.compute_profiled) {
    return {DifferenceCause::kNotProfiled, 0,
            "the time was estimated from the rates of this machine; `lime profile --model` measures this model's blocks"};
  }
  return {DifferenceCause::kUnknown, 0,
          "neither disk, memory nor other processes explain it; `lime profile --model` measures this machine again"};
}

// The explanation of the most time, if it has the direction of the difference and explains enough.
Explanation Best(std::vector<Explanation> all, double difference, const PredictionObservations& seen) {
  const auto towards = [&](const Explanation& e) { return difference > 0 ? e.ms : -e.ms; };
  const auto best = std::ranges::max_element(all, {}, towards);
  return towards(*best) >= kLeastExplained * std::abs(difference) ? *best : Unexplained(seen);
}

}  // namespace

std::string DifferenceText(double error, std::string_view why) {
  return absl::StrFormat("predicted %.0f %% too %s: %s", 100 * std::abs(error), error < 0 ? "low" : "high", std::string(why));
}

bool CanJudge(double predicted_ms, double mean_ms, const PredictionObservations& seen) {
  constexpr double kLeastSteps = 3;
  constexpr double kLeastSeconds = 0.25;
  if (seen.steps < kLeastSteps || seen.decode_seconds < kLeastSeconds) return false;
  const double t = 2 + 5 / (seen.steps - 1);
  return std::abs(mean_ms - predicted_ms) > t * seen.step_deviation_ms / std::sqrt(seen.steps);
}

std::string CorrectionText(const DiskCorrection& disk, double planned_ms, double predicted_ms) {
  if (disk.seen <= 0 || !(planned_ms > 0) || std::abs(predicted_ms / planned_ms - 1) <= kPredictionTolerance) return "";
  return absl::StrFormat("the disk reads at %s %s: %.1f ms a step are predicted instead of %.1f", Rate(disk.seen),
                         PredictedWith(disk.source, disk.planned), predicted_ms, planned_ms);
}

PredictionReport ExplainDifference(double predicted_ms, double measured_ms, const PredictionObservations& seen) {
  PredictionReport report{.predicted_ms = predicted_ms, .measured_ms = measured_ms};
  if (!(predicted_ms > 0 && measured_ms > 0)) return report;
  report.error = predicted_ms / measured_ms - 1;
  if (std::abs(report.error) <= kPredictionTolerance) return report;
  if (!CanJudge(predicted_ms, measured_ms, seen)) {
    report.error = 0;
    report.cause = DifferenceCause::kTooShort;
    report.sentence = absl::StrFormat("%.0f steps in %.0f ms are too few, or differ too much, to judge the prediction", seen.steps,
                                      1000 * seen.decode_seconds);
    return report;
  }
  const double difference = measured_ms - predicted_ms;
  Explanation best =
      Best({OfDisk(seen, predicted_ms), OfShedding(seen), OfCpu(seen, measured_ms), OfMemory(seen, predicted_ms)}, difference, seen);
  report.cause = best.cause;
  report.explained_ms = best.ms;
  report.sentence = DifferenceText(report.error, best.text);
  return report;
}

}  // namespace lime
