// A plan, its Programs and its timeline as golden files: tests/golden/*.txt, to be read in review.
//
// To write them anew: planner_tests --files=plan_golden_test.cc --update_golden, then read the
// difference as you would read code.

#include <gtest/gtest.h>

#include "planner/sim/simulator.h"
#include "tests/golden_file.h"
#include "tests/planner/plan_text.h"
#include "tests/planner/program_text.h"
#include "tests/planner/small_plan.h"

namespace lime {
namespace {

std::string ProgramsText(const Plan& plan, const StepShape& shape) {
  const absl::StatusOr<std::vector<Program>> programs = Compile(plan, shape);
  if (!programs.ok()) return std::string(programs.status().message());
  std::string text;
  for (const Program& program : *programs) absl::StrAppend(&text, ProgramText(program, &plan), "\n");
  return text;
}

TEST(PlanGoldenTest, OneRequestOnThreeDevices) {
  const absl::StatusOr<Plan> plan = SmallPlan(1, 1, 58 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  ExpectGolden("plan.txt", PlanText(*plan));
  ExpectGolden("programs_decode.txt", ProgramsText(*plan, DecodeShape(*plan)));
  const absl::StatusOr<SimulationResult> result = SimulateDecode(*plan);
  ASSERT_TRUE(result.ok()) << result.status().message();
  ExpectGolden("timeline_decode.txt",
               absl::StrCat("from an idle start\n", GanttText(result->timeline, 0, result->step_ends_ms[1]), "\ntwo settled steps\n",
                            GanttText(result->timeline, result->step_ends_ms[29], result->step_ends_ms[31])));
}

TEST(PlanGoldenTest, APromptInChunks) {
  const absl::StatusOr<Plan> plan = SmallPlan(1, 1, 58 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  std::string text;
  const std::vector<StepShape> shapes = PrefillShapes(*plan);
  for (size_t i = 0; i < shapes.size(); ++i) {
    absl::StrAppend(&text, "step ", i + 1, " of ", shapes.size(), "\n\n");
    if (i > 0 && shapes[i] == shapes[i - 1]) {
      absl::StrAppend(&text, "as before\n\n");
    } else {
      absl::StrAppend(&text, ProgramsText(*plan, shapes[i]));
    }
  }
  ExpectGolden("programs_prefill.txt", text);
  const absl::StatusOr<SimulationResult> result = SimulatePrefill(*plan);
  ASSERT_TRUE(result.ok()) << result.status().message();
  ExpectGolden("timeline_prefill.txt", GanttText(result->timeline, 0, result->step_ends_ms.back()));
}

TEST(PlanGoldenTest, ThreeMicroBatches) {
  const absl::StatusOr<Plan> plan = SmallPlan(5, 2, 70 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const absl::StatusOr<SimulationResult> result = SimulateDecode(*plan);
  ASSERT_TRUE(result.ok()) << result.status().message();
  ExpectGolden("timeline_microbatches.txt",
               absl::StrCat(PlanText(*plan), "\n", GanttText(result->timeline, result->step_ends_ms[29], result->step_ends_ms[31])));
}

}  // namespace
}  // namespace lime
