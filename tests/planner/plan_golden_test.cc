// A plan, its Programs and its timeline as golden files: tests/golden/*.txt, to be read in review.
//
// To write them anew: planner_plan_golden_test --update_golden, then read the difference as you
// would read code.

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string_view>

#include "planner/sim/simulator.h"
#include "tests/planner/plan_text.h"
#include "tests/planner/program_text.h"
#include "tests/planner/small_plan.h"

namespace lime {
namespace {

bool update_golden = false;

void ExpectGolden(const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(LIME_SOURCE_DIR, "/tests/golden/", name);
  if (update_golden) {
    std::ofstream(path) << text;
    return;
  }
  std::ifstream file(path);
  ASSERT_TRUE(file) << path << " is missing; run with --update_golden";
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(text, golden.str()) << "If this is meant, run with --update_golden and read the difference.";
}

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

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) lime::update_golden |= std::string_view(argv[i]) == "--update_golden";
  return RUN_ALL_TESTS();
}
