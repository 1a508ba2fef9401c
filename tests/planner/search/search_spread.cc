// Prints how far searches of some length are from a long one, seed by seed (Markdown). Length is
// work alone, so that what else the machine does matters to the CPU times and to nothing else.
//
//   search_spread [--seeds 10] [--short-ms 200] [--long-ms 5000] [--long-seeds 1] PROBLEM...
//
// PROBLEM is a problem file of `lime solve`, or 126x8 (LargeProblem), or LAYERSxDEVICES
// (LongProblem).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <span>
#include <string>
#include <vector>

#include "planner/evaluation/lower_bound.h"
#include "planner/strategies.h"
#include "tests/planner/search/paper_problems.h"

namespace lime {
namespace {

struct Lengths {
  int seeds = 10, long_seeds = 1;
  double short_ms = 200, long_ms = 5000;
};

struct Spread {
  double least_ms = 1e300, most_ms = 0;  // per step
  double most_cpu_ms = 0;
};

Spread SearchAll(const Instance& instance, int seeds, double time_limit_ms) {
  Spread spread;
  for (int seed = 1; seed <= seeds; ++seed) {
    const std::clock_t start = std::clock();
    const FoundPlan found = PlanBy(Strategy::kLime, instance, {.seed = static_cast<uint64_t>(seed), .time_limit_ms = time_limit_ms});
    const double ms = found.feasible ? found.ms_per_step : 1e300;
    spread.least_ms = std::min(spread.least_ms, ms);
    spread.most_ms = std::max(spread.most_ms, ms);
    spread.most_cpu_ms = std::max(spread.most_cpu_ms, 1000.0 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return spread;
}

absl::StatusOr<Instance> Problem(const std::string& name) {
  if (name == "126x8") return LargeProblem();
  int layers = 0, devices = 0;
  if (std::sscanf(name.c_str(), "%dx%d", &layers, &devices) == 2) return LongProblem(layers, devices);
  return ProblemOf(name);
}

absl::Status PrintRow(const std::string& name, const Lengths& lengths) {
  LIME_ASSIGN_OR_RETURN(const Instance instance, Problem(name));
  const Spread quick = SearchAll(instance, lengths.seeds, lengths.short_ms);
  const Spread slow = SearchAll(instance, lengths.long_seeds, lengths.long_ms);
  std::printf("| %s | %.0f | %.1f to %.1f | %.0f | %.1f to %.1f | %.0f | %.3f |\n", name.substr(name.rfind('/') + 1).c_str(),
              LowerBoundMs(instance), quick.least_ms, quick.most_ms, quick.most_cpu_ms, slow.least_ms, slow.most_ms, slow.most_cpu_ms,
              quick.most_ms / slow.least_ms);
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status Main(std::span<char*> arguments) {
  Lengths lengths;
  while (arguments.size() > 2 && std::strncmp(arguments[0], "--", 2) == 0) {
    const std::string flag = arguments[0];
    const double value = std::atof(arguments[1]);
    if (flag == "--seeds") lengths.seeds = static_cast<int>(value);
    if (flag == "--short-ms") lengths.short_ms = value;
    if (flag == "--long-ms") lengths.long_ms = value;
    if (flag == "--long-seeds") lengths.long_seeds = static_cast<int>(value);
    arguments = arguments.subspan(2);
  }
  std::printf("| problem | lower bound | %d searches of %.0f ms | CPU ms | %d of %.0f ms | CPU ms | worst / best |\n", lengths.seeds,
              lengths.short_ms, lengths.long_seeds, lengths.long_ms);
  std::printf("|---|--:|--:|--:|--:|--:|--:|\n");
  for (const char* name : arguments) LIME_RETURN_IF_ERROR(PrintRow(name, lengths));
  return absl::OkStatus();
}

}  // namespace
}  // namespace lime

int main(int argc, char** argv) {
  const absl::Status status = lime::Main(std::span<char*>(argv, argc).subspan(1));
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
