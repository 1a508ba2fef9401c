// Eq. 1 by hand, the sharing out of slots against every way of doing it, the threshold table and
// the tokens to lend against their definitions.
#include "planner/baselines/closed_form.h"

#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <tuple>

#include "gtest/gtest.h"
#include "planner/baselines/online_memory.h"
#include "planner/kv/hosting/kv_transfer.h"
#include "tests/planner/random_plans.h"

namespace lime {
namespace {

// c = 2 and 5 ms, l = 30 and 20 ms, hop 3, S = 4, r = (3, 1), k = (1, 2):
// C = 4 * 2 + 3 * 5 + 2 * 3 = 29; R = max(1 * 32, 2 * 25) = 50; T = 4 * 50 = 200, of it uncovered 4
// * 21 = 84.
TEST(ClosedFormTest, IsBoundByTheBusiestDisk) {
  const std::vector<LayerTimes> layers = {{2, 30}, {5, 20}};
  const ClosedForm form = EvaluateClosedForm(layers, 3, {{0, 1}, 4, {3, 1}, {1, 2}});
  EXPECT_EQ(form.segment_critical_path_ms, 29);
  EXPECT_EQ(form.segment_load_cycle_ms, 50);
  EXPECT_EQ(form.total_ms, 200);
  EXPECT_EQ(form.uncovered_ms, 84);
}

// The same with r = (9, 9): C = 20 + 55 + 6 = 81 covers the loads; T = 4 * 81.
TEST(ClosedFormTest, IsBoundByTheCriticalPathWhereItCoversTheLoads) {
  const std::vector<LayerTimes> layers = {{2, 30}, {5, 20}};
  const ClosedForm form = EvaluateClosedForm(layers, 3, {{0, 1}, 4, {9, 9}, {1, 2}});
  EXPECT_EQ(form.total_ms, 324);
  EXPECT_EQ(form.uncovered_ms, 0);
}

// A device that is left out of the order counts neither hop nor layers; one whose disk reads
// nothing may compute, not stream.
TEST(ClosedFormTest, CountsTheDevicesOfTheOrder) {
  const std::vector<LayerTimes> layers = {{2, std::numeric_limits<double>::infinity()}, {5, 20}};
  EXPECT_EQ(EvaluateClosedForm(layers, 3, {{0}, 1, {4, 100}, {0, 100}}).total_ms, 11);
}

// Both halves make a layer, with one latency each: 100 / 10 + 1 + 300 / 10 + 1 = 42; computing 1 +
// 2.
TEST(ClosedFormTest, ALayerIsBothItsHalves) {
  Instance instance;
  for (int layer = 0; layer < 2; ++layer) {
    instance.blocks.push_back({.kind = Instance::Kind::kAttention, .layer = layer, .mb = 100});
    instance.blocks.push_back({.kind = Instance::Kind::kMlp, .layer = layer, .mb = 300});
  }
  instance.devices = {{.mem_mb = 1000, .disk_mb_per_ms = 10, .disk_lat_ms = 1, .comp_ms = {1, 2, 1, 2}}};
  const auto layers = UniformLayerTimes(instance);
  ASSERT_TRUE(layers.ok());
  EXPECT_EQ(layers->at(0).comp_ms, 3);
  EXPECT_EQ(layers->at(0).load_ms, 42);
}

double Uncovered(const OffloadSlotProblem& problem, const std::vector<int64_t>& k) {
  double most = 0;
  for (size_t i = 0; i < k.size(); ++i) {
    most = std::max(most, static_cast<double>(k[i]) * problem.load_ms[i] - (problem.c_ms - static_cast<double>(k[i]) * problem.comp_ms[i]));
  }
  return most;
}

// The least over every way of sharing out, by trying them all.
std::optional<double> BestOfAllShares(const OffloadSlotProblem& problem) {
  std::optional<double> best;
  std::vector<int64_t> k(problem.kmax.size(), 0);
  const std::function<void(size_t, int64_t)> try_from = [&](size_t device, int64_t missing) {
    if (device == k.size()) {
      if (missing == 0) best = std::min(best.value_or(std::numeric_limits<double>::infinity()), Uncovered(problem, k));
      return;
    }
    for (k[device] = 0; k[device] <= std::min(problem.kmax[device], missing); ++k[device]) try_from(device + 1, missing - k[device]);
    k[device] = 0;
  };
  try_from(0, problem.need);
  return best;
}

// A printed recurrence that adds the devices up would let the slack of one hide the excess of
// another. C = 10, l + c = 11 and 4: (1, 0) leaves max(1, 0) = 1 uncovered, (0, 1) none, (1, 1)
// one, (0, 2) none, (0, 3) two, (1, 2) one.
TEST(SlotsTest, TheObjectiveIsAMaximumOverDevices) {
  OffloadSlotProblem problem = {.load_ms = {10, 3}, .comp_ms = {1, 1}, .kmax = {1, 3}, .need = 2, .c_ms = 10};
  EXPECT_EQ(ShareOffloadSlots(problem).uncovered_ms, 0);
  EXPECT_EQ(ShareOffloadSlots(problem).k, (std::vector<int64_t>{0, 2}));
  problem.need = 3;
  EXPECT_EQ(ShareOffloadSlots(problem).uncovered_ms, 1);
  EXPECT_EQ(ShareOffloadSlots(problem).k, (std::vector<int64_t>{1, 2}));
  problem.need = 4;
  EXPECT_EQ(ShareOffloadSlots(problem).uncovered_ms, 2);
  problem.need = 5;
  EXPECT_FALSE(ShareOffloadSlots(problem).feasible);
  problem.need = 0;
  EXPECT_EQ(ShareOffloadSlots(problem).uncovered_ms, 0);
}

TEST(SlotsTest, NoDevicesShareOutNothing) {
  EXPECT_TRUE(ShareOffloadSlots({.need = 0}).feasible);
  EXPECT_FALSE(ShareOffloadSlots({.need = 1}).feasible);
}

TEST(SlotsTest, HugeCountsNeedNoMoreTime) {
  const int64_t many = 1'000'000'000'000'000;
  const OffloadSlotShares shares =
      ShareOffloadSlots({.load_ms = {1, 3}, .comp_ms = {0, 0}, .kmax = {many, many}, .need = 4'000'000, .c_ms = 0});
  EXPECT_EQ(shares.uncovered_ms, 3'000'000);
  EXPECT_EQ(shares.k, (std::vector<int64_t>{3'000'000, 1'000'000}));
}

TEST(SlotsTest, EqualsTryingEveryShare) {
  int feasible = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomPlans random(seed);
    OffloadSlotProblem problem;
    const int devices = random.Int(1, 4);
    for (int i = 0; i < devices; ++i) {
      problem.load_ms.push_back(random.Number(0, 50));
      problem.comp_ms.push_back(random.Number(0, 10));
      problem.kmax.push_back(random.Int(0, 5));
    }
    problem.need = random.Int(0, 12);
    problem.c_ms = random.Number(0, 150);
    const std::optional<double> best = BestOfAllShares(problem);
    const OffloadSlotShares shares = ShareOffloadSlots(problem);
    ASSERT_EQ(shares.feasible, best.has_value());
    if (!best) continue;
    ++feasible;
    ASSERT_EQ(shares.uncovered_ms, *best);  // to the bit: it is one of the values of the same expression
    int64_t sum = 0;
    for (int i = 0; i < devices; ++i) {
      ASSERT_LE(shares.k[i], problem.kmax[i]);
      sum += shares.k[i];
    }
    ASSERT_EQ(sum, problem.need);
    ASSERT_EQ(Uncovered(problem, shares.k), *best);
  }
  EXPECT_GT(feasible, 1000);
}

// Figure 9: the plan that streams the MLP block takes the attention block back. free 100, 1 MB a
// token, A = 50, M = 120, two visits: (0,0) 100; least load with 101: (1,0) 150; with 151: (0,1)
// 220; with 221: (1,1) 270; with 271: (2,1) 320 and then (0,2) 340 >= 330.
TEST(OnlineMemoryTest, AThresholdReplacesTheOneBefore) {
  const OnlineProblem problem = {
      .free_mb = 100, .kv_tok_mb = 1, .mha_mb = 50, .mlp_mb = 120, .visits = 2, .cap_mha = 2, .cap_mlp = 2, .n_max = 330};
  const OffloadTable table = MakeOffloadTable(problem);
  const std::vector<OffloadThreshold> expected = {{0, 0, 100, 0},   {1, 0, 150, 50},  {2, 0, 200, 100}, {0, 1, 220, 120},
                                                  {1, 1, 270, 170}, {2, 1, 320, 220}, {0, 2, 340, 240}};
  EXPECT_EQ(table.steps, expected);
  EXPECT_FALSE(table.exhausted);
}

TEST(OnlineMemoryTest, OneVisitFreesNothing) {
  const OffloadTable table =
      MakeOffloadTable({.free_mb = 10, .kv_tok_mb = 1, .mha_mb = 50, .mlp_mb = 120, .visits = 1, .cap_mha = 2, .cap_mlp = 2, .n_max = 11});
  EXPECT_EQ(table.steps.size(), 1u);
  EXPECT_TRUE(table.exhausted);
}

// 0.3 / 0.1 is 2.9999999999999996 in doubles: the 1e-9 makes it three tokens.
TEST(OnlineMemoryTest, CapacityForgivesRounding) {
  EXPECT_EQ(OnlineCapacity({.free_mb = 0.3, .kv_tok_mb = 0.1}, 0, 0), 3);
}

// Section 5 as it reads: while below n_max, the least of (load, count, alpha) among those that add
// a token.
OffloadTable TableByDefinition(const OnlineProblem& p) {
  OffloadTable table{.steps = {{0, 0, OnlineCapacity(p, 0, 0), 0}}};
  while (table.steps.back().capacity_tokens < p.n_max) {
    std::optional<std::tuple<double, int64_t, int64_t>> best;
    for (int64_t alpha = 0; alpha <= p.cap_mha; ++alpha) {
      for (int64_t beta = 0; beta <= p.cap_mlp; ++beta) {
        if (OnlineCapacity(p, alpha, beta) < table.steps.back().capacity_tokens + 1) continue;
        const std::tuple candidate(alpha * p.mha_mb + beta * p.mlp_mb, alpha + beta, alpha);
        if (!best || candidate < *best) best = candidate;
      }
    }
    if (!best) {
      table.exhausted = true;
      break;
    }
    const auto [load, count, alpha] = *best;
    table.steps.push_back({alpha, count - alpha, OnlineCapacity(p, alpha, count - alpha), load});
  }
  return table;
}

TEST(OnlineMemoryTest, EqualsTheDefinition) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomPlans random(seed);
    const OnlineProblem problem = {.free_mb = random.Number(0, 100),
                                   .kv_tok_mb = random.Number(0.25, 4),
                                   .mha_mb = random.Int(0, 20) * 2.5,
                                   .mlp_mb = random.Int(0, 20) * 2.5,
                                   .visits = random.Int(1, 4),
                                   .cap_mha = random.Int(0, 6),
                                   .cap_mlp = random.Int(0, 6),
                                   .n_max = random.Int(0, 1000)};
    const OffloadTable table = MakeOffloadTable(problem), expected = TableByDefinition(problem);
    ASSERT_EQ(table.steps, expected.steps);
    ASSERT_EQ(table.exhausted, expected.exhausted);
  }
}

// Idle 80 ms at 0.0125 MB/ms carry 1 MB: 4 tokens of 0.25; the peer has room for 20 / 3 = 6; there
// are 100.
TEST(KvTransferTest, IsTheLeastOfThree) {
  KvTransferProblem problem = {.period_ms = 100,
                               .activation_busy_ms = 20,
                               .bw_mb_per_ms = 0.0125,
                               .kv_visit_mb = 0.25,
                               .target_free_mb = 20,
                               .kv_tok_mb = 3,
                               .n = 100};
  EXPECT_EQ(TokensToLend(problem), 4);
  problem.target_free_mb = 9;
  EXPECT_EQ(TokensToLend(problem), 3);
  problem.n = 2;
  EXPECT_EQ(TokensToLend(problem), 2);
  problem.activation_busy_ms = 101;
  EXPECT_EQ(TokensToLend(problem), 0);
  problem.activation_busy_ms = 20;
  problem.target_free_mb = -5;
  EXPECT_EQ(TokensToLend(problem), 0);
}

// The most tokens that can be fetched in the idle time and stored, counted one by one.
TEST(KvTransferTest, EqualsCounting) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomPlans random(seed);
    const KvTransferProblem p = {.period_ms = random.Number(0, 200),
                                 .activation_busy_ms = random.Number(0, 100),
                                 .bw_mb_per_ms = random.Number(0, 0.5),
                                 .kv_visit_mb = random.Number(0.125, 2),
                                 .target_free_mb = random.Number(0, 60),
                                 .kv_tok_mb = random.Number(0.125, 4),
                                 .n = random.Int(0, 100)};
    int64_t tokens = 0;
    const double idle_ms = p.period_ms > p.activation_busy_ms ? p.period_ms - p.activation_busy_ms : 0;
    const auto fits = [&](int64_t n) {
      const double slack = 1e-9;  // of a token
      return (n - slack) * p.kv_visit_mb <= idle_ms * p.bw_mb_per_ms && (n - slack) * p.kv_tok_mb <= p.target_free_mb;
    };
    while (tokens < p.n && fits(tokens + 1)) ++tokens;
    ASSERT_EQ(TokensToLend(p), tokens);
  }
}

}  // namespace
}  // namespace lime
