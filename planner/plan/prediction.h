// Why a run took longer, or less long, than was predicted.
#pragma once

#include <string>
#include <string_view>

#include "planner/base/bytes.h"

namespace lime {

// What was seen while tokens were decoded. Zero where it was not looked at.
struct PredictionObservations {
  double wall_seconds = 0;
  double steps = 0;
  bool compute_profiled = true;  // the profile holds measured times of this model's blocks

  double disk_bytes = 0;  // streamed
  double disk_busy_seconds = 0;
  double disk_rate_profiled = 0;  // bytes per second, at the read size and depth in use

  int blocks_shed = 0;
  double shed_bytes_per_step = 0;  // read again in every step since then

  int threads = 0;             // that compute
  int cores = 0;               // of the machine
  double process_seconds = 0;  // CPU time of this process
  double other_seconds = 0;    // CPU time of all other processes
  double stolen_seconds = 0;   // taken by the hypervisor

  double memory_rate = 0;  // bytes per second, measured right after
  double memory_rate_profiled = 0;
};

enum class DifferenceCause {
  kNone,         // the prediction held
  kNotProfiled,  // the compute times were estimated from rates, not measured
  kDiskRate,     // the disk read slower, or faster, than profiled
  kMemoryShed,   // blocks were given up under memory pressure, and streamed
  kCpuTaken,     // other processes or the hypervisor had the CPUs
  kMemoryRate,   // memory reads slower, or faster, than profiled
  kUnknown,      // nothing of what was looked at
};

// "none", "not_profiled", "disk_rate", "memory_shed", "cpu_taken", "memory_rate", "unknown".
std::string_view CauseName(DifferenceCause cause);

struct PredictionReport {
  double predicted_ms = 0;
  double measured_ms = 0;
  double error = 0;         // predicted / measured - 1
  double explained_ms = 0;  // of measured - predicted, by `cause`
  DifferenceCause cause = DifferenceCause::kNone;
  std::string sentence;  // empty for kNone
};

// Parts of the times beyond which the two are said to differ, and which a cause must explain to be named: a tenth of the prediction, a
// quarter of the difference.
inline constexpr double kPredictionTolerance = 0.10;
inline constexpr double kLeastExplained = 0.25;

// Both in milliseconds per step. Of the causes seen, names the one that explains most of the difference, in the direction it has.
PredictionReport ExplainDifference(double predicted_ms, double measured_ms, const PredictionObservations& seen);

}  // namespace lime
