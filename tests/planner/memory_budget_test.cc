#include "planner/problem/memory_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

TEST(MemoryBudgetTest, TheReserveIsThreePercentWithinBounds) {
  EXPECT_EQ(MemoryReserve(100 * kGiB), 100 * kGiB / 100 * 3);
  EXPECT_EQ(MemoryReserve(8 * kGiB), 256 * kMiB) << "3 % are 246 MiB";
  EXPECT_EQ(MemoryReserve(1 * kGiB), 128 * kMiB) << "a small board keeps seven eighths";
  EXPECT_EQ(MemoryReserve(0), 0);
}

TEST(MemoryBudgetTest, ABudgetUpToAHardLimitIsNoPressure) {
  EXPECT_EQ(PressureReserve(2 * kGiB, 2 * kGiB), 8 * kMiB) << "the limit is the budget";
  EXPECT_EQ(PressureReserve(2 * kGiB, 3 * kGiB), 8 * kMiB);
  EXPECT_EQ(PressureReserve(2 * kGiB, 2 * kGiB - 100 * kMiB), 50 * kMiB);
  EXPECT_EQ(PressureReserve(24 * kGiB, 2 * kGiB), MemoryReserve(24 * kGiB));
}

TEST(MemoryBudgetTest, PrioritiesHaveNames) {
  for (const MemoryPriority priority : {MemoryPriority::kMaxTps, MemoryPriority::kBalanced, MemoryPriority::kMaxContext}) {
    EXPECT_EQ(*ParseMemoryPriority(kMemoryPriorityNames.Of(priority)), priority);
  }
  EXPECT_THAT(std::string(ParseMemoryPriority("fast").status().message()),
              HasSubstr("\"fast\" is not a memory priority; give max-tps, balanced or max-context"));
}

// 8 GiB, 6.5 of them available, 100 MiB taken already; a model with 128 KiB of KV for a token.
BudgetRequest BoardRequest(MemoryPriority priority) {
  return {.available = 6656 * kMiB,
          .machine = 8 * kGiB,
          .process = 100 * kMiB,
          .fixed = 200 * kMiB,
          .planned_kv = 16 * kMiB,
          .kv_bytes = [](int64_t tokens) { return tokens * 128 * kKiB; },
          .context = 8192,
          .priority = priority};
}

TEST(MemoryBudgetTest, ModesKeepTheKvOf512Or1024TokensOrOfTheFullContext) {
  const DerivedBudget fast = DeriveBudget(BoardRequest(MemoryPriority::kMaxTps)),
                      balanced = DeriveBudget(BoardRequest(MemoryPriority::kBalanced)),
                      deep = DeriveBudget(BoardRequest(MemoryPriority::kMaxContext));
  EXPECT_EQ(fast.kv, 64 * kMiB);
  EXPECT_EQ(balanced.kv, 128 * kMiB);
  EXPECT_EQ(deep.kv, 1024 * kMiB);
  // Eq. 2: 0.9 (6656 - 256 - 200 - KV)
  EXPECT_NEAR(fast.resident, 0.9 * 6136 * kMiB, 10);
  EXPECT_NEAR(balanced.resident, 0.9 * 6072 * kMiB, 10);
  EXPECT_NEAR(deep.resident, 0.9 * 5176 * kMiB, 10);
  EXPECT_EQ(fast.budget, (100 + 200 + 16) * kMiB + fast.resident);
  EXPECT_EQ(balanced.text,
            absl::StrCat(FormatBytes(balanced.budget),
                         ": 100.00 MiB are in use by this process already; of 6.50 GiB available, 256.00 MiB stay free for other programs, "
                         "128.00 MiB for the KV of 1024 tokens (balanced), "
                         "and 10 % of the rest"));
}

TEST(MemoryBudgetTest, AShortContextNeedsNoMoreThanItself) {
  BudgetRequest request = BoardRequest(MemoryPriority::kBalanced);
  request.context = 100;
  EXPECT_EQ(DeriveBudget(request).kv, 16 * kMiB) << "what is planned is more";
  request.planned_kv = 0;
  EXPECT_EQ(DeriveBudget(request).kv, 100 * 128 * kKiB);
}

TEST(MemoryBudgetTest, WithLittleMemoryTheReserveMakesWayForTheNeedsOfARun) {
  BudgetRequest request = BoardRequest(MemoryPriority::kMaxContext);
  request.available = 300 * kMiB;
  EXPECT_EQ(DeriveBudget(request).resident, 0);
  EXPECT_EQ(DeriveBudget(request).budget, (100 + 200 + 16) * kMiB);
  request.available = 150 * kMiB;
  EXPECT_EQ(DeriveBudget(request).budget, (100 + 150) * kMiB) << "more is not there, and the error of the plan says what is missing";
}

TEST(MemoryBudgetTest, NeverMoreThanIsAvailableAndMoreKvNeverMeansMoreBlocks) {
  std::mt19937_64 random(1);
  const auto pick = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random); };
  for (int i = 0; i < 10'000; ++i) {
    BudgetRequest request{.machine = pick(64 * kGiB), .process = pick(kGiB), .fixed = pick(2 * kGiB), .planned_kv = pick(2 * kGiB)};
    request.available = pick(request.machine);
    request.kv_bytes = [bytes = pick(kMiB)](int64_t tokens) { return tokens * bytes; };
    request.context = pick(131072);
    Bytes resident = INT64_MAX;
    for (const MemoryPriority priority : {MemoryPriority::kMaxTps, MemoryPriority::kBalanced, MemoryPriority::kMaxContext}) {
      request.priority = priority;
      const DerivedBudget derived = DeriveBudget(request);
      EXPECT_LE(derived.budget - request.process, request.available);
      EXPECT_LE(derived.resident, resident);
      EXPECT_GE(derived.kv, request.planned_kv);
      if (derived.resident > 0) {
        EXPECT_GE(request.available - (derived.budget - request.process), derived.reserve) << "the reserve is left";
      }
      resident = derived.resident;
    }
  }
}

}  // namespace
}  // namespace lime
