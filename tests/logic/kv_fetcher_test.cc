// What of lent KV comes back, in which order, into how little room; and in how many layers, by how
// fast it comes.
#include "daemon/logic/hosting/kv_fetcher.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/logic/hosting/kv_fetch_size.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/kv_spill.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Four layers; two sequences, of which the first has pieces 0 and 1, the second piece 3.
class KvFetcherTest : public ::testing::Test {
 protected:
  void Make(int64_t slots) {
    fetcher_.emplace(KvFetcher::Shape{.layers = 4, .sequences = 2, .piece_bytes = 8, .places = slots});
    fetcher_->SetSequence(0, 5, 0, 2);
    fetcher_->SetSequence(1, 0, 3, 4);
    fetcher_->SetLayers(4);
  }

  // "layer.sequence.piece" of what is begun now, and comes at once.
  std::vector<std::string> Fetched() {
    std::vector<std::string> names;
    while (const auto fetch = fetcher_->Begin()) {
      names.push_back(absl::StrCat(fetch->layer, ".", fetch->sequence, ".", fetch->piece));
      EXPECT_TRUE(fetcher_->On({.number = fetch->number, .offset = 0, .bytes = bytes_}).ok());
    }
    return names;
  }

  std::optional<KvFetcher> fetcher_;
  const std::vector<std::byte> bytes_ = std::vector<std::byte>(8);
};

TEST_F(KvFetcherTest, LayersComeInTheOrderOfTheirUseAsFarAsThereIsRoom) {
  Make(7);
  fetcher_->SetNext(2);
  EXPECT_THAT(Fetched(), ElementsAre("2.0.0", "2.0.1", "2.1.3", "3.0.0", "3.0.1", "3.1.3", "0.0.0"));
  fetcher_->SetNext(3);
  EXPECT_THAT(Fetched(), ElementsAre("0.0.1", "0.1.3", "1.0.0")) << "what was used is wanted the latest";
  EXPECT_EQ(fetcher_->Missing(3, 0, 5, 0, 2), 0);
  EXPECT_EQ(fetcher_->Missing(2, 0, 5, 0, 2), 16);
  EXPECT_TRUE(fetcher_->Find(3, 1, 0, 3).has_value());
  EXPECT_FALSE(fetcher_->Find(3, 1, 1, 3).has_value()) << "another life";
}

TEST_F(KvFetcherTest, WhatAllHasRoomForComesOnce) {
  Make(12);
  EXPECT_EQ(Fetched().size(), 12u);
  for (const int32_t layer : {1, 2, 3, 0}) {
    fetcher_->SetNext(layer);
    EXPECT_THAT(Fetched(), IsEmpty());
  }
}

TEST_F(KvFetcherTest, SomeOfTheLayersAreSpreadEvenly) {
  Make(12);
  fetcher_->SetLayers(2);
  EXPECT_FALSE(fetcher_->Fetches(0) || fetcher_->Fetches(2));
  EXPECT_TRUE(fetcher_->Fetches(1) && fetcher_->Fetches(3));
  EXPECT_THAT(Fetched(), ElementsAre("1.0.0", "1.0.1", "1.1.3", "3.0.0", "3.0.1", "3.1.3"));
}

TEST_F(KvFetcherTest, WhatIsAwaitedComesFirstWhateverIsThere) {
  Make(5);
  EXPECT_THAT(Fetched(), ElementsAre("0.0.0", "0.0.1", "0.1.3", "1.0.0", "1.0.1"));
  fetcher_->SetLayers(2);
  fetcher_->SetAwaited(2);
  EXPECT_THAT(Fetched(), ElementsAre("2.0.0", "2.0.1", "2.1.3"));
  EXPECT_EQ(fetcher_->Missing(2, 0, 5, 0, 2) + fetcher_->Missing(2, 1, 0, 3, 4), 0);
}

TEST_F(KvFetcherTest, WhatIsAttendedToStays) {
  Make(3);
  EXPECT_EQ(Fetched().size(), 3u);
  fetcher_->SetInUse(0);
  fetcher_->SetNext(1);
  EXPECT_THAT(Fetched(), IsEmpty());
  fetcher_->SetInUse(std::nullopt);
  EXPECT_THAT(Fetched(), ElementsAre("1.0.0", "1.0.1", "1.1.3"));
}

TEST_F(KvFetcherTest, OfASequenceThatEndsNothingStays) {
  Make(3);
  fetcher_->SetLayers(1);
  EXPECT_THAT(Fetched(), ElementsAre("3.0.0", "3.0.1", "3.1.3"));
  fetcher_->SetSequence(0, 6, 0, 1);
  EXPECT_THAT(Fetched(), ElementsAre("3.0.0"));
  EXPECT_FALSE(fetcher_->Find(3, 0, 5, 0).has_value());
  EXPECT_TRUE(fetcher_->Find(3, 0, 6, 0).has_value());
}

TEST_F(KvFetcherTest, TwoAreOnTheirWayAndComeInOrderAndWhole) {
  Make(12);
  const auto first = fetcher_->Begin(), second = fetcher_->Begin();
  ASSERT_TRUE(first && second);
  EXPECT_FALSE(fetcher_->Begin().has_value());
  const auto refusal = [&](int64_t number, Bytes offset, size_t count) {
    const std::vector<std::byte> bytes(count);
    return std::string(fetcher_->On({.number = number, .offset = offset, .bytes = bytes}).status().message());
  };
  EXPECT_THAT(refusal(1, 0, 8), HasSubstr("bytes of fetch 1 arrived, expected fetch 0"));
  EXPECT_THAT(refusal(0, 4, 4), HasSubstr("4 bytes at offset 4 do not follow the 0 bytes of 8"));
  EXPECT_THAT(refusal(0, 0, 9), HasSubstr("9 bytes at offset 0 do not follow the 0 bytes of 8"));
  EXPECT_THAT(refusal(0, 0, 0), HasSubstr("0 bytes at offset 0"));
  EXPECT_EQ(refusal(0, 0, 5), "");
  EXPECT_EQ(fetcher_->Missing(0, 0, 5, 0, 1), 3);
  EXPECT_FALSE(fetcher_->Find(0, 0, 5, 0).has_value());
  EXPECT_EQ(refusal(0, 5, 3), "");
  EXPECT_TRUE(fetcher_->Find(0, 0, 5, 0).has_value());
  EXPECT_EQ(refusal(1, 0, 8), "");
  EXPECT_THAT(refusal(1, 0, 8), HasSubstr("no fetch is under way"));
}

// ---- How many layers

// Steps of so many milliseconds, with pieces of 1 MB that take so many each.
class Steps {
 public:
  explicit Steps(double answer_ms = kLongAnswerMs) : answer_ms_(answer_ms) {}
  void SetAnswerMs(double ms) { answer_ms_ = ms; }

  int64_t Run(int steps, double step_ms, double piece_ms, bool late = false) {
    int64_t layers = 0;
    for (int i = 0; i < steps; ++i) {
      size_.Begun(now_ms_);
      for (int piece = 1; piece <= 4; ++piece) size_.Arrived(now_ms_ + piece * piece_ms);
      if (late) size_.Late();
      layers = size_.StepEnded(now_ms_ += step_ms, {.pieces = kPieces, .stay = 2, .answer_ms = answer_ms_});
    }
    return layers;
  }

  static constexpr int64_t kPieces = 2;  // of each of 40 layers

 private:
  double answer_ms_;
  KvFetchSize size_{40, 1'000'000};
  double now_ms_ = 0;
};

TEST(KvFetchSizeTest, AsManyAsTheLinkCarriesBetweenTwoUses) {
  // 100 ms are time for nine pieces of 10 ms beside a reserve: 4.5 layers of two.
  EXPECT_EQ(Steps().Run(100, 100, 10), 4);
  EXPECT_EQ(Steps().Run(100, 1000, 10), 40) << "there are no more";
  EXPECT_EQ(Steps().Run(200, 10, 1000), 2) << "these stay";
}

TEST(KvFetchSizeTest, FewerAtOnceAndMoreAfterAWhile) {
  Steps steps;
  EXPECT_EQ(steps.Run(200, 400, 10), 18);
  EXPECT_EQ(steps.Run(1, 400, 40), 4) << "a fourth of the rate";
  EXPECT_EQ(steps.Run(KvFetchSize::kSteadySteps - 1, 400, 10), 4);
  EXPECT_GT(steps.Run(KvFetchSize::kSteadySteps, 400, 10), 4);
  EXPECT_EQ(steps.Run(100, 400, 10), 18);
}

TEST(KvFetchSizeTest, FewerWhereALayerIsLate) {
  Steps steps;
  EXPECT_EQ(steps.Run(200, 400, 10), 18);
  EXPECT_EQ(steps.Run(3, 400, 10, /*late=*/true), 15);
  EXPECT_EQ(steps.Run(100, 400, 10, /*late=*/true), 2);
}

TEST(KvFetchSizeTest, AllOrThoseThatStayWhereAnswersAreShort) {
  Steps steps(/*answer_ms=*/3);
  EXPECT_EQ(steps.Run(200, 400, 10), 2);
  EXPECT_EQ(steps.Run(200, 1000, 10), 40);
  EXPECT_EQ(steps.Run(1, 1000, 10, /*late=*/true), 2);
}

TEST(KvFetchSizeTest, AnswersThatVaryAroundTheBoundChangeNothing) {
  Steps steps;
  EXPECT_EQ(steps.Run(200, 400, 10), 18);
  for (int i = 0; i < 50; ++i) {
    steps.SetAnswerMs(kLongAnswerMs * (i % 2 == 0 ? 0.8 : 1.1));
    EXPECT_EQ(steps.Run(1, 400, 10), 18);
  }
  steps.SetAnswerMs(kLongAnswerMs * 0.7);
  EXPECT_EQ(steps.Run(1, 400, 10), 2);
  steps.SetAnswerMs(kLongAnswerMs * 0.9);
  EXPECT_EQ(steps.Run(100, 400, 10), 2) << "are not long before they are";
}

TEST(KvFetchSizeTest, NoneWhereTheHostHasNone) {
  KvFetchSize size(40, 1'000'000);
  EXPECT_EQ(size.StepEnded(0, {.stay = 3}), 0);
  EXPECT_EQ(size.StepEnded(1, {.pieces = 3, .stay = 3}), 3);
  EXPECT_EQ(size.StepEnded(1, {.pieces = 3}), 0);
}

}  // namespace
}  // namespace lime
