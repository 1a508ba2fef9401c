// Why a run took longer, or less long, than was predicted.
#pragma once

#include <string>
#include <string_view>

#include "planner/base/bytes.h"
#include "planner/base/names.h"

namespace lime {

// Where the rate that a prediction was made with comes from.
enum class RateSource {
  kProfile,  // `lime profile` measured it, some time ago
  kAssumed,  // nobody did
  kSeen,     // this run did, before what is explained
};

// What was seen while tokens were decoded. Zero where it was not looked at.
struct PredictionObservations {
  double wall_seconds = 0;
  double steps = 0;
  double decode_seconds = 0;     // of all steps together
  double step_deviation_ms = 0;  // standard deviation of their times
  bool compute_profiled = true;  // the profile holds measured times of this model's blocks

  double disk_bytes = 0;  // streamed
  double disk_busy_seconds = 0;
  double disk_rate_profiled = 0;  // bytes per second, at the read size and depth in use
  RateSource disk_rate_source = RateSource::kProfile;

  double shed_bytes_per_step = 0;  // of weights, given back to the machine and read in every step since then

  int threads = 0;             // that compute
  int cores = 0;               // of the machine
  double process_seconds = 0;  // CPU time of this process
  double other_seconds = 0;    // CPU time of all other processes
  double stolen_seconds = 0;   // taken by the hypervisor

  double memory_rate = 0;  // bytes per second, measured right after
  double memory_rate_profiled = 0;
  RateSource memory_rate_source = RateSource::kProfile;
};

enum class DifferenceCause {
  kNone,         // the prediction held
  kTooShort,     // too little was measured to say whether it did
  kNotProfiled,  // the compute times were estimated from rates, not measured
  kDiskRate,     // the disk read slower, or faster, than profiled
  kMemoryShed,   // blocks were given up under memory pressure, and streamed
  kCpuTaken,     // other processes or the hypervisor had the CPUs
  kMemoryRate,   // memory reads slower, or faster, than profiled
  kDeviceRate,   // of a cluster: a device computed slower, or faster, than the plan says
  kLinkRate,     // of a cluster: a link is slower, or faster, than its profile
  kUnknown,      // nothing of what was looked at
};

inline constexpr Names<DifferenceCause, 10> kCauseNames = {{{DifferenceCause::kNone, "none"},
                                                            {DifferenceCause::kTooShort, "too_short"},
                                                            {DifferenceCause::kNotProfiled, "not_profiled"},
                                                            {DifferenceCause::kDiskRate, "disk_rate"},
                                                            {DifferenceCause::kMemoryShed, "memory_shed"},
                                                            {DifferenceCause::kCpuTaken, "cpu_taken"},
                                                            {DifferenceCause::kMemoryRate, "memory_rate"},
                                                            {DifferenceCause::kDeviceRate, "device_rate"},
                                                            {DifferenceCause::kLinkRate, "link_rate"},
                                                            {DifferenceCause::kUnknown, "unknown"}}};

struct PredictionReport {
  double predicted_ms = 0;
  double measured_ms = 0;
  double error = 0;         // predicted / measured - 1; 0 where there is nothing to compare or kTooShort
  double explained_ms = 0;  // of measured - predicted, by `cause`
  DifferenceCause cause = DifferenceCause::kNone;
  std::string sentence;  // empty for kNone

  // Enough was measured to say so.
  bool Differs() const { return cause != DifferenceCause::kNone && cause != DifferenceCause::kTooShort; }
};

// Parts of the times beyond which the two are said to differ, and which a cause must explain to be named: a tenth of the prediction, a
// quarter of the difference.
inline constexpr double kPredictionTolerance = 0.10;
inline constexpr double kLeastExplained = 0.25;

// "predicted 50 % too low: WHY" for an error of -0.5.
std::string DifferenceText(double error, std::string_view why);

// Whether steps that took `mean_ms` on average, which is not `predicted_ms`, say anything about the prediction: three steps and a quarter
// of a second at least, and the difference is beyond what means of so many steps vary by (Student's t, 95 %, a little more than that).
bool CanJudge(double predicted_ms, double mean_ms, const PredictionObservations& seen);

// Rates of a disk: what a prediction was made with, and what the run has seen since; 0: nothing.
struct DiskCorrection {
  RateSource source = RateSource::kProfile;  // of `planned`
  double planned = 0;
  double seen = 0;
};
// "the disk reads at 200 MB/s where 1.00 GB/s was assumed: 6913.0 ms a step are predicted instead of 1400.0", or nothing where the two
// predictions are within kPredictionTolerance.
std::string CorrectionText(const DiskCorrection& disk, double planned_ms, double predicted_ms);

// Both in milliseconds per step. Of the causes seen, names the one that explains most of the difference, in the direction it has.
PredictionReport ExplainDifference(double predicted_ms, double measured_ms, const PredictionObservations& seen);

}  // namespace lime
