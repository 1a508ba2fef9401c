// Which units a device keeps, asks for and reads ahead: case by case, and at random against a model
// of the owner that checks every invariant.
#include "daemon/logic/demand/demand_cache.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/demand/replay.h"
#include "planner/demand/route_model.h"
#include "tests/cases.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DemandCacheTest : public ::testing::Test {
 protected:
  void Make(int32_t places, int32_t reads_at_once = 1, int32_t layers = 2) {
    cache_ = *DemandCache::Create({.units = 10,
                                   .places = std::vector<int32_t>(static_cast<size_t>(layers), places),
                                   .reads_at_once = reads_at_once,
                                   .ahead_places = 2});
  }
  void Begin(int32_t layer, std::vector<int32_t> chosen) { ASSERT_TRUE(cache_->Begin(layer, chosen, 1).ok()); }

  // Reads and computes what can be, one after another. Returns the units in the order of computing.
  std::vector<int32_t> Finish(int32_t layer) {
    std::vector<int32_t> computed;
    while (cache_->IsUnderWay(layer)) {
      if (const auto ready = cache_->NextReady(layer)) {
        computed.push_back(ready->unit);
        cache_->OnComputed(layer, ready->unit);
      } else if (const auto read = cache_->NextRead()) {
        EXPECT_TRUE(cache_->OnRead(read->number, absl::OkStatus()).ok());
      } else {
        ADD_FAILURE() << "nothing can go on";
        break;
      }
    }
    return computed;
  }

  std::unique_ptr<DemandCache> cache_;
};

TEST_F(DemandCacheTest, HitsAreReadyAtOnceAndMissesAreReadInOrder) {
  Make(4);
  Begin(0, {2, 5});
  EXPECT_THAT(Finish(0), ElementsAre(2, 5));
  Begin(0, {1, 5, 7});
  EXPECT_EQ(cache_->NextReady(0)->unit, 5);
  EXPECT_FALSE(cache_->NextReady(0).has_value());
  const auto read = cache_->NextRead();
  EXPECT_EQ(read->what.unit, 1);
  EXPECT_FALSE(cache_->NextRead().has_value()) << "one at a time";
  ASSERT_TRUE(cache_->OnRead(read->number, absl::OkStatus()).ok());
  EXPECT_FALSE(cache_->OnComputed(0, 5));
  EXPECT_THAT(Finish(0), ElementsAre(1, 7));
  EXPECT_EQ(cache_->counts(0), (DemandCache::Counts{.visits = 2, .rows = 2, .hits = 1, .misses = 4}));
}

TEST_F(DemandCacheTest, ASweepReadsComputesAndReplacesInAscendingOrder) {
  Make(3);
  Begin(0, {4});
  Finish(0);
  Begin(0, {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_THAT(Finish(0), ElementsAre(4, 0, 1, 2, 3, 5, 6, 7));
  EXPECT_TRUE(cache_->Find(0, 4).has_value()) << "a prompt does not empty the cache";
  EXPECT_TRUE(cache_->Find(0, 6).has_value() && cache_->Find(0, 7).has_value());
}

TEST_F(DemandCacheTest, AReadOfASweepWaitsUntilItsPlaceIsComputed) {
  Make(2, 4);
  Begin(0, {0, 1, 2});
  const auto first = cache_->NextRead(), second = cache_->NextRead();
  EXPECT_FALSE(cache_->NextRead().has_value());
  ASSERT_TRUE(cache_->OnRead(second->number, absl::OkStatus()).ok());
  ASSERT_TRUE(cache_->OnRead(first->number, absl::OkStatus()).ok());
  EXPECT_EQ(cache_->NextReady(0)->unit, 1) << "as they came";
  cache_->OnComputed(0, 1);
  EXPECT_FALSE(cache_->NextRead().has_value()) << "unit 2 goes where unit 0 is";
  EXPECT_THAT(Finish(0), ElementsAre(0, 2));
}

TEST_F(DemandCacheTest, AFailedReadIsRepeatedOnceThenTheStepFails) {
  Make(4);
  Begin(0, {3});
  const auto first = cache_->NextRead();
  EXPECT_TRUE(cache_->OnRead(first->number, absl::DataLossError("checksum")).ok());
  const auto second = cache_->NextRead();
  EXPECT_EQ(second->what, first->what);
  const absl::Status lost = cache_->OnRead(second->number, absl::DataLossError("checksum"));
  EXPECT_EQ(lost.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(lost.message(), "unit 3 could not be read, twice: checksum");
  cache_->Cancel(0);
  EXPECT_FALSE(cache_->IsUnderWay(0));
  EXPECT_EQ(cache_->counts(0).read_again, 1);
  Begin(0, {3});
  EXPECT_THAT(Finish(0), ElementsAre(3)) << "the next step may have better luck";
}

TEST_F(DemandCacheTest, UnitsAreReadAheadOnlyWhileNoVisitReads) {
  Make(4);
  Begin(0, {0});
  cache_->Suggest(1, std::vector<int32_t>{6, 7, 8});
  const auto read = cache_->NextRead();
  EXPECT_FALSE(read->ahead);
  EXPECT_FALSE(cache_->NextRead().has_value()) << "the disk is busy";
  ASSERT_TRUE(cache_->OnRead(read->number, absl::OkStatus()).ok());
  for (const int32_t unit : {6, 7}) {
    const auto ahead = cache_->NextRead();
    EXPECT_TRUE(ahead->ahead);
    EXPECT_EQ(ahead->what.unit, unit);
    ASSERT_TRUE(cache_->OnRead(ahead->number, absl::OkStatus()).ok());
  }
  EXPECT_FALSE(cache_->NextRead().has_value()) << "two at most";
  Finish(0);
  Begin(1, {6, 9});
  EXPECT_EQ(cache_->NextReady(1)->unit, 6);
  cache_->OnComputed(1, 6);
  Finish(1);
  EXPECT_EQ(cache_->counts(1),
            (DemandCache::Counts{.visits = 1, .rows = 1, .hits = 1, .misses = 1, .suggested = 2, .ahead_read = 2, .ahead_used = 1}));
}

TEST_F(DemandCacheTest, SuggestedUnitsThatAreThereStayAndLeaveRoomForTheOthers) {
  Make(4);
  Begin(0, {0, 1, 2, 3});
  Finish(0);
  cache_->Suggest(0, std::vector<int32_t>{0, 1, 6, 7, 8});
  for (const int32_t unit : {6, 7}) {
    const auto ahead = cache_->NextRead();
    EXPECT_EQ(ahead->what.unit, unit);
    ASSERT_TRUE(cache_->OnRead(ahead->number, absl::OkStatus()).ok());
  }
  EXPECT_FALSE(cache_->NextRead().has_value()) << "two at most";
  for (const int32_t unit : {0, 1, 6, 7}) EXPECT_TRUE(cache_->Find(0, unit).has_value()) << unit;
  EXPECT_EQ(cache_->counts(0).suggested, 2);
}

TEST_F(DemandCacheTest, NothingIsReadAheadWhileTheDiskHasOtherWork) {
  Make(3);
  cache_->SetDiskBusy(true);
  cache_->Suggest(1, std::vector<int32_t>{5});
  EXPECT_FALSE(cache_->NextRead().has_value());
  cache_->SetDiskBusy(false);
  const auto ahead = cache_->NextRead();
  EXPECT_EQ(ahead->what.unit, 5);
  EXPECT_FALSE(cache_->IsCancelled(ahead->number));
  cache_->SetDiskBusy(true);
  EXPECT_EQ(cache_->NextCancel(), ahead->number);
  EXPECT_TRUE(cache_->IsCancelled(ahead->number));
  EXPECT_TRUE(cache_->OnRead(ahead->number, absl::CancelledError("")).ok());
  EXPECT_FALSE(cache_->NextRead().has_value());
  Begin(0, {1});
  EXPECT_EQ(cache_->NextRead()->what.unit, 1) << "what a visit needs is read all the same";
}

TEST_F(DemandCacheTest, EachLayerReadsAheadAsManyAsItMay) {
  cache_ = *DemandCache::Create({.units = 10, .places = {4, 4}, .ahead = {0, 1}});
  for (const int32_t layer : {0, 1}) cache_->Suggest(layer, std::vector<int32_t>{5, 6});
  const auto ahead = cache_->NextRead();
  EXPECT_EQ(ahead->what.layer, 1);
  ASSERT_TRUE(cache_->OnRead(ahead->number, absl::OkStatus()).ok());
  EXPECT_FALSE(cache_->NextRead().has_value());
}

TEST_F(DemandCacheTest, AUnitThatWasReadAheadIsTheFirstToLeave) {
  Make(3);
  Begin(0, {0, 1, 2});
  Finish(0);
  cache_->Suggest(0, std::vector<int32_t>{5});
  const auto ahead = cache_->NextRead();
  ASSERT_TRUE(cache_->OnRead(ahead->number, absl::OkStatus()).ok());
  EXPECT_FALSE(cache_->Find(0, 0).has_value());
  Begin(0, {8});
  Finish(0);
  EXPECT_FALSE(cache_->Find(0, 5).has_value());
  EXPECT_TRUE(cache_->Find(0, 1).has_value() && cache_->Find(0, 2).has_value());
}

TEST_F(DemandCacheTest, AReadThatIsNeededCancelsTheReadAhead) {
  Make(3);
  cache_->Suggest(1, std::vector<int32_t>{5});
  const auto ahead = cache_->NextRead();
  EXPECT_FALSE(cache_->NextCancel().has_value());
  Begin(0, {1});
  EXPECT_EQ(cache_->NextCancel(), ahead->number);
  EXPECT_FALSE(cache_->NextCancel().has_value()) << "once";
  EXPECT_EQ(cache_->NextRead()->what.unit, 1) << "it does not wait";
  EXPECT_TRUE(cache_->OnRead(ahead->number, absl::CancelledError("")).ok());
  EXPECT_FALSE(cache_->Find(1, 5).has_value());
}

TEST_F(DemandCacheTest, AReadAheadThatFailsIsNotRepeatedButOneThatWasCancelledIs) {
  Make(3);
  cache_->Suggest(1, std::vector<int32_t>{5});
  const auto cancelled = cache_->NextRead();
  Begin(0, {1});
  EXPECT_EQ(cache_->NextCancel(), cancelled->number);
  EXPECT_TRUE(cache_->OnRead(cancelled->number, absl::CancelledError("")).ok());
  Finish(0);
  const auto failed = cache_->NextRead();
  EXPECT_EQ(failed->what.unit, 5);
  EXPECT_TRUE(cache_->OnRead(failed->number, absl::DataLossError("bad")).ok());
  EXPECT_FALSE(cache_->NextRead().has_value());
}

TEST_F(DemandCacheTest, AReadAheadOfAChosenUnitGoesOn) {
  Make(3);
  cache_->Suggest(0, std::vector<int32_t>{5});
  const auto ahead = cache_->NextRead();
  Begin(0, {5});
  EXPECT_FALSE(cache_->NextRead().has_value());
  EXPECT_FALSE(cache_->NextCancel().has_value());
  ASSERT_TRUE(cache_->OnRead(ahead->number, absl::OkStatus()).ok());
  EXPECT_THAT(Finish(0), ElementsAre(5));
  EXPECT_EQ(cache_->counts(0).ahead_used, 1);
  EXPECT_EQ(cache_->counts(0).hits, 0);
}

TEST_F(DemandCacheTest, PlacesGoBackColdestFirstAndThoseInUseLater) {
  Make(5, 1, 1);
  Begin(0, {0, 1, 2, 3});
  Finish(0);
  Begin(0, {0, 1, 2, 3, 7});
  const std::span<const int32_t> freed = cache_->SetPlaces(0, 3);
  EXPECT_THAT(freed, IsEmpty()) << "the visit needs all five";
  EXPECT_FALSE(cache_->NextGivenBack().has_value());
  Finish(0);
  std::set<int32_t> back;
  while (const auto one = cache_->NextGivenBack()) back.insert(one->place);
  EXPECT_EQ(back.size(), 2u);
  EXPECT_EQ(cache_->num_places(0), 3);
  EXPECT_FALSE(cache_->Find(0, 0).has_value() || cache_->Find(0, 1).has_value());
  const std::span<const int32_t> more = cache_->SetPlaces(0, 99);
  EXPECT_EQ(std::set<int32_t>(more.begin(), more.end()), back);
  EXPECT_EQ(cache_->SetPlaces(0, 0).size(), 3u) << "the ring of a sweep stays";
}

TEST_F(DemandCacheTest, WrongChoicesAndShapesAreRefused) {
  Make(3);
  EXPECT_THAT(std::string(cache_->Begin(1, std::vector<int32_t>{3, 3}, 1).message()), HasSubstr("layer 1: unit 3 follows unit 3"));
  EXPECT_THAT(std::string(cache_->Begin(1, std::vector<int32_t>{10}, 1).message()), HasSubstr("unit 10"));
  EXPECT_FALSE(cache_->IsUnderWay(1));
  const auto refused = [](const DemandCache::Shape& shape) { return std::string(DemandCache::Create(shape).status().message()); };
  EXPECT_THAT(refused({.units = 4, .places = {}}), HasSubstr("0 layers"));
  EXPECT_THAT(refused({.units = 0, .places = {1}}), HasSubstr("0 units"));
  EXPECT_THAT(refused({.units = 4, .places = {5}}), HasSubstr("5 places"));
  EXPECT_THAT(refused({.units = 4, .places = {4}, .ring_places = 0}), HasSubstr("ring of 0"));
  EXPECT_THAT(refused({.units = 4, .places = {4}, .policies = {UnitPolicy::kLru, UnitPolicy::kLfu}}), HasSubstr("2 policies for 1 layers"));
  EXPECT_THAT(refused({.units = 4, .places = {4}, .reads_at_once = 0}), HasSubstr("0 reads"));
  EXPECT_THAT(refused({.units = 4, .places = {4}, .ahead_places = -1}), HasSubstr("-1 places"));
  EXPECT_THAT(refused({.units = 4, .places = {4}, .ahead = {-2}}), HasSubstr("-2 places"));
  EXPECT_THAT(refused({.units = 4, .places = {4}, .ahead = {1, 1}}), HasSubstr("of 2 layers, for 1 layers"));
}

TEST_F(DemandCacheTest, EveryLayerHasItsPolicy) {
  const RouteShape shape{.model = "m", .layers = 3, .units = 24, .per_token = 4};
  RouteLog log(shape);
  RouteModel model = *RouteModel::Create({.shape = shape});
  for (int step = 0; step < 200; ++step) ASSERT_TRUE(model.AddStep(1, log).ok());
  const std::vector<int32_t> places = {7, 7, 7};
  const std::vector<UnitPolicy> policies(kUnitPolicies.begin(), kUnitPolicies.end());
  cache_ = *DemandCache::Create({.units = 24, .places = places, .policies = policies});
  for (const RouteLog::Visit& visit : log.visits()) {
    ASSERT_TRUE(cache_->Begin(visit.layer, log.units_of(visit), visit.rows).ok());
    Finish(visit.layer);
  }
  for (size_t i = 0; i < places.size(); ++i) {
    for (const UnitPolicy policy : kUnitPolicies) {
      const bool same = cache_->counts(static_cast<int32_t>(i)).hits == (*Replay(log, policy, places))[i].hits;
      EXPECT_EQ(same, policy == policies[i]) << i << " " << kUnitPolicyNames.Of(policy);
    }
  }
}

TEST_F(DemandCacheTest, WithoutReadAheadItHitsWhatTheReplayHits) {
  const RouteShape shape{.model = "m", .layers = 3, .units = 24, .per_token = 4};
  for (const UnitPolicy policy : kUnitPolicies) {
    for (int seed = 1; seed <= Cases(8, 200); ++seed) {
      RouteModel model = *RouteModel::Create({.shape = shape, .seed = static_cast<uint64_t>(seed)});
      RouteLog log(shape);
      for (int step = 0; step < 60; ++step) ASSERT_TRUE(model.AddStep(step % 20 == 7 ? 12 : 1, log).ok());
      const std::vector<int32_t> places = {1 + seed % 5, 6 + seed % 10, 24};
      cache_ = *DemandCache::Create({.units = 24, .places = places, .reads_at_once = 1 + seed % 3, .policy = policy});
      for (const RouteLog::Visit& visit : log.visits()) {
        ASSERT_TRUE(cache_->Begin(visit.layer, log.units_of(visit), visit.rows).ok());
        Finish(visit.layer);
      }
      const std::vector<LayerHits> replayed = *Replay(log, policy, places);
      for (int32_t layer = 0; layer < 3; ++layer) {
        EXPECT_EQ(cache_->counts(layer).hits, replayed[static_cast<size_t>(layer)].hits) << seed;
        EXPECT_EQ(cache_->counts(layer).misses, replayed[static_cast<size_t>(layer)].misses) << seed;
      }
    }
  }
}

// An owner that does everything in any order, and knows what every place has.
class RandomOwner {
 public:
  explicit RandomOwner(uint64_t seed) : random_(seed) {
    shape_ = {.units = Below(1, 12),
              .places = {},
              .ring_places = 1,
              .reads_at_once = Below(1, 3),
              .ahead_places = Below(0, 4),
              .policy = kUnitPolicies[random_() % kUnitPolicies.size()]};
    shape_.ring_places = Below(1, std::min(3, shape_.units));
    for (int32_t layer = 0, layers = Below(1, 3); layer < layers; ++layer) shape_.places.push_back(Below(1, shape_.units));
    cache_ = *DemandCache::Create(shape_);
    for (const int32_t places : shape_.places) {
      content_.emplace_back(static_cast<size_t>(places), kEmpty);
      visits_.emplace_back();
      target_.push_back(places);
    }
  }

  void Run(int events) {
    for (int i = 0; i < events && !::testing::Test::HasFailure(); ++i) Event();
    for (int i = 0; i < 10000 && Busy() && !::testing::Test::HasFailure(); ++i) StartRead(), EndRead(0), Compute(), Finish();
    EXPECT_FALSE(Busy()) << "a visit does not end";
    int32_t given_back = GiveBack();
    for (int32_t layer = 0; layer < Layers(); ++layer) EXPECT_LE(cache_->num_places(layer), target_[layer]) << given_back;
  }

  static int64_t computed, failures, sweeps, cancelled;

 private:
  static constexpr int32_t kEmpty = -1, kNoMemory = -2, kBeingRead = -3;
  struct Visit {
    std::set<int32_t> left;                  // chosen and not computed
    std::vector<DemandCache::Unit> started;  // being computed
  };

  int32_t Below(int32_t least, int32_t most) { return least + static_cast<int32_t>(random_() % static_cast<uint64_t>(most - least + 1)); }
  int32_t Layers() const { return static_cast<int32_t>(shape_.places.size()); }
  bool Busy() const {
    return !reads_.empty() || std::ranges::any_of(visits_, [](const Visit& visit) { return !visit.left.empty(); });
  }
  int32_t& At(const DemandCache::Unit& what) { return content_[static_cast<size_t>(what.layer)][static_cast<size_t>(what.place)]; }

  void Event() {
    const int32_t layer = Below(0, Layers() - 1);
    switch (random_() % 10) {
      case 0:
      case 1:
        return Begin(layer);
      case 2:
      case 3:
        return StartRead();
      case 4:
      case 5:
        return EndRead(random_() % 8 == 0 ? 1 : 0);
      case 6:
        return Compute();
      case 7:
        return Finish();
      case 8:
        disk_busy_ = Below(1, 5) == 1;
        cache_->SetDiskBusy(disk_busy_);
        return Suggest(layer);
      default:
        if (random_() % 3 == 0) SetPlaces(layer);
        GiveBack();
    }
  }

  void Begin(int32_t layer) {
    Visit& visit = visits_[static_cast<size_t>(layer)];
    if (!visit.left.empty()) return;
    const int32_t chance = Below(5, 100);
    for (int32_t unit = 0; unit < shape_.units; ++unit) {
      if (Below(1, 100) <= chance) visit.left.insert(unit);
    }
    if (visit.left.empty()) return;
    ASSERT_TRUE(cache_->Begin(layer, std::vector<int32_t>(visit.left.begin(), visit.left.end()), 1).ok());
    sweeps += std::ssize(visit.left) > cache_->num_places(layer);
  }

  void StartRead() {
    while (const auto cancel = cache_->NextCancel()) {
      const auto read = std::ranges::find(reads_, *cancel, &DemandCache::Read::number);
      ASSERT_TRUE(read != reads_.end() && read->ahead);
      ++cancelled;
    }
    const auto read = cache_->NextRead();
    if (!read) return;
    EXPECT_TRUE(!read->ahead || (reads_.empty() && !disk_busy_)) << "reading ahead while the disk is busy";
    const Visit& visit = visits_[static_cast<size_t>(read->what.layer)];
    EXPECT_EQ(visit.left.contains(read->what.unit), !read->ahead);
    int32_t& content = At(read->what);
    ASSERT_NE(content, kNoMemory);
    EXPECT_FALSE(visit.left.contains(content)) << "unit " << content << " is needed and overwritten";
    for (const int32_t other : content_[static_cast<size_t>(read->what.layer)]) ASSERT_NE(other, read->what.unit) << "is in two places";
    if (content == kBeingRead) EXPECT_TRUE(failed_.contains({read->what.layer, read->what.unit})) << "two reads of a place";
    failed_.erase({read->what.layer, read->what.unit});
    content = kBeingRead;
    reads_.push_back(*read);
  }

  void EndRead(int fails) {
    if (reads_.empty()) return;
    const auto i = static_cast<int64_t>(random_() % reads_.size());
    const DemandCache::Read read = reads_[static_cast<size_t>(i)];
    reads_.erase(reads_.begin() + i);
    const bool needed = visits_[static_cast<size_t>(read.what.layer)].left.contains(read.what.unit);
    const absl::Status result = cache_->OnRead(read.number, fails ? absl::DataLossError("bad") : absl::OkStatus());
    if (!fails) At(read.what) = read.what.unit;
    if (fails && needed && result.ok()) failed_.insert({read.what.layer, read.what.unit});
    if (fails && !(needed && result.ok())) At(read.what) = kEmpty;
    if (!result.ok()) CancelVisit(read.what.layer);
  }

  void CancelVisit(int32_t layer) {
    ++failures;
    for (const auto& [of, unit] : failed_) {
      if (of != layer) continue;
      for (int32_t& content : content_[static_cast<size_t>(layer)]) {
        if (content != kBeingRead) continue;
        const auto place = static_cast<int32_t>(&content - content_[static_cast<size_t>(layer)].data());
        const bool read = std::ranges::any_of(reads_, [&](const auto& r) { return r.what.layer == layer && r.what.place == place; });
        if (!read) content = kEmpty;
      }
    }
    std::erase_if(failed_, [layer](const auto& one) { return one.first == layer; });
    visits_[static_cast<size_t>(layer)] = {};
    cache_->Cancel(layer);
  }

  void Compute() {
    for (int32_t layer = 0; layer < Layers(); ++layer) {
      const auto ready = cache_->NextReady(layer);
      if (!ready) continue;
      EXPECT_EQ(At(*ready), ready->unit) << "another unit is in its place";
      Visit& visit = visits_[static_cast<size_t>(layer)];
      EXPECT_TRUE(visit.left.contains(ready->unit)) << "computed twice, or not chosen";
      visit.started.push_back(*ready);
    }
  }

  void Finish() {
    for (int32_t layer = 0; layer < Layers(); ++layer) {
      Visit& visit = visits_[static_cast<size_t>(layer)];
      if (visit.started.empty()) continue;
      const DemandCache::Unit what = visit.started.front();
      visit.started.erase(visit.started.begin());
      EXPECT_EQ(At(what), what.unit) << "it left while it was computed";
      ++computed;
      visit.left.erase(what.unit);
      EXPECT_EQ(cache_->OnComputed(layer, what.unit), visit.left.empty());
    }
  }

  void Suggest(int32_t layer) {
    std::vector<int32_t> units;
    for (int i = 0; i < 5; ++i) units.push_back(Below(-1, shape_.units));
    cache_->Suggest(layer, units);
  }

  void Lose(int32_t layer, int32_t place) {
    int32_t& content = content_[static_cast<size_t>(layer)][static_cast<size_t>(place)];
    ASSERT_TRUE(content != kBeingRead && content != kNoMemory);
    EXPECT_FALSE(visits_[static_cast<size_t>(layer)].left.contains(content)) << "unit " << content << " is needed";
    content = kNoMemory;
  }

  void SetPlaces(int32_t layer) {
    const int32_t most = shape_.places[static_cast<size_t>(layer)];
    const int32_t count = Below(0, most + 1);
    const int32_t before = cache_->num_places(layer);
    target_[static_cast<size_t>(layer)] = std::clamp(count, std::min(shape_.ring_places, most), most);
    const std::span<const int32_t> changed = cache_->SetPlaces(layer, count);
    const bool grows = cache_->num_places(layer) > before;
    for (const int32_t place : changed) {
      int32_t& content = content_[static_cast<size_t>(layer)][static_cast<size_t>(place)];
      if (grows) ASSERT_EQ(content, kNoMemory);
      grows ? void(content = kEmpty) : Lose(layer, place);
    }
  }

  int32_t GiveBack() {
    int32_t count = 0;
    for (; const auto one = cache_->NextGivenBack(); ++count) Lose(one->layer, one->place);
    return count;
  }

  std::mt19937_64 random_;
  DemandCache::Shape shape_;
  std::unique_ptr<DemandCache> cache_;
  std::vector<std::vector<int32_t>> content_;  // of each place of each layer
  std::vector<Visit> visits_;
  std::vector<int32_t> target_;
  bool disk_busy_ = false;
  std::vector<DemandCache::Read> reads_;
  std::set<std::pair<int32_t, int32_t>> failed_;  // layer and unit that will be read again
};

int64_t RandomOwner::computed = 0, RandomOwner::failures = 0, RandomOwner::sweeps = 0, RandomOwner::cancelled = 0;

TEST(DemandCacheRandomTest, EveryChosenUnitIsComputedOnceAndNoInvariantBreaks) {
  for (int seed = 0; seed < Cases(3000, 60000); ++seed) {
    SCOPED_TRACE(seed);
    RandomOwner(static_cast<uint64_t>(seed)).Run(400);
    if (::testing::Test::HasFailure()) return;
  }
  if (!ManyCases()) return;
  EXPECT_GT(RandomOwner::computed, 10000);
  EXPECT_GT(RandomOwner::failures, 10) << "failed steps";
  EXPECT_GT(RandomOwner::sweeps, 100);
  EXPECT_GT(RandomOwner::cancelled, 100);
}

}  // namespace
}  // namespace lime
