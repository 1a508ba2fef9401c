#include "coordinator/cli/prediction_report.h"

#include <string>

namespace lime::cli {

nlohmann::json ToJson(const PredictionReport& report) {
  return {{"predicted_ms", report.predicted_ms},
          {"measured_ms", report.measured_ms},
          {"error", report.cause == DifferenceCause::kTooShort ? nlohmann::json() : nlohmann::json(report.error)},
          {"cause", kCauseNames.Of(report.cause)},
          {"why", report.sentence.empty() ? nlohmann::json() : nlohmann::json(report.sentence)}};
}

}  // namespace lime::cli
