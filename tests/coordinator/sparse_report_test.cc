// What a run says of its sparse MLPs, from the counters of its devices.
#include "coordinator/reports/sparse_report.h"

#include <array>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lime {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two layers of 100 neurons, up to 4 sequences in a step.
Plan SparsePlan() {
  Plan plan{.batch = 4};
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
  EXPECT_DOUBLE_EQ(use.active_share, 0.2);
  EXPECT_DOUBLE_EQ(use.tokens, 3);
  EXPECT_DOUBLE_EQ(use.neurons_loaded, 20);
  EXPECT_THAT(use.Text(), HasSubstr("20.0 % of the neurons active"));
  // One more step, of three sequences, in which no neuron is active.
  for (DeviceStatistics& of : devices) ++of.neuron_visits, of.neuron_rows += 3;
  use = SparseUseOf(SparsePlan(), devices);
  EXPECT_DOUBLE_EQ(use.active_share, 0.15);
  EXPECT_DOUBLE_EQ(use.tokens, 6);
  EXPECT_DOUBLE_EQ(use.neurons_loaded, 10);
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
