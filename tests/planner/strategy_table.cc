// Prints the strategies side by side, in ms per step, for problem files of `lime solve` (Markdown).
//
//   strategy_table [--time-limit-ms 5000] FILE...
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "planner/lower_bound.h"
#include "planner/plan/plan_json.h"
#include "planner/strategies.h"

namespace lime {
namespace {

absl::Status PrintRow(const char* path, double time_limit_ms) {
  std::ifstream file(path);
  const nlohmann::json problem = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!problem.is_object() || !problem.contains("instance")) return absl::InvalidArgumentError("no problem with an instance");
  LIME_ASSIGN_OR_RETURN(const Instance instance, InstanceFromJson(problem["instance"]));
  std::printf("| %s | %.0f |", std::strrchr(path, '/') != nullptr ? std::strrchr(path, '/') + 1 : path, LowerBoundMs(instance));
  for (const Strategy strategy : kStrategies) {
    const FoundPlan found = PlanBy(strategy, instance, {.time_limit_ms = time_limit_ms});
    std::printf(found.feasible ? " %.0f |" : " out of memory |", found.ms_per_step);
  }
  std::printf("\n");
  return absl::OkStatus();
}

}  // namespace
}  // namespace lime

int main(int argc, char** argv) {
  double time_limit_ms = 5000;
  int first = 1;
  if (argc > 2 && std::strcmp(argv[1], "--time-limit-ms") == 0) {
    time_limit_ms = std::atof(argv[2]);
    first = 3;
  }
  std::string rule = "|---|--:|";
  std::printf("| problem | lower bound |");
  for (const lime::Strategy strategy : lime::kStrategies) {
    std::printf(" %s |", std::string(lime::StrategyName(strategy)).c_str());
    rule += "--:|";
  }
  std::printf("\n%s\n", rule.c_str());
  for (int i = first; i < argc; ++i) {
    if (const absl::Status status = lime::PrintRow(argv[i], time_limit_ms); !status.ok()) {
      std::fprintf(stderr, "%s: %s\n", argv[i], std::string(status.message()).c_str());
      return 1;
    }
  }
  return 0;
}
