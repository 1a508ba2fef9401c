#include <string>

#include "absl/strings/str_join.h"
#include "coordinator/reports/plan_report.h"
#include "coordinator/reports/text_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lime::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Align = TextTable::Align;

// Blocks of `layers` layers and a head in two parts; what is no matter here is left out.
Plan PlanOfLayers(int layers) {
  Plan plan;
  plan.model_name = "some model";
  plan.sequences = 2;
  plan.batch = 2;
  plan.vocab_size = 4096;
  for (int32_t l = 0; l < layers; ++l) {
    for (const BlockKind kind : {BlockKind::kAttention, BlockKind::kMlp})
      plan.parts.push_back({.block = {kind, l}, .bytes = 100, .decode_ms = 1});
  }
  for (const int64_t begin : {0, 2048})
    plan.parts.push_back(
        {.block = {BlockKind::kHead, 0}, .rows = {{TensorRole::kOutput, begin, begin + 2048}}, .bytes = 10, .decode_ms = 1});
  return plan;
}

std::string Stages(Plan plan, std::vector<Stage> stages) {
  plan.stages = std::move(stages);
  std::vector<std::string> texts;
  for (size_t j = 0; j < plan.stages.size(); ++j) texts.push_back(StageText(plan, static_cast<int>(j)));
  return absl::StrJoin(texts, " ");
}

TEST(PlanTableTest, StagesAreNamedByTheirLayers) {
  const Plan plan = PlanOfLayers(10);  // parts 0 to 19, head 20 and 21
  EXPECT_EQ(Stages(plan, {{0, 0, 22}}), "0-9+head");
  EXPECT_EQ(Stages(plan, {{0, 0, 2}, {1, 2, 20}, {0, 20, 22}}), "0 1-9 head");
  EXPECT_EQ(Stages(plan, {{0, 0, 1}, {1, 1, 2}, {0, 2, 5}, {1, 5, 22}}), "0a 0m 1-2a 2m-9+head");
  EXPECT_EQ(Stages(plan, {{0, 0, 21}, {1, 21, 22}}), "0-9+head 0-2047 head 2048-4095");
}

// --read-ahead needs places for some experts of a layer, but not for all.
TEST(PlanTableTest, WhyNothingIsReadAheadIsSaid) {
  Plan plan;
  plan.parts = {{.block = {BlockKind::kExperts, 0}}};
  for (int32_t expert = 0; expert < 4; ++expert) plan.parts[0].rows.push_back({TensorRole::kGate, 0, 8, expert});
  PlanPart& experts = plan.parts[0];
  EXPECT_THAT(NoReadAheadText(plan, 2),
              HasSubstr("--read-ahead 2 has no effect, because this plan keeps all experts in memory; --experts"));
  experts.streamed = true;
  EXPECT_THAT(NoReadAheadText(plan, 2), HasSubstr("streams all experts"));
  experts.streamed = false, experts.places = 4, experts.ahead_places = 2;
  EXPECT_THAT(NoReadAheadText(plan, 2), HasSubstr("keeps all experts in memory")) << "all of them have a place";
  experts.places = 1, experts.ahead_places = 0;
  EXPECT_THAT(NoReadAheadText(plan, 2), HasSubstr("a place for one expert of each layer only"));
  EXPECT_EQ(NoReadAheadText(plan, 0), "");
  experts.places = 3, experts.ahead_places = 2;
  EXPECT_EQ(NoReadAheadText(plan, 2), "");
}

TEST(PlanTableTest, ABarIsInProportionToTheBudget) {
  const PlanMemory memory = {.runtime = 10, .activations = 10, .kv = 20, .ring = 10, .weights = 30, .embedding = 10, .margin = 10};
  EXPECT_EQ(MemoryBar(memory, 100, 10), "RAKKEWWWS.");
  EXPECT_EQ(MemoryBar(memory, 100, 20), "RRAAKKKKEEWWWWWWSS..");
  EXPECT_EQ(MemoryBar({}, 0, 4), "....");
  EXPECT_EQ(MemoryBar(memory, 1, 5), "RRRRR");  // never longer than it may be
}

TEST(PlanTableTest, TablesAlignAndWrap) {
  TextTable table({Align::kLeft, Align::kLeft, Align::kRight});
  table.AddRow({"name", "what it does", "ms"});
  table.AddRow({"a", "one two three four five six", "10"});
  EXPECT_EQ(table.Text(80, 1), "name  what it does                 ms\na     one two three four five six  10\n");
  EXPECT_EQ(table.Text(27, 1), "name  what it does       ms\na     one two three      10\n      four five six\n");
}

TEST(PlanTableTest, WrapBreaksAtSpaces) {
  EXPECT_EQ(Wrap("aa bb cc", 5), (std::vector<std::string>{"aa bb", "cc"}));
  EXPECT_EQ(Wrap("aaaaaaaa b", 5), (std::vector<std::string>{"aaaaaaaa", "b"}));
}

PlanReport Report() {
  PlanReport report;
  report.strategy = "lime";
  report.plan = PlanOfLayers(2);
  report.plan.stages = {{0, 0, 6}};
  report.plan.devices = {{.name = "a", .budget = 1000}, {.name = "left", .budget = 500}};
  report.plan.devices[0].memory = {.weights = 500, .margin = 500};
  report.plan.predicted = {.ms_per_step = 20, .ms_per_token = 10, .ttft_ms = 0, .lower_bound_ms = 16};
  report.uses.resize(2);
  report.uses[0] = {.stages = {0}, .resident_blocks = 4.5, .resident_bytes = 420, .compute_ms = 20};
  report.explanations = {{.used = true, .why = "it is the only one", .one_more_gib_ms = 3, .alone_ms = 20},
                         {.used = false, .why = "too slow", .otherwise_ms = 30, .one_more_gib_ms = 0}};
  return report;
}

// The MLP of layer 0 has three experts on demand; memory has two of them.
PlanReport ReportWithExperts() {
  PlanReport report = Report();
  PlanPart& part = report.plan.parts[1];
  part = {.block = {BlockKind::kExperts, 0}, .bytes = 3 * kMiB, .unit_bytes = kMiB, .places = 2, .hit_share = 0.75, .chosen_units = 2};
  for (int32_t e = 0; e < 3; ++e) part.rows.push_back({TensorRole::kUp, 0, 8, e});
  report.plan.devices[0].disk_mb_per_ms = 1;
  report.uses[0].units = UnitUseOf(report.plan, 0);
  return report;
}

TEST(PlanTableTest, ExpertsOnDemandAreNamedWithWhatIsExpected) {
  const std::string text = PlanText(ReportWithExperts(), 100);
  EXPECT_THAT(text, HasSubstr("all but experts is resident"));
  EXPECT_THAT(text, HasSubstr("\n             experts: 2 of 3 kept, 75 % expected in memory, 256.00 KiB read a token\n"));
  EXPECT_THAT(PlanText(Report(), 100), Not(HasSubstr("experts")));
  const auto device = ToJson(ReportWithExperts())["devices"][0];
  EXPECT_EQ(device["experts"]["kept"], 2);
  EXPECT_EQ(device["experts"]["of"], 3);
  EXPECT_EQ(device["experts"]["expected_hit_share"], 0.75);
  EXPECT_EQ(device["experts"]["expected_bytes_per_step"], 0.5 * kMiB);
  EXPECT_FALSE(ToJson(Report())["devices"][0].contains("experts"));
}

TEST(PlanTableTest, SaysWhatIsPredictedAndWhy) {
  const std::string text = PlanText(Report(), 80);
  EXPECT_THAT(text, HasSubstr("2 requests at a time in 1 micro-batch of 2"));
  EXPECT_THAT(text, HasSubstr("predicted    10.0 ms per token (100 tokens/s over all requests); no plan can beat 8.00, gap 25.0 %"));
  EXPECT_THAT(text, HasSubstr("1 stage in 1 round, everything is resident"));
  EXPECT_THAT(text, HasSubstr("used: it is the only one; one more GiB would save 1.50 ms per token"));
  EXPECT_THAT(text, HasSubstr("left out: too slow; one more GiB would change nothing"));
  EXPECT_THAT(text, Not(HasSubstr("first token")));
}

TEST(PlanTableTest, WhatFitsOnOneDeviceIsRunThere) {
  PlanReport report = Report();
  EXPECT_THAT(
      PlanText(report, 80),
      HasSubstr(
          "Everything fits on a alone: 10.0 ms per token with nothing streamed. Run it there:\n  lime run --model FOLDER-OF-some model"));
  report.model_argument = "models/m";
  EXPECT_THAT(PlanText(report, 80), HasSubstr("lime run --model models/m --memory"));
  report.explanations[0].alone_ms.reset();
  EXPECT_THAT(PlanText(report, 80), Not(HasSubstr("alone")));
}

TEST(PlanTableTest, LinesKeepToTheWidth) {
  PlanReport report = Report();
  report.explanations[1].why =
      "a long reason that goes on and on and on and would not fit in a line of the terminal that it is printed on, so it is broken";
  const std::string text = PlanText(report, 72);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (text.compare(begin, 6, "memory") != 0) {
      EXPECT_LE(end - begin, 100u) << text.substr(begin, end - begin);
    }
    begin = end + 1;
  }
}

TEST(PlanTableTest, TheJsonHasTheFieldsThatOthersRelyOn) {
  const nlohmann::ordered_json root = ToJson(Report());
  EXPECT_EQ(root["feasible"], true);
  EXPECT_EQ(root["ms_per_token"], 10);
  EXPECT_EQ(root["lower_bound_ms_per_token"], 8);
  EXPECT_EQ(root["ttft_ms"], nullptr);
  EXPECT_EQ(root["fits_on_one_device"], "a");
  EXPECT_TRUE(root["plan"].is_object());
  EXPECT_EQ(root["devices"][0]["memory"]["weight_bytes"], 500);
  EXPECT_EQ(root["devices"][0]["compute_ms_per_token"], 10);
  EXPECT_EQ(root["devices"][0]["one_more_gib_saves_ms_per_token"], 1.5);
  EXPECT_EQ(root["devices"][1]["used"], false);
  EXPECT_EQ(root["devices"][1]["ms_per_token_with_a_layer_on_it"], 15);
}

}  // namespace
}  // namespace lime::cli
