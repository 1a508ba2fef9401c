// Explains why a run was slower or faster than predicted.
#pragma once

#include <string>
#include <string_view>

#include "planner/base/bytes.h"
#include "planner/base/names.h"

namespace lime {

// The source of the rate that a prediction used.
enum class RateSource {
  kProfile,  // `lime profile` measured it some time ago
  kAssumed,  // not measured
  kSeen,     // this run measured it, before the steps that are explained
};

// Measurements while tokens were decoded. Zero where nothing was measured.
struct PredictionObservations {
  double wall_seconds = 0;
  double steps = 0;
  double decode_seconds = 0;     // of all steps together
  double step_deviation_ms = 0;  // standard deviation of their times
  bool compute_profiled = true;  // the profile holds measured times of this model's blocks

  double disk_bytes = 0;  // streamed bytes
  double disk_busy_seconds = 0;
  double disk_rate_profiled = 0;  // bytes per second, at the read size and depth in use
  RateSource disk_rate_source = RateSource::kProfile;

  // Bytes of weights that were shed. Every later step reads them.
  double shed_bytes_per_step = 0;

  int threads = 0;            // compute threads
  int cores = 0;              // of the machine
  double other_seconds = 0;   // CPU time of all other processes
  double stolen_seconds = 0;  // used by the hypervisor

  double memory_rate = 0;  // bytes per second, measured right after the run
  double memory_rate_profiled = 0;
  RateSource memory_rate_source = RateSource::kProfile;
};

enum class DifferenceCause {
  kNone,         // the prediction held
  kTooShort,     // too little was measured to judge
  kNotProfiled,  // compute times were estimated from rates, not measured
  kDiskRate,     // the disk reads slower or faster than profiled
  kMemoryShed,   // blocks left memory under pressure and were streamed
  kCpuLost,      // other processes or the hypervisor used the CPUs
  kMemoryRate,   // memory reads slower or faster than profiled
  kDeviceRate,   // in a cluster: a device computes slower or faster than planned
  kLinkRate,     // in a cluster: a link is slower or faster than profiled
  kUnknown,      // none of the measurements explains it
};

inline constexpr Names<DifferenceCause, 10> kCauseNames = {{{DifferenceCause::kNone, "none"},
                                                            {DifferenceCause::kTooShort, "too_short"},
                                                            {DifferenceCause::kNotProfiled, "not_profiled"},
                                                            {DifferenceCause::kDiskRate, "disk_rate"},
                                                            {DifferenceCause::kMemoryShed, "memory_shed"},
                                                            {DifferenceCause::kCpuLost, "cpu_taken"},
                                                            {DifferenceCause::kMemoryRate, "memory_rate"},
                                                            {DifferenceCause::kDeviceRate, "device_rate"},
                                                            {DifferenceCause::kLinkRate, "link_rate"},
                                                            {DifferenceCause::kUnknown, "unknown"}}};

struct PredictionReport {
  double predicted_ms = 0;
  double measured_ms = 0;
  // predicted / measured - 1. 0 for kTooShort, or if there is nothing to compare.
  double error = 0;
  double explained_ms = 0;  // milliseconds of measured - predicted that `cause` explains
  DifferenceCause cause = DifferenceCause::kNone;
  std::string sentence;  // empty for kNone

  // Whether enough was measured to say that the prediction was wrong.
  bool Differs() const { return cause != DifferenceCause::kNone && cause != DifferenceCause::kTooShort; }
};

// The prediction is wrong if it differs by more than a tenth of itself. A cause is named if it
// explains at least a quarter of the difference.
inline constexpr double kPredictionTolerance = 0.10;
inline constexpr double kLeastExplained = 0.25;

// "predicted 50 % too low: WHY" for an error of -0.5.
std::string DifferenceText(double error, std::string_view why);

// Whether steps with mean `mean_ms` allow a judgement of the prediction. They must number at least
// three and last a quarter of a second, and the difference must exceed the random variation of the
// mean (Student's t, 95 %, with a small allowance).
bool CanJudge(double predicted_ms, double mean_ms, const PredictionObservations& seen);

// Rates of a disk: the planned one, and the one measured in this run. 0: none.
struct DiskCorrection {
  RateSource source = RateSource::kProfile;  // of `planned`
  double planned = 0;
  double seen = 0;
};
// "the disk reads at 200 MB/s where 1.00 GB/s was assumed: 6913.0 ms a step are predicted instead
// of 1400.0". Empty if the predictions are within kPredictionTolerance.
std::string CorrectionText(const DiskCorrection& disk, double planned_ms, double predicted_ms);

// Names the cause that explains most of the difference in its direction. Times are per step.
PredictionReport ExplainDifference(double predicted_ms, double measured_ms, const PredictionObservations& seen);

}  // namespace lime
