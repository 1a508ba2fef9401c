#include "coordinator/cli/prediction_report.h"

#include <algorithm>
#include <string>
#include <thread>

#include "daemon/profile/measure_rates.h"
#include "daemon/weights/system_memory.h"

namespace lime::cli {
namespace {

constexpr double kLeastSeconds = 0.1;  // the system counts CPU time in ticks of 10 ms

void LookAtCpu(const CpuUsage& cpu, int64_t threads, PredictionObservations& seen) {
  if (cpu.wall < kLeastSeconds) return;
  seen.wall_seconds = cpu.wall;
  seen.threads = static_cast<int>(threads);
  seen.cores = static_cast<int>(std::thread::hardware_concurrency());
  seen.process_seconds = cpu.process;
  seen.other_seconds = std::max(0.0, cpu.busy - cpu.process);
  seen.stolen_seconds = cpu.stolen;
}

void LookAtStreaming(Engine& engine, const DecodeUse& use, PredictionObservations& seen) {
  Streamer* const streamer = engine.streamer();
  if (streamer == nullptr) return;
  seen.disk_bytes = static_cast<double>(use.streamed_bytes);
  seen.disk_busy_seconds = use.disk_busy_seconds;
  seen.blocks_shed = streamer->num_shed();
  seen.shed_bytes_per_step = static_cast<double>(std::max<Bytes>(0, streamer->StreamedBytes() - engine.residency().streamed_bytes));
}

}  // namespace

PredictionReport ComparePrediction(ModelSession& session, const GenerateSummary& summary) {
  const DeviceProfile& profile = session.profile();
  PredictionObservations seen{.steps = static_cast<double>(summary.decode_steps),
                              .decode_seconds = summary.decode_ms / 1000,
                              .step_deviation_ms = summary.StepDeviationMs()};
  seen.compute_profiled = profile.FindModel(ModelKey(session.engine().spec())) != nullptr;
  seen.disk_rate_profiled = session.disk_rate();
  seen.disk_rate_source = session.disk_rate_source();
  LookAtCpu(summary.use.cpu, session.threads(), seen);
  LookAtStreaming(session.engine(), summary.use, seen);
  const PredictionReport report = ExplainDifference(session.predicted_ms_per_token(), summary.MsPerStep(), seen);
  const bool open = report.cause == DifferenceCause::kUnknown || report.cause == DifferenceCause::kNotProfiled;
  if (!open || session.has_budget()) return report;  // threads that do not get their CPU read memory slowly too
  seen.memory_rate = MeasureMemory(static_cast<int>(session.threads()), AvailableMemory());
  seen.memory_rate_profiled = profile.read_bytes_per_second;
  seen.memory_rate_source = session.memory_rate_source();
  return ExplainDifference(session.predicted_ms_per_token(), summary.MsPerStep(), seen);
}

nlohmann::json ToJson(const PredictionReport& report) {
  return {{"predicted_ms", report.predicted_ms},
          {"measured_ms", report.measured_ms},
          {"error", report.cause == DifferenceCause::kTooShort ? nlohmann::json() : nlohmann::json(report.error)},
          {"cause", std::string(CauseName(report.cause))},
          {"why", report.sentence.empty() ? nlohmann::json() : nlohmann::json(report.sentence)}};
}

}  // namespace lime::cli
