#include "planner/residency.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

namespace lime {
namespace {

using ::testing::HasSubstr;
using Kind = ResidencyProblem::Kind;

// `layers` layers of an attention of 4 MiB and an MLP of 12 MiB in pieces of 4 MiB, embedding and head of 8 MiB.
ResidencyProblem Model(int layers, Bytes memory) {
  ResidencyProblem problem{.blocks = {}, .memory = memory};
  problem.disk_bytes_per_ms = 1e6;
  problem.row_ms = 0.3;
  problem.blocks.push_back({.kind = Kind::kRows, .resident = 8 * kMiB, .comp_ms = 0.01, .pieces = {}});
  for (int layer = 0; layer < layers; ++layer) {
    problem.blocks.push_back({.kind = Kind::kAttention, .resident = 4 * kMiB, .comp_ms = 0.5, .pieces = {4 * kMiB}});
    problem.blocks.push_back({.kind = Kind::kMlp, .resident = 12 * kMiB, .comp_ms = 1.2, .pieces = {4 * kMiB, 4 * kMiB, 4 * kMiB}});
  }
  problem.blocks.push_back({.kind = Kind::kHead, .resident = 8 * kMiB, .comp_ms = 0.8, .pieces = {4 * kMiB, 4 * kMiB}});
  return problem;
}

Bytes StreamedBytes(const ResidencyProblem& problem, const std::vector<bool>& resident) {
  Bytes bytes = 0;
  for (size_t i = 0; i < resident.size(); ++i) {
    if (!resident[i]) bytes += std::accumulate(problem.blocks[i].pieces.begin(), problem.blocks[i].pieces.end(), Bytes{0});
  }
  return bytes;
}

TEST(ResidencyTest, WhatFitsStaysAndNothingStreams) {
  const auto plan = PlanResidency(Model(4, 80 * kMiB));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_FALSE(plan->streams());
  EXPECT_EQ(std::ranges::count(plan->resident, true), 10);
  EXPECT_EQ(plan->resident_bytes, 80 * kMiB);
}

TEST(ResidencyTest, APlanIsEvaluatedAgainAtTheRateThatTheDiskHas) {
  ResidencyProblem problem = Model(4, 60 * kMiB);
  const auto plan = PlanResidency(problem);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_DOUBLE_EQ(ResidencyMsPerStep(problem, *plan), plan->ms_per_step);
  problem.disk_bytes_per_ms = 1e5;  // a tenth: it decides
  const double bound = static_cast<double>(plan->streamed_bytes) / problem.disk_bytes_per_ms;
  EXPECT_GE(ResidencyMsPerStep(problem, *plan), bound * (1 - 1e-9));
  EXPECT_LE(ResidencyMsPerStep(problem, *plan), bound * 1.1);
}

TEST(ResidencyTest, ResidentBlocksAndRingStayInsideTheMemoryWhateverIsAsked) {
  for (const Placement placement : {Placement::kAuto, Placement::kFirstN, Placement::kLastN, Placement::kInterleaved}) {
    for (Bytes memory = 8 * kMiB; memory < 90 * kMiB; memory += 3 * kMiB) {
      ResidencyProblem problem = Model(4, memory);
      problem.placement = placement;
      const auto plan = PlanResidency(problem);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_LE(plan->resident_bytes + plan->ring, memory) << PlacementName(placement);
      EXPECT_EQ(plan->streamed_bytes, StreamedBytes(problem, plan->resident));
      EXPECT_GE(plan->ms_per_step, plan->limit_ms * (1 - 1e-9)) << "no schedule beats the limit";
    }
  }
}

TEST(ResidencyTest, MoreMemoryIsNeverSlower) {
  double before = std::numeric_limits<double>::infinity();
  for (Bytes memory = 8 * kMiB; memory < 90 * kMiB; memory += kMiB) {
    const auto plan = PlanResidency(Model(4, memory));
    ASSERT_TRUE(plan.ok());
    EXPECT_LE(plan->ms_per_step, before * (1 + 1e-9)) << FormatBytes(memory);
    before = plan->ms_per_step;
  }
}

TEST(ResidencyTest, AutoIsAtLeastAsFastAsEveryPlacement) {
  for (Bytes memory = 8 * kMiB; memory < 80 * kMiB; memory += 5 * kMiB) {
    ResidencyProblem problem = Model(4, memory);
    const auto best = PlanResidency(problem);
    ASSERT_TRUE(best.ok());
    for (const Placement placement : {Placement::kFirstN, Placement::kLastN, Placement::kInterleaved}) {
      problem.placement = placement;
      const auto other = PlanResidency(problem);
      ASSERT_TRUE(other.ok());
      EXPECT_LE(best->ms_per_step, other->ms_per_step * (1 + 1e-9)) << PlacementName(placement);
    }
  }
}

// Against every set of resident blocks: where the disk is slow, the fewest bytes to stream decide.
TEST(ResidencyTest, NoSetOfBlocksStreamsLess) {
  for (Bytes memory = 10 * kMiB; memory < 60 * kMiB; memory += 2 * kMiB) {
    ResidencyProblem problem = Model(2, memory);
    problem.disk_bytes_per_ms = 1e5;
    const auto plan = PlanResidency(problem);
    ASSERT_TRUE(plan.ok()) << plan.status();
    if (!plan->streams()) continue;
    Bytes least = std::numeric_limits<Bytes>::max();
    const size_t n = problem.blocks.size();
    for (uint32_t set = 0; set < (1u << n); ++set) {
      std::vector<bool> resident(n);
      Bytes held = 8 * kMiB;  // the smallest ring
      for (size_t i = 0; i < n; ++i) {
        resident[i] = (set >> i & 1) != 0;
        held += resident[i] ? problem.blocks[i].resident : 0;
      }
      if (held <= memory) least = std::min(least, StreamedBytes(problem, resident));
    }
    EXPECT_EQ(plan->streamed_bytes, least) << FormatBytes(memory);
  }
}

TEST(ResidencyTest, PlacementsAreWhatTheirNamesSay) {
  ResidencyProblem problem = Model(4, 44 * kMiB);
  problem.ring = 8 * kMiB;
  problem.placement = Placement::kFirstN;
  const auto first = PlanResidency(problem);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->resident, (std::vector<bool>{false, true, true, true, true, true, false, false, false, false}));
  problem.placement = Placement::kLastN;
  const auto last = PlanResidency(problem);
  ASSERT_TRUE(last.ok());
  EXPECT_EQ(last->resident, (std::vector<bool>{false, false, false, false, false, false, true, true, true, true}));
}

TEST(ResidencyTest, ATiedEmbeddingIsResidentWithItsHead) {
  for (const double share : {0.0, 0.3, 0.7, 1.0}) {
    ResidencyProblem problem = Model(4, 200 * kMiB);
    problem.blocks.front().resident = 0;
    problem.tied = true;
    problem.share = share;
    problem.ring = 16 * kMiB;
    const auto plan = PlanResidency(problem);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->resident.front(), plan->resident.back()) << share;
    EXPECT_LE(static_cast<double>(plan->resident_bytes), share * 72 * kMiB + 1);
  }
}

TEST(ResidencyTest, RefusesWhatHoldsNoTwoPieces) {
  const auto plan = PlanResidency(Model(4, 8 * kMiB - 1));
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("two pieces takes 8.00 MiB"));
}

TEST(ResidencyTest, NamesOfPlacementsAreRead) {
  for (const Placement placement : {Placement::kAuto, Placement::kFirstN, Placement::kLastN, Placement::kInterleaved}) {
    EXPECT_EQ(ParsePlacement(PlacementName(placement)).value(), placement);
  }
  EXPECT_THAT(std::string(ParsePlacement("best").status().message()), HasSubstr("\"best\""));
}

}  // namespace
}  // namespace lime
