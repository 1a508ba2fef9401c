#include "coordinator/cluster_view/cluster_watch.h"

#include <atomic>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/steady_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/coordinator/cluster_view/small_view.h"

namespace lime {
namespace {

using nlohmann::json;

constexpr absl::Duration kPatience = absl::Seconds(30);

// Counts how often its stream is woken.
class FakeAnswer final : public HttpAnswer {
 public:
  void Send(HttpResponse) override {}
  void Delay(HttpResponse, absl::Duration, std::function<void()>) override {}
  void Stream(HttpResponse, absl::Duration, std::unique_ptr<BodySource>) override {}
  void Wake() override {
    const absl::MutexLock lock(&mutex_);
    ++wakes_;
  }
  void Abort() override {}
  void OnEnd(std::function<void(HttpEnd)>) override {}
  void OnWake(std::function<void()>) override {}

  bool IsWoken(int times) {
    const auto enough = [&] { return wakes_ >= times; };
    const absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&enough), kPatience);
  }

 private:
  absl::Mutex mutex_;
  int wakes_ = 0;
};

// Three devices whose answers a test sets.
class ClusterWatchTest : public ::testing::Test {
 protected:
  ClusterWatchTest() {
    for (const std::string name : {"a", "b", "c"}) statistics_[name] = DeviceStatistics{.epoch = plan_->epoch, .resident = 7};
    cluster_.name = "shelf", cluster_.model = "small";
    options_.every = absl::Milliseconds(1), options_.scraped = absl::Milliseconds(1);
    options_.now = [this] { return ClusterWatch::Now{.plan = plan_, .predicted_ms_per_token = 20, .running = running_.load()}; };
    for (const std::string name : {"a", "b", "c"}) {
      cluster_.devices.push_back({.name = name,
                                  .address = name + ":7001",
                                  .backend = "cpu",
                                  .statistics =
                                      [this, name] {
                                        const absl::MutexLock lock(&mutex_);
                                        ++asked_;
                                        return statistics_[name];
                                      },
                                  .trace = [this, name](const TraceCall&) { return Trace(name); }});
    }
  }

  // A step ends once all devices have answered for it. Each part takes a second: much more than the
  // error with which clocks are compared here.
  absl::StatusOr<TraceChunk> Trace(const std::string& name) {
    const absl::MutexLock lock(&mutex_);
    ++traced_;
    TraceChunk chunk{.epoch = plan_->epoch, .received_ms = SteadyMs(), .answered_ms = SteadyMs()};
    const int32_t step = steps_[name];
    for (const std::string other : {"a", "b", "c"}) {
      if (steps_[other] < step) return chunk;
    }
    ++steps_[name];
    for (int32_t part = 0; part < plan_->NumParts(); ++part) {
      const double begin_ms = 1000.0 * (step * plan_->NumParts() + part);
      if (plan_->devices[static_cast<size_t>(plan_->stages[static_cast<size_t>(StageOf(*plan_, part))].device)].name == name)
        chunk.spans.push_back({.begin_ms = begin_ms, .end_ms = begin_ms + 1000, .step = step, .part = part});
    }
    return chunk;
  }

  std::unique_ptr<ClusterWatch> Opened() const {
    auto watch = std::make_unique<ClusterWatch>(options_);
    watch->Open(cluster_);
    return watch;
  }
  void Answers(const std::string& name, absl::StatusOr<DeviceStatistics> statistics) {
    const absl::MutexLock lock(&mutex_);
    statistics_[name] = std::move(statistics);
  }
  bool IsAsked(int64_t times) {
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return asked_ >= times; };
    const absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&enough), kPatience);
  }
  int64_t traced() {
    const absl::MutexLock lock(&mutex_);
    return traced_;
  }

  static json Read(const std::string& event) {
    std::string_view text = event;
    constexpr std::string_view kBegin = "event: cluster\ndata: ";
    EXPECT_TRUE(text.starts_with(kBegin) && text.ends_with("\n\n")) << event;
    return json::parse(text.substr(std::min(text.size(), kBegin.size())), nullptr, /*allow_exceptions=*/false);
  }
  static std::string Pulled(BodySource& source) {
    std::string out;
    EXPECT_FALSE(source.Pull(out));
    return out;
  }
  // What a stream shows once `is` holds.
  template <typename Is>
  static json Await(ClusterWatch& watch, const Is& is) {
    const auto answer = std::make_shared<FakeAnswer>();
    const std::unique_ptr<BodySource> source = watch.Events(answer);
    const absl::Time until = absl::Now() + kPatience;
    for (int wakes = 1; absl::Now() < until && answer->IsWoken(wakes); ++wakes) {
      const std::string event = Pulled(*source);
      if (event.empty()) continue;
      if (json seen = Read(event); is(seen)) return seen;
    }
    ADD_FAILURE() << "never shown";
    return {};
  }

  const std::shared_ptr<const Plan> plan_ = std::make_shared<const Plan>(SmallServedPlan());
  std::atomic<int64_t> running_ = 0;
  ClusterWatch::Options options_;
  ClusterWatch::Cluster cluster_;
  absl::Mutex mutex_;
  std::map<std::string, absl::StatusOr<DeviceStatistics>> statistics_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int32_t> steps_ ABSL_GUARDED_BY(mutex_);
  int64_t asked_ ABSL_GUARDED_BY(mutex_) = 0, traced_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST_F(ClusterWatchTest, AStreamShowsTheClusterAgainAndAgain) {
  const auto watch = Opened();
  const auto answer = std::make_shared<FakeAnswer>();
  const std::unique_ptr<BodySource> source = watch->Events(answer);
  ASSERT_TRUE(answer->IsWoken(1));
  EXPECT_EQ(Read(Pulled(*source))["requests"]["running"], 0);
  running_ = 5;
  ASSERT_TRUE(answer->IsWoken(4));
  EXPECT_EQ(Read(Pulled(*source))["requests"]["running"], 5);
}

TEST_F(ClusterWatchTest, AStreamThatIsReadSlowlyMissesSnapshots) {
  const auto watch = Opened();
  const auto answer = std::make_shared<FakeAnswer>();
  const std::unique_ptr<BodySource> source = watch->Events(answer);
  ASSERT_TRUE(answer->IsWoken(20));
  const std::string pulled = Pulled(*source);
  EXPECT_EQ(pulled.rfind("event: cluster"), 0u) << "one snapshot, whatever waited";
}

TEST_F(ClusterWatchTest, AllStreamsShareOneSnapshot) {
  options_.every = absl::Hours(1);
  const auto watch = Opened();
  const auto first = std::make_shared<FakeAnswer>(), second = std::make_shared<FakeAnswer>();
  const std::unique_ptr<BodySource> one = watch->Events(first);
  ASSERT_TRUE(first->IsWoken(1));
  running_ = 9;
  const std::unique_ptr<BodySource> other = watch->Events(second);
  const std::string shown = Pulled(*one);
  EXPECT_EQ(Read(shown)["requests"]["running"], 0);
  EXPECT_EQ(Pulled(*other), shown) << "the snapshot is new enough";
  EXPECT_EQ(Pulled(*other), "") << "nothing new";
  std::string silence;
  other->OnSilence(silence);
  EXPECT_EQ(silence, ": keep-alive\n\n");
  EXPECT_EQ(json::parse(watch->Json()), Read(shown));
}

TEST_F(ClusterWatchTest, NothingIsAskedWhileNobodyLooks) {
  const auto watch = Opened();
  ASSERT_TRUE(IsAsked(3)) << "each device once, at the start";
  ClusterWatch clock(options_);  // a watch without devices makes 50 snapshots meanwhile
  const auto answer = std::make_shared<FakeAnswer>();
  const std::unique_ptr<BodySource> source = clock.Events(answer);
  ASSERT_TRUE(answer->IsWoken(50));
  const absl::MutexLock lock(&mutex_);
  EXPECT_EQ(asked_, 3);
  EXPECT_EQ(traced_, 0);
}

TEST_F(ClusterWatchTest, AScraperAsksForStatisticsAndNotForSpans) {
  const auto watch = Opened();
  watch->Facts();
  ASSERT_TRUE(IsAsked(30));
  EXPECT_EQ(traced(), 0);
  const ClusterFacts facts = watch->Facts();
  EXPECT_EQ(facts.devices[0].resident, 7);
  EXPECT_EQ(facts.step, std::nullopt);
}

TEST_F(ClusterWatchTest, WhatTheServerKnowsIsOfNowForTheFirstWhoLooks) {
  running_ = 3;
  const auto watch = Opened();
  const json seen = json::parse(watch->Json());
  EXPECT_EQ(seen["requests"]["running"], 3);
  EXPECT_EQ(seen["plan"]["epoch"], plan_->epoch);
  EXPECT_EQ(seen["devices"].size(), 3u);
  EXPECT_FALSE(seen.contains("progress"));
}

TEST_F(ClusterWatchTest, ADeviceIsLostLoadsOrIsReady) {
  Answers("b", absl::UnavailableError("device \"b\" does not answer"));
  Answers("c", absl::FailedPreconditionError("no plan is installed"));
  const auto watch = Opened();
  const auto states = [](const json& seen) {
    std::string all;
    for (const json& device : seen["devices"]) all += device["state"].get<std::string>() + " ";
    return all;
  };
  Await(*watch, [&](const json& seen) { return states(seen) == "ok lost loading "; });
  Answers("a", DeviceStatistics{.epoch = plan_->epoch - 1});
  Answers("b", DeviceStatistics{.epoch = plan_->epoch});
  Answers("c", absl::DeadlineExceededError("too late"));
  Await(*watch, [&](const json& seen) { return states(seen) == "loading ok lost "; });
}

TEST_F(ClusterWatchTest, BeforeADeviceAnswersItHasThePlanThatIsInUse) {
  absl::Notification seen;
  cluster_.devices[0].statistics = [&] {
    seen.WaitForNotification();
    return absl::StatusOr<DeviceStatistics>(absl::UnavailableError("gone"));
  };
  const auto watch = Opened();
  EXPECT_EQ(json::parse(watch->Json())["devices"][0]["state"], "ok");
  seen.Notify();
  Await(*watch, [](const json& cluster) { return cluster["devices"][0]["state"] == "lost"; });
}

TEST_F(ClusterWatchTest, AnOldAnswerDoesNotSayWhichPlanADeviceHas) {
  for (const auto& [trusted, state] : {std::pair(absl::Hours(1), "loading"), std::pair(absl::ZeroDuration(), "ok")}) {
    options_.trusted = trusted;
    Answers("a", DeviceStatistics{.epoch = plan_->epoch - 1, .resident = 8});
    const auto watch = Opened();
    const json seen = Await(*watch, [](const json& cluster) { return cluster["devices"][0]["rss_bytes"] == 8; });
    EXPECT_EQ(seen["devices"][0]["state"], state);
  }
}

TEST_F(ClusterWatchTest, LinksShowWhatIsPlannedAndWhatTheSenderMeasures) {
  cluster_.planned_rate = [](const Plan&, const std::string& from, const std::string& to) {
    return from == "a" && to == "b" ? std::optional<double>(12.5e6) : std::nullopt;
  };
  Answers("a", DeviceStatistics{.epoch = plan_->epoch, .links = {{"b", 11e6, 240}}, .traffic = {{"b", 4096, 0}}});
  const auto watch = Opened();
  const json seen = Await(*watch, [](const json& cluster) { return !cluster["links"][0]["measured_bytes_per_second"].is_null(); });
  EXPECT_EQ(seen["links"][0], json::parse(R"({"from": "a", "to": "b", "planned_bytes_per_second": 12500000,
                                              "measured_bytes_per_second": 11000000, "age_ms": 240})"));
  EXPECT_EQ(seen["links"][1]["planned_bytes_per_second"], json());
  EXPECT_EQ(watch->Facts().links[0].sent, 4096);
}

TEST_F(ClusterWatchTest, SpansOfTheNewestStepComeWithThePredictedOnes) {
  const auto watch = Opened();
  const json seen = Await(*watch, [](const json& cluster) { return !cluster["timeline"]["step"].is_null(); });
  double end_ms = 0;
  for (const json& span : seen["timeline"]["spans"]) end_ms = std::max(end_ms, span["end_ms"].get<double>());
  EXPECT_NEAR(end_ms, 1000.0 * plan_->NumParts(), 500);
  EXPECT_FALSE(seen["timeline"]["predicted"].empty());
}

TEST_F(ClusterWatchTest, BeforeItsDevicesAreKnownThereAreNone) {
  ClusterWatch watch(options_);
  const auto answer = std::make_shared<FakeAnswer>();
  const std::unique_ptr<BodySource> source = watch.Events(answer);
  ASSERT_TRUE(answer->IsWoken(1));
  EXPECT_TRUE(Read(Pulled(*source))["devices"].empty());
  watch.Open(cluster_);
  Await(watch, [](const json& seen) { return seen["devices"].size() == 3; });
}

TEST_F(ClusterWatchTest, OnceClosedItShowsWhatWasKnown) {
  const auto watch = Opened();
  Await(*watch, [](const json& seen) { return seen["devices"][0]["state"] == "ok"; });
  watch->Close();
  running_ = 4;
  EXPECT_EQ(watch->Facts().running, 4);
  EXPECT_EQ(watch->Facts().devices[0].state, DeviceFacts::State::kOk);
}

TEST_F(ClusterWatchTest, AServerWithoutAPlanShowsItsDevices) {
  options_.now = [] { return ClusterWatch::Now{.progress = 0.426}; };
  Answers("c", absl::UnavailableError("gone"));
  const auto watch = Opened();
  const json seen = Await(*watch, [](const json& cluster) { return cluster["devices"][2]["state"] == "lost"; });
  EXPECT_EQ(seen["plan"], json());
  EXPECT_EQ(seen["progress"], 0.43);
  EXPECT_EQ(seen["devices"][0]["state"], "loading");
  EXPECT_TRUE(seen["links"].empty());
  EXPECT_EQ(seen["measured_ms_per_token"], json());
}

}  // namespace
}  // namespace lime
