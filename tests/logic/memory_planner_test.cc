#include "coordinator/logic/memory_planner.h"

#include <deque>
#include <map>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/logic/order_writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cases.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

MemoryPlanner Planner() {
  return MemoryPlanner({.layer_pages = {4, 8, 12}, .sequences = 2, .lead = 8, .calm = 10});
}

TEST(MemoryPlannerTest, ALevelIsAskedForBeforeItsPagesAreNeeded) {
  MemoryPlanner planner = Planner();
  EXPECT_EQ(planner.OnEvent(MemoryPlanner::Admit{.slot = 0, .prompt = 40, .end = 200}), std::nullopt);
  EXPECT_EQ(planner.OnEvent(MemoryPlanner::Step{{48, -1}}), std::nullopt) << "48 + 16 positions are 4 pages";
  EXPECT_EQ(planner.OnEvent(MemoryPlanner::Step{{49, -1}}), 1);
  EXPECT_EQ(planner.OnEvent(MemoryPlanner::Step{{50, -1}}), std::nullopt);
  EXPECT_EQ(planner.level(), 1);
}

TEST(MemoryPlannerTest, APromptWaitsForTheStepsThatALevelNeeds) {
  MemoryPlanner planner = Planner();
  const MemoryPlanner::Claim claim = {.prompt = 100, .end = 120};
  EXPECT_FALSE(planner.HasPages(claim));
  EXPECT_EQ(planner.Want({&claim, 1}), 1);
  EXPECT_EQ(planner.Want({&claim, 1}), std::nullopt) << "once";
  for (int step = 0; step < 8; ++step) {
    EXPECT_FALSE(planner.HasPages(claim)) << step;
    EXPECT_EQ(planner.OnEvent(MemoryPlanner::Step{{-1, -1}}), std::nullopt);
  }
  EXPECT_TRUE(planner.HasPages(claim));
}

TEST(MemoryPlannerTest, AllThatWaitAndCouldEndTogetherHaveTheirPagesAskedForAtOnce) {
  const MemoryPlanner::Claim claims[] = {{.prompt = 50, .end = 60}, {.prompt = 50, .end = 60}, {.prompt = 50, .end = 60}};
  EXPECT_EQ(Planner().Want({claims, 1}), std::nullopt) << "4 pages are there";
  EXPECT_EQ(Planner().Want({claims, 2}), 1);
  EXPECT_EQ(Planner().Want(claims), 2);
  const MemoryPlanner::Claim longer[] = {{.prompt = 50, .end = 60}, {.prompt = 50, .end = 160}};
  EXPECT_EQ(Planner().Want(longer), std::nullopt) << "4 and 10 pages are too many: the second waits for the end of the first";
}

TEST(MemoryPlannerTest, ThoseBehindTheFirstDoNotPutItsPagesOff) {
  MemoryPlanner planner = Planner();
  const MemoryPlanner::Claim claims[] = {{.prompt = 90, .end = 100}, {.prompt = 50, .end = 60}};
  EXPECT_EQ(planner.Want({claims, 1}), 1);
  for (int step = 0; step < 8; ++step) {
    EXPECT_EQ(planner.Want(claims), std::nullopt) << step;
    EXPECT_EQ(planner.OnEvent(MemoryPlanner::Step{{-1, -1}}), std::nullopt);
  }
  EXPECT_TRUE(planner.HasPages(claims[0]));
  EXPECT_EQ(planner.OnEvent(MemoryPlanner::Admit{.slot = 0, .prompt = 90, .end = 100}), std::nullopt);
  EXPECT_FALSE(planner.HasPages(claims[1]));
  EXPECT_EQ(planner.Want({claims + 1, 1}), 2);
}

TEST(MemoryPlannerTest, IdleSlotsHaveWhatRunningRequestsLeaveAndRaiseNoLevel) {
  MemoryPlanner planner = Planner();
  EXPECT_EQ(planner.OnEvent(MemoryPlanner::Admit{.slot = 0, .prompt = 40, .end = 50}), std::nullopt);
  EXPECT_EQ(planner.OnEvent(MemoryPlanner::Retire{.slot = 0, .kept = 48}), std::nullopt);
  EXPECT_EQ(planner.Excess(), 0);
  const MemoryPlanner::Claim claim = {.prompt = 20, .end = 200};
  EXPECT_TRUE(planner.Fits(190)) << "an idle slot takes no pages from a request";
  EXPECT_TRUE(planner.HasPages(claim));
  EXPECT_EQ(planner.OnEvent(MemoryPlanner::Admit{.slot = 1, .prompt = 20, .end = 200}), std::nullopt);
  EXPECT_EQ(planner.Excess(), 2) << "3 pages of the request, 3 of the idle slot, and 4 are there";
  EXPECT_EQ(planner.level(), 0);
  EXPECT_EQ(planner.OnEvent(MemoryPlanner::Retire{.slot = 0}), std::nullopt);
  EXPECT_EQ(planner.Excess(), 0);
}

TEST(MemoryPlannerTest, ALevelEndsAfterACalmAndNotAtItsEdge) {
  MemoryPlanner planner = Planner();
  EXPECT_EQ(planner.OnEvent(MemoryPlanner::Admit{.slot = 0, .prompt = 150, .end = 192}), 2);
  EXPECT_EQ(planner.OnEvent(MemoryPlanner::Admit{.slot = 1, .prompt = 40, .end = 192}), std::nullopt);
  EXPECT_EQ(planner.OnEvent(MemoryPlanner::Retire{0}), std::nullopt);
  int steps = 0;
  while (planner.level() == 2 && steps < 100) (void)planner.OnEvent(MemoryPlanner::Step{{-1, 40}}), ++steps;
  EXPECT_GE(steps, 10);
  EXPECT_LT(steps, 20);
  for (int step = 0; step < 50; ++step)
    EXPECT_EQ(planner.OnEvent(MemoryPlanner::Step{{-1, 48}}), std::nullopt) << "4 pages are at the edge";
  EXPECT_EQ(planner.level(), 1);
}

// Has pages as the slowest device does: those of a level kResidencyLead steps after its order, or
// after the change that it is at; of several orders that wait the last counts; what it is to give
// up is gone at once.
class PagedDevice {
 public:
  explicit PagedDevice(int64_t pages) : there_(pages) {}

  void OnOrder(const Order& order) {
    Advance();
    if (const auto* residency = std::get_if<ResidencyOrder>(&order.what)) {
      waiting_ = residency->to.layer_pages;
      ++changes;
      Advance();
    } else if (const auto* retire = std::get_if<RetireOrder>(&order.what)) {
      positions_.erase(retire->sequence);
    } else if (const auto* step = std::get_if<StepOrder>(&order.what)) {
      ++steps_;
      std::vector<SampledToken>& sampled = samples.emplace_back();
      for (const MicroBatch& batch : step->microbatches) {
        for (const BatchRow& row : batch.rows) {
          positions_[row.sequence] = row.position + 1;
          if (row.wants_logits) sampled.push_back({row.sequence, row.position + 1, 0});
        }
      }
      int64_t pages = 0;
      for (const auto& [slot, positions] : positions_) pages += (positions + 15) / 16;
      ASSERT_LE(pages, there_) << "step " << steps_ - 1;
    }
  }

  std::deque<std::vector<SampledToken>> samples;
  int changes = 0;

 private:
  // Ends the change under way when its steps have passed, and begins the one that waits.
  void Advance() {
    if (under_way_ && steps_ >= ends_at_) there_ = *std::exchange(under_way_, std::nullopt);
    if (under_way_ || !waiting_) return;
    under_way_ = std::exchange(waiting_, std::nullopt);
    there_ = std::min(there_, *under_way_);
    ends_at_ = steps_ + kResidencyLead;
  }

  int64_t there_, steps_ = 0, ends_at_ = 0;
  std::optional<int64_t> under_way_, waiting_;
  std::map<int32_t, int64_t> positions_;
};

TEST(MemoryPlannerTest, NoStepEverLacksPagesAndAllRequestsEnd) {
  int changes = 0;
  for (uint32_t seed = 1; seed <= static_cast<uint32_t>(Cases(2000, 8000)); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    OrderWriter::Options options;
    options.sequences = draw(1, 4), options.context = 256, options.batch = options.sequences;
    options.max_rows = options.batch + draw(0, 40), options.chunk = options.max_rows, options.chunks = draw(1, 3);
    options.look_ahead = draw(1, 4), options.prompts_ahead = draw(1, 8);
    options.microbatches = options.chunks;
    int64_t pages = draw(0, 8);
    for (int level = 0; level < 5; ++level) options.levels.push_back({.layer_pages = pages += draw(1, 6)});
    OrderWriter writer(options);
    PagedDevice device(options.levels.front().layer_pages);
    int requests = 0;
    for (int turn = 0; turn < 100000 && (requests < 8 || !writer.idle()); ++turn) {
      if (requests < 8 && draw(0, 9) == 0) {
        const int prompt = draw(1, 120);
        const auto id =
            writer.Add({.prompt = std::vector<int32_t>(static_cast<size_t>(prompt), 5), .max_new_tokens = draw(1, 130), .end_tokens = {1}});
        if (!id.ok()) {
          ASSERT_THAT(std::string(id.status().message()), HasSubstr("pages of 16"));
        }
        ++requests;
      }
      for (const Order& order : writer.NextOrders()) ASSERT_NO_FATAL_FAILURE(device.OnOrder(order));
      if (device.samples.empty()) continue;
      for (SampledToken& token : device.samples.front()) token.token = draw(0, 99);  // 1 ends its request
      const int64_t step = writer.steps_ordered() - writer.steps_under_way();
      ASSERT_TRUE(writer.OnTokens(step, device.samples.front()).ok());
      ASSERT_TRUE(writer.OnStepEnded(step).ok());
      device.samples.pop_front();
    }
    EXPECT_TRUE(writer.idle()) << "no request may wait for ever";
    changes += device.changes;
  }
  if (ManyCases()) {
    EXPECT_GT(changes, 4000);
  }
}

}  // namespace
}  // namespace lime
