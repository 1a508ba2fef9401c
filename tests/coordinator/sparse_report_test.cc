// What a run says of its sparse MLPs, from the counters of its devices.
#include "coordinator/reports/sparse_report.h"

#include <array>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lime {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Two layers of 100 neurons, up to 4 sequences in a step.
Plan SparsePlan() {
  Plan plan{.batch = 4, .devices = {{.name = "a"}, {.name = "b"}}, .stages = {{0, 0, 2}, {1, 2, 4}}};
  for (const int32_t layer : {0, 1}) {
    plan.parts.push_back({.block = {BlockKind::kMlp, layer}, .rows = {{TensorRole::kUp, 0, 100}}});
    plan.parts.push_back(
        {.block = {BlockKind::kMlp, layer}, .rows = {{TensorRole::kDown, 0, 64}}, .unit_bytes = 4096, .places = 10, .window_masks = 5});
  }
  return plan;
}

TEST(SparseReportTest, TheActiveShareIsThatOfAMicroBatchWhateverItsRows) {
  // Each layer is on a device of its own. Three steps of one sequence each, with 20 active neurons.
  std::array<DeviceStatistics, 2> devices;
  for (DeviceStatistics& of : devices) of = {.neuron_visits = 3, .neuron_rows = 3, .neurons_computed = 60, .neurons_loaded = 30};
  SparseUse use = SparseUseOf(SparsePlan(), devices);
  EXPECT_DOUBLE_EQ(use.measured.computed_share, 0.2);
  EXPECT_DOUBLE_EQ(use.tokens, 3);
  EXPECT_DOUBLE_EQ(use.measured.neurons_loaded, 20);
  EXPECT_THAT(use.Text(), HasSubstr("20.0 % of the neurons active"));
  EXPECT_THAT(use.Text(), Not(HasSubstr("copied")));
  // One more step, of three sequences, in which no neuron is active.
  for (DeviceStatistics& of : devices) ++of.neuron_visits, of.neuron_rows += 3;
  use = SparseUseOf(SparsePlan(), devices);
  EXPECT_DOUBLE_EQ(use.measured.computed_share, 0.15);
  EXPECT_DOUBLE_EQ(use.tokens, 6);
  EXPECT_DOUBLE_EQ(use.measured.neurons_loaded, 10);
}

TEST(SparseReportTest, WhatACalibrationPredictsIsBesideWhatWasMeasured) {
  Plan plan = SparsePlan();
  for (const int p : {1, 3}) {
    PlanPart& part = plan.parts[static_cast<size_t>(p)];
    part.chosen_units = 24, part.hit_share = 0.5;
    part.demand_reads = 8, part.demand_bytes = 8 * 6144, part.demand_io_ms = 2;
  }
  const std::array<DeviceStatistics, 1> devices = {{{.neuron_visits = 2,
                                                     .neuron_rows = 8,
                                                     .neurons_computed = 40,
                                                     .neurons_loaded = 20,
                                                     .neuron_reads = 12,
                                                     .neuron_bytes = 81920,
                                                     .neuron_io_ms = 6}}};
  const SparseUse use = SparseUseOf(plan, devices);
  ASSERT_TRUE(use.calibrated);
  EXPECT_DOUBLE_EQ(use.expected.computed_share, 0.24);
  EXPECT_DOUBLE_EQ(use.expected.neurons_loaded, 2 * 24 * 0.5 / 4) << "a micro-batch has 4 tokens";
  EXPECT_DOUBLE_EQ(use.expected.reads, 4);
  EXPECT_DOUBLE_EQ(use.expected.bytes, 4 * 6144);
  EXPECT_DOUBLE_EQ(use.expected.io_ms, 1);
  EXPECT_EQ(use.Text(),
            "sparse MLPs: 20.0 % of the neurons active (24.0 predicted); a token reads 5.0 of them (6.0 predicted) in 3.0 reads (4.0), "
            "20.00 KiB (24.00 KiB), 1.50 ms (1.00)");
  nlohmann::json answer;
  AddSparsity(use, answer);
  EXPECT_EQ(answer["sparse_io_ms_per_token"], 1.5);
  EXPECT_EQ(answer["sparse_prediction"]["sparse_io_ms_per_token"], 1);
  EXPECT_EQ(answer["sparse_prediction"]["neurons_loaded_per_token"], 6);
  AddSparsity(SparseUseOf(SparsePlan(), devices), answer);
  EXPECT_TRUE(answer["sparse_prediction"]["sparse_io_ms_per_token"].is_null()) << "nothing is known of zeros";
  EXPECT_EQ(answer["sparse_io_ms_per_token"], 1.5);
}

TEST(SparseReportTest, WithCopiesOfDecidersMoreIsComputedThanIsActive) {
  Plan plan = SparsePlan();
  // The second layer is certified: a copy leaves 30 neurons, of which 24 are active.
  plan.parts.erase(plan.parts.begin() + 2);
  plan.stages = {{0, 0, 2}, {1, 2, 3}};
  plan.parts[2].rows.insert(plan.parts[2].rows.begin(), {TensorRole::kUp, 0, 100});
  plan.parts[2].decider_bits = 6, plan.parts[2].decider_directions = 4;
  for (const int p : {1, 2}) {
    PlanPart& part = plan.parts[static_cast<size_t>(p)];
    part.chosen_units = 24, part.hit_share = 0.5, part.demand_reads = 8, part.demand_bytes = 8 * 6144, part.demand_io_ms = 2;
  }
  plan.parts[2].chosen_units = 30, plan.parts[2].active_units = 24;
  const std::array<DeviceStatistics, 1> devices = {{{.neuron_visits = 2, .neuron_rows = 8, .neurons_computed = 56, .neurons_loaded = 20}}};
  const SparseUse use = SparseUseOf(plan, devices);
  EXPECT_EQ(use.certified, 1);
  EXPECT_DOUBLE_EQ(use.measured.computed_share, 0.28);
  EXPECT_DOUBLE_EQ(use.expected.computed_share, 0.27);
  EXPECT_DOUBLE_EQ(use.expected_active_share, 0.24);
  EXPECT_THAT(use.Text(),
              HasSubstr("28.0 % of the neurons computed (27.0 predicted, 24.0 active), the others are proven to be zero in 1 layers;"));
  nlohmann::json answer;
  AddSparsity(use, answer);
  EXPECT_EQ(answer["certified_layers"], 1);
  EXPECT_EQ(answer["sparse_computed_share"], 0.28);
  EXPECT_TRUE(answer["sparse_active_share"].is_null()) << "only kernels know which of them are zero";
  EXPECT_NEAR(answer["sparse_prediction"]["sparse_active_share"].get<double>(), 0.24, 1e-9);
  EXPECT_EQ(answer["lossless"], true);
}

TEST(SparseReportTest, WithAPredictorResultsAreOthersWhateverIsSparse) {
  Plan plan = SparsePlan();
  plan.predictor = "0123456789abcdef";
  EXPECT_EQ(NameOfSparsity(plan), "predicted");
  EXPECT_EQ(NameOfSparsity(SparsePlan()), "exact");
  const std::array<DeviceStatistics, 1> devices = {{{.neuron_visits = 2, .neuron_rows = 8, .neurons_computed = 56, .neurons_loaded = 20}}};
  const SparseUse use = SparseUseOf(plan, devices);
  EXPECT_THAT(use.Text(), HasSubstr("28.0 % of the neurons named by the predictor"));
  nlohmann::json answer;
  AddSparsity(use, answer);
  EXPECT_EQ(answer["sparsity"], "predicted");
  EXPECT_EQ(answer["lossless"], false);
  EXPECT_TRUE(answer["sparse_active_share"].is_null());
  plan.parts.clear(), plan.stages.clear();
  EXPECT_EQ(NameOfSparsity(plan), "predicted");
  AddSparsity(SparseUseOf(plan, {}), answer);
  EXPECT_EQ(answer["lossless"], false);
}

TEST(SparseReportTest, NeuronsCopiedFromPromptsAreThoseOfAllDevices) {
  std::array<DeviceStatistics, 2> devices;
  for (DeviceStatistics& of : devices) of = {.neuron_visits = 1, .neuron_rows = 1, .neurons_computed = 20, .neurons_copied = 12};
  const SparseUse use = SparseUseOf(SparsePlan(), devices);
  EXPECT_THAT(use.Text(), EndsWith(" ms; 24 were copied from prompts"));
  nlohmann::json answer;
  AddSparsity(use, answer);
  EXPECT_EQ(answer["neurons_copied"], 24);
}

TEST(SparseReportTest, WhatHasNotBeenUsedHasNoNumbers) {
  const std::array<DeviceStatistics, 1> devices = {};
  EXPECT_EQ(SparseUseOf(SparsePlan(), devices).Text(), "sparse MLPs: no token has used them");
  EXPECT_THAT(SparseUseOf(Plan(), devices).Text(), IsEmpty());
  nlohmann::json answer;
  AddSparsity(SparseUseOf(SparsePlan(), devices), answer);
  EXPECT_EQ(answer["sparsity"], "exact");
  EXPECT_TRUE(answer["neurons_loaded_per_token"].is_null());
}

}  // namespace
}  // namespace lime
