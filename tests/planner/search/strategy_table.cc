// Prints the strategies side by side (Markdown).
//
//   strategy_table [--time-limit-ms 5000] PROBLEM...           ms per step of S1 to S3b, or of files of `lime solve`
//   strategy_table [--time-limit-ms 5000] --settings           the table of docs/results/plans.md
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "planner/batches.h"
#include "planner/evaluation/lower_bound.h"
#include "tests/planner/search/paper_problems.h"

namespace lime {
namespace {

// `lime` with blocks in parts and an embedding that may be read by rows, and then the strategies.
void PrintHead(const std::string& columns) {
  std::string rule = columns;
  for (size_t i = 0; i < rule.size(); ++i) rule[i] = columns[i] == '|' ? '|' : '-';
  std::printf("%s lower bound | **lime**, parts |", columns.c_str());
  rule += "--:|--:|";
  for (const auto& [strategy, name] : kStrategyNames.all) {
    std::printf(strategy == Strategy::kLime ? " %s, whole blocks |" : " %s |", std::string(name).c_str());
    rule += "--:|";
  }
  std::printf("\n%s\n", rule.c_str());
}

// Per token, of `sequences` tokens in a step.
void PrintMs(const absl::StatusOr<BatchedPlan>& plan, int sequences) {
  if (plan.ok() && plan->found.feasible) {
    std::printf(" %.0f |", plan->found.ms_per_step / sequences);
  } else {
    std::printf(" out of memory |");
  }
  std::fflush(stdout);
}

absl::Status PrintRow(const std::string& name, const Instance& whole, const Instance& pieces, int sequences, double time_limit_ms) {
  LIME_ASSIGN_OR_RETURN(const BatchedPlan best,
                        PlanBatches(Strategy::kLime, pieces, {.granularity = Granularity::kModelBlock, .time_limit_ms = time_limit_ms}));
  std::printf("%s %.0f |", name.c_str(), best.lower_bound_ms / sequences);
  PrintMs(best, sequences);
  for (const auto& [strategy, name] : kStrategyNames.all)
    PrintMs(PlanBatches(strategy, whole, {.time_limit_ms = time_limit_ms}), sequences);
  std::printf("\n");
  return absl::OkStatus();
}

absl::Status PrintProblems(std::span<char*> paths, double time_limit_ms) {
  PrintHead("| problem |");
  for (const char* path : paths) {
    LIME_ASSIGN_OR_RETURN(const Instance whole, ProblemOf(path));
    const std::string name = std::strrchr(path, '/') != nullptr ? std::strrchr(path, '/') + 1 : path;
    LIME_RETURN_IF_ERROR(PrintRow("| " + name + " |", whole, InParts(whole, kHundredMbitPerS), 1, time_limit_ms));
  }
  return absl::OkStatus();
}

struct Setting {
  const char* problem;
  const char* name;
  double hundred_mbit;  // tx_ms at 100 Mbit/s over that of the problem
};

constexpr Setting kSettings[] = {{"E1", "E1, Llama 2 13B", 1},          {"E2", "E2, Qwen3 32B", 2},
                                 {"E3", "E3, Llama 3.3 70B", 1},        {"S1", "Setting 1, Llama 3.3 70B", 1},
                                 {"S2", "Setting 2, Llama 3.3 70B", 1}, {"S3", "Setting 3, Llama 3.3 70B", 1}};

absl::Status PrintSettings(double time_limit_ms) {
  constexpr int kBurst = 5;
  PrintHead("| problem | requests | Mbit/s |");
  for (const Setting& setting : kSettings) {
    const Instance slow = WithSlowerWire(PaperProblem(setting.problem), setting.hundred_mbit);
    for (const int sequences : {1, kBurst}) {
      for (const int mbit : {100, 200}) {
        const Instance one = WithSlowerWire(slow, 100.0 / mbit), whole = sequences == 1 ? one : WithSequences(one, sequences);
        const std::string name = std::string("| ") + setting.name + " | " + std::to_string(sequences) + " | " + std::to_string(mbit) + " |";
        LIME_RETURN_IF_ERROR(PrintRow(name, whole, InParts(whole, kHundredMbitPerS * mbit / 100), sequences, time_limit_ms));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Main(std::span<char*> arguments) {
  double time_limit_ms = 5000;
  if (arguments.size() >= 2 && std::strcmp(arguments[0], "--time-limit-ms") == 0) {
    time_limit_ms = std::atof(arguments[1]);
    arguments = arguments.subspan(2);
  }
  const bool settings = arguments.size() == 1 && std::strcmp(arguments[0], "--settings") == 0;
  return settings ? PrintSettings(time_limit_ms) : PrintProblems(arguments, time_limit_ms);
}

}  // namespace
}  // namespace lime

int main(int argc, char** argv) {
  const absl::Status status = lime::Main(std::span<char*>(argv, argc).subspan(1));
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
