#include "coordinator/logic/recovery.h"

#include <algorithm>
#include <map>
#include <optional>
#include <random>

#include "absl/strings/str_cat.h"
#include "coordinator/logic/order_writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cases.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using Devices = Recovery::Devices;

const absl::Time kStart = absl::FromUnixSeconds(1000);
absl::Time At(double seconds) {
  return kStart + absl::Seconds(seconds);
}
const absl::Status kLost = absl::UnavailableError("device \"b\": its stream of orders: Connection reset by peer");

template <typename T>
const T* As(const Recovery::Answer& answer) {
  return std::get_if<T>(&answer.action);
}

TEST(RecoveryTest, ADeviceThatComesBackGetsThePlanAgain) {
  Recovery recovery({}, {"a", "b"});
  const Recovery::Answer lost = recovery.OnEvent(Recovery::Failed{"b", kLost}, At(0));
  EXPECT_TRUE(As<Recovery::Ask>(lost));
  EXPECT_THAT(lost.say, HasSubstr("device \"b\": its stream of orders"));
  EXPECT_THAT(lost.say, HasSubstr("10s"));
  EXPECT_TRUE(As<Recovery::Ask>(recovery.OnEvent(Recovery::Answered{{"a"}}, At(3))));
  const Recovery::Answer there = recovery.OnEvent(Recovery::Answered{{"a", "b"}}, At(5));
  ASSERT_TRUE(As<Recovery::Install>(there));
  EXPECT_TRUE(As<Recovery::Install>(there)->first);
  EXPECT_TRUE(As<Recovery::GoOn>(recovery.OnEvent(Recovery::Installed{}, At(6))));
  EXPECT_EQ(recovery.recoveries(), 1);
}

TEST(RecoveryTest, WhenPatienceIsOverItIsPlannedWithoutTheMissing) {
  Recovery recovery({}, {"a", "b", "c"});
  (void)recovery.OnEvent(Recovery::Failed{"b", kLost}, At(0));
  EXPECT_TRUE(As<Recovery::Ask>(recovery.OnEvent(Recovery::Answered{{"a", "c", "d"}}, At(9.9))));
  const Recovery::Answer plan = recovery.OnEvent(Recovery::Answered{{"a", "c", "d"}}, At(10));
  ASSERT_TRUE(As<Recovery::MakePlan>(plan));
  EXPECT_EQ(As<Recovery::MakePlan>(plan)->devices, (Devices{"a", "c", "d"}));
  EXPECT_THAT(plan.say, HasSubstr("device \"b\" has not come back for 10s"));
  const Recovery::Answer planned = recovery.OnEvent(Recovery::Planned{{"a", "d"}}, At(13));
  ASSERT_TRUE(As<Recovery::Install>(planned));
  EXPECT_FALSE(As<Recovery::Install>(planned)->first);
  EXPECT_TRUE(As<Recovery::GoOn>(recovery.OnEvent(Recovery::Installed{}, At(14))));
  (void)recovery.OnEvent(Recovery::NewToken{}, At(15));
  // The devices of the plan in use are enough; those of the first plan are better.
  (void)recovery.OnEvent(Recovery::Failed{"a", kLost}, At(20));
  EXPECT_FALSE(As<Recovery::Install>(recovery.OnEvent(Recovery::Answered{{"a", "d"}}, At(20)))->first);
  (void)recovery.OnEvent(Recovery::InstallFailed{"a", kLost}, At(21));
  EXPECT_TRUE(As<Recovery::Install>(recovery.OnEvent(Recovery::Answered{{"a", "b", "c", "d"}}, At(22)))->first);
}

TEST(RecoveryTest, WithoutAPlanItWaitsAndThenSaysWhoIsMissing) {
  Recovery recovery({}, {"a", "b"});
  (void)recovery.OnEvent(Recovery::Failed{"b", kLost}, At(0));
  ASSERT_TRUE(As<Recovery::MakePlan>(recovery.OnEvent(Recovery::Answered{{"a"}}, At(11))));
  const Recovery::Answer no_plan = recovery.OnEvent(Recovery::NoPlan{absl::ResourceExhaustedError("2 GiB more would do")}, At(14));
  EXPECT_TRUE(As<Recovery::Ask>(no_plan));
  EXPECT_THAT(no_plan.say, HasSubstr("1m in all"));
  EXPECT_TRUE(As<Recovery::Ask>(recovery.OnEvent(Recovery::Answered{{"a"}}, At(59)))) << "it is not planned twice for the same devices";
  const Recovery::Answer end = recovery.OnEvent(Recovery::Answered{{"a"}}, At(60));
  ASSERT_TRUE(As<Recovery::GiveUp>(end));
  const std::string why(As<Recovery::GiveUp>(end)->why.message());
  EXPECT_THAT(why, HasSubstr("device \"b\" is missing"));
  EXPECT_THAT(why, HasSubstr("2 GiB more would do"));
  EXPECT_EQ(As<Recovery::GiveUp>(end)->device, "b");
}

TEST(RecoveryTest, ADeviceThatFailsByItselfTwiceIsPlannedWithout) {
  Recovery recovery({}, {"a", "b"});
  const absl::Status disk = absl::DataLossError("device \"b\": block 3 has a bad checksum");
  (void)recovery.OnEvent(Recovery::Failed{"b", disk}, At(0));
  ASSERT_TRUE(As<Recovery::Install>(recovery.OnEvent(Recovery::Answered{{"a", "b"}}, At(1))));
  (void)recovery.OnEvent(Recovery::Installed{}, At(2));
  (void)recovery.OnEvent(Recovery::Failed{"b", disk}, At(3));
  EXPECT_TRUE(As<Recovery::Ask>(recovery.OnEvent(Recovery::Answered{{"a", "b"}}, At(4))));
  const Recovery::Answer plan = recovery.OnEvent(Recovery::Answered{{"a", "b"}}, At(13));
  ASSERT_TRUE(As<Recovery::MakePlan>(plan));
  EXPECT_EQ(As<Recovery::MakePlan>(plan)->devices, (Devices{"a"}));
  EXPECT_THAT(plan.say, HasSubstr("device \"b\" fails again and again; planning for the other devices"));
}

// A device fails twice, at 0 s and at 3 s.
void FailTwice(Recovery& recovery, const std::string& device, const Devices& all) {
  const absl::Status full = absl::ResourceExhaustedError("the disk is full");
  (void)recovery.OnEvent(Recovery::Failed{device, full}, At(0));
  ASSERT_TRUE(As<Recovery::Install>(recovery.OnEvent(Recovery::Answered{all}, At(1))));
  (void)recovery.OnEvent(Recovery::Installed{}, At(2));
  ASSERT_TRUE(As<Recovery::Ask>(recovery.OnEvent(Recovery::Failed{device, full}, At(3))));
}

TEST(RecoveryTest, TheOnlyDeviceIsNotMissingWhileItAnswersHoweverOftenItFails) {
  Recovery recovery({}, {"a"});
  FailTwice(recovery, "a", {"a"});
  double now = 3;
  for (int install = 2; install <= 4; ++install) {
    ASSERT_TRUE(As<Recovery::Ask>(recovery.OnEvent(Recovery::Answered{{"a"}}, At(now + 9.9)))) << "its disk may need a while";
    const Recovery::Answer again = recovery.OnEvent(Recovery::Answered{{"a"}}, At(now + 10));
    ASSERT_TRUE(As<Recovery::Install>(again)) << install;
    EXPECT_TRUE(As<Recovery::Install>(again)->first);
    ASSERT_TRUE(As<Recovery::GoOn>(recovery.OnEvent(Recovery::Installed{}, At(now + 11))));
    now += 12;
    const Recovery::Answer failed = recovery.OnEvent(Recovery::Failed{"a", absl::ResourceExhaustedError("the disk is full")}, At(now));
    ASSERT_EQ(As<Recovery::GiveUp>(failed) != nullptr, install == 4) << "not for ever";
  }
}

TEST(RecoveryTest, WhereNoPlanDoesWithoutADeviceThatFailsItGetsThePlanAgain) {
  Recovery recovery({}, {"a", "b"});
  FailTwice(recovery, "b", {"a", "b"});
  ASSERT_TRUE(As<Recovery::MakePlan>(recovery.OnEvent(Recovery::Answered{{"a", "b"}}, At(13))));
  EXPECT_TRUE(As<Recovery::Ask>(recovery.OnEvent(Recovery::NoPlan{absl::ResourceExhaustedError("a is too small")}, At(14))));
  const Recovery::Answer again = recovery.OnEvent(Recovery::Answered{{"a", "b"}}, At(15));
  ASSERT_TRUE(As<Recovery::Install>(again));
  EXPECT_TRUE(As<Recovery::Install>(again)->first);
}

TEST(RecoveryTest, ADeviceThatFailsAndAnswersIsNotNamedAsMissing) {
  Recovery recovery({}, {"a", "b"});
  FailTwice(recovery, "b", {"a", "b"});
  EXPECT_TRUE(As<Recovery::Ask>(recovery.OnEvent(Recovery::Answered{{"b"}}, At(13))));
  const Recovery::Answer end = recovery.OnEvent(Recovery::Answered{{"b"}}, At(63));
  ASSERT_TRUE(As<Recovery::GiveUp>(end));
  EXPECT_THAT(std::string(As<Recovery::GiveUp>(end)->why.message()), HasSubstr("device \"a\" is missing"));
}

TEST(RecoveryTest, InstallationsWithoutATokenInBetweenAreCounted) {
  Recovery recovery({.attempts = 3}, {"a", "b"});
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(As<Recovery::Ask>(recovery.OnEvent(Recovery::Failed{"b", kLost}, At(i))));
    ASSERT_TRUE(As<Recovery::Install>(recovery.OnEvent(Recovery::Answered{{"a", "b"}}, At(i))));
    (void)recovery.OnEvent(Recovery::Installed{}, At(i));
  }
  const Recovery::Answer end = recovery.OnEvent(Recovery::Failed{"b", kLost}, At(4));
  ASSERT_TRUE(As<Recovery::GiveUp>(end));
  EXPECT_THAT(std::string(As<Recovery::GiveUp>(end)->why.message()), HasSubstr("installed 3 times without a token"));
  EXPECT_EQ(As<Recovery::GiveUp>(end)->device, "b");
}

TEST(RecoveryTest, AfterGivingUpItRestsAndThenWaitsAndPlansAsAtFirst) {
  Recovery recovery({.give_up = absl::Seconds(20), .rest = absl::Seconds(5)}, {"a", "b"});
  (void)recovery.OnEvent(Recovery::Failed{"b", kLost}, At(0));
  (void)recovery.OnEvent(Recovery::Answered{{"a"}}, At(10));
  (void)recovery.OnEvent(Recovery::NoPlan{absl::ResourceExhaustedError("a request has no room")}, At(11));
  const Recovery::Answer end = recovery.OnEvent(Recovery::Answered{{"a"}}, At(20));
  ASSERT_TRUE(As<Recovery::GiveUp>(end));
  EXPECT_FALSE(As<Recovery::GiveUp>(end)->for_good);
  const Recovery::Answer rest = recovery.OnEvent(Recovery::TryAgain{}, At(20));
  ASSERT_TRUE(As<Recovery::Ask>(rest));
  EXPECT_EQ(As<Recovery::Ask>(rest)->after, absl::Seconds(5));
  EXPECT_TRUE(As<Recovery::Ask>(recovery.OnEvent(Recovery::Answered{{"a"}}, At(25))));
  EXPECT_TRUE(As<Recovery::MakePlan>(recovery.OnEvent(Recovery::Answered{{"a"}}, At(30)))) << "the request has gone";
  (void)recovery.OnEvent(Recovery::NoPlan{absl::ResourceExhaustedError("the model has no room")}, At(31));
  EXPECT_TRUE(As<Recovery::GiveUp>(recovery.OnEvent(Recovery::Answered{{"a"}}, At(40))));
  (void)recovery.OnEvent(Recovery::TryAgain{}, At(40));
  const Recovery::Answer there = recovery.OnEvent(Recovery::Answered{{"a", "b"}}, At(45));
  ASSERT_TRUE(As<Recovery::Install>(there));
  EXPECT_TRUE(As<Recovery::Install>(there)->first);
}

TEST(RecoveryTest, AfterGivingUpInstallationsAndFailuresOfADeviceCountAnew) {
  Recovery recovery({.attempts = 2}, {"a"});
  const absl::Status disk = absl::DataLossError("block 3 has a bad checksum");
  for (int round = 0; round < 3; ++round) {
    Recovery::Answer answer = recovery.OnEvent(Recovery::Failed{"a", disk}, At(round));
    ASSERT_TRUE(As<Recovery::Ask>(answer));
    ASSERT_TRUE(As<Recovery::Install>(recovery.OnEvent(Recovery::Answered{{"a"}}, At(round)))) << round;
    (void)recovery.OnEvent(Recovery::InstallFailed{"a", disk}, At(round));
    ASSERT_TRUE(As<Recovery::GiveUp>(recovery.OnEvent(Recovery::Answered{{}}, At(round + 100))));
    (void)recovery.OnEvent(Recovery::TryAgain{}, At(round + 100));
    ASSERT_TRUE(As<Recovery::Install>(recovery.OnEvent(Recovery::Answered{{"a"}}, At(round + 110))));
    ASSERT_TRUE(As<Recovery::GoOn>(recovery.OnEvent(Recovery::Installed{}, At(round + 111))));
    (void)recovery.OnEvent(Recovery::NewToken{}, At(round + 112));
  }
}

TEST(RecoveryTest, AtTheWordOfAPersonItGivesUpForGood) {
  Recovery recovery({}, {"a"});
  const Recovery::Answer end = recovery.OnEvent(Recovery::Failed{"a", absl::UnauthenticatedError("taken away")}, At(0));
  ASSERT_TRUE(As<Recovery::GiveUp>(end));
  EXPECT_TRUE(As<Recovery::GiveUp>(end)->for_good);
}

// ---- Whole runs, in simulated time: devices fail at any moment, also while a plan is installed
// and while tokens are computed again.

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15)) * 0xff51afd7ed558ccd;
  return x ^ (x >> 31);
}

struct Reference {
  std::vector<int32_t> tokens;
  uint64_t hash = 0;  // over the "logits" that every token was taken from
};

// A token is a function of all ids before it; so are the logits.
uint64_t Logits(const std::vector<int32_t>& ids, size_t count) {
  uint64_t hash = 1;
  for (size_t i = 0; i < count; ++i) hash = Mix(hash, static_cast<uint64_t>(ids[i]));
  return hash;
}
int32_t TokenOf(uint64_t logits) {
  return static_cast<int32_t>(logits % 1000);
}

Reference WithoutFaults(std::vector<int32_t> ids, int64_t count) {
  Reference reference;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t logits = Logits(ids, ids.size());
    reference.hash = Mix(reference.hash, logits);
    ids.push_back(TokenOf(logits));
    reference.tokens.push_back(ids.back());
  }
  return reference;
}

// An installed plan that carries orders out, a step at a time.
class Pipeline {
 public:
  void OnOrder(const Order& order) { orders_.push_back(order); }

  struct Report {
    int64_t step = 0;
    std::vector<SampledToken> tokens;
    std::vector<uint64_t> hashes;
  };
  // The next step, with what changes sequences before it.
  std::optional<Report> Step() {
    while (!orders_.empty()) {
      const Order order = std::move(orders_.front());
      orders_.pop_front();
      EXPECT_EQ(order.number, next_++);
      if (const auto* admit = std::get_if<AdmitOrder>(&order.what)) {
        slots_[admit->sequence] = {.known = admit->prompt};
      } else if (const auto* retire = std::get_if<RetireOrder>(&order.what)) {
        EXPECT_EQ(slots_.erase(retire->sequence), 1u);
      } else {
        return Run(std::get<StepOrder>(order.what));
      }
    }
    return std::nullopt;
  }

 private:
  struct Slot {
    std::vector<int32_t> known;  // what was admitted, and what was sampled
    size_t computed = 0;
    uint64_t hash = 0;
  };
  Report Run(const StepOrder& step) {
    Report report{.step = steps_++};
    for (const MicroBatch& batch : step.microbatches) {
      for (const BatchRow& row : batch.rows) {
        Slot& slot = slots_.at(row.sequence);
        EXPECT_EQ(row.position, static_cast<int32_t>(slot.computed)) << "positions follow one another";
        EXPECT_LT(slot.computed, slot.known.size());
        if (row.token != kSampledToken) {
          EXPECT_EQ(row.token, slot.known[slot.computed]);
        }
        ++slot.computed;
        if (!row.wants_logits) continue;
        const uint64_t logits = Logits(slot.known, slot.computed);
        slot.hash = Mix(slot.hash, logits);
        if (slot.computed == slot.known.size()) slot.known.push_back(TokenOf(logits));
        report.tokens.push_back({row.sequence, row.position + 1, slot.known[slot.computed]});
        report.hashes.push_back(slot.hash);
      }
    }
    return report;
  }

  std::deque<Order> orders_;
  std::map<int32_t, Slot> slots_;
  int64_t next_ = 0, steps_ = 0;
};

class Simulation {
 public:
  explicit Simulation(uint32_t seed) : random_(seed) {
    for (int d = Draw(1, 5); d > 0; --d) names_.push_back(std::string(1, static_cast<char>('a' + d)));
    need_ = static_cast<size_t>(Draw(1, static_cast<int>(names_.size())));
    faults_ = Draw(0, 6);
    options_.attempts = Draw(2, 5);
    recovery_.emplace(options_, Devices(names_.begin(), names_.end()));
    uses_ = {names_.begin(), names_.end()};
    orders_ = RandomPlan();
    writer_.emplace(orders_);
    for (int r = Draw(1, 5); r > 0; --r) AddRequest();
  }

  void Run() {
    Fault();
    while (!writer_->idle() && !ended_) {
      const absl::Status failure = RunPlan();
      if (failure.ok()) continue;
      Recover(failure);
      ASSERT_LT(now_ - kStart, absl::Hours(2)) << "it goes on for ever";
    }
    if (ended_) return;
    for (size_t r = 0; r < references_.size(); ++r) {
      EXPECT_EQ(tokens_[r], references_[r].tokens);
      EXPECT_EQ(hashes_[r], references_[r].hash);
    }
  }

  bool ended() const { return ended_; }
  int64_t recoveries() const { return recovery_->recoveries(); }

 private:
  int Draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  OrderWriter::Options RandomPlan() {
    OrderWriter::Options options;
    options.sequences = 3, options.context = 64, options.batch = Draw(1, 3);
    options.microbatches = (options.sequences + options.batch - 1) / options.batch + Draw(0, 1);
    options.max_rows = options.batch + Draw(0, 8), options.chunk = options.max_rows, options.chunks = Draw(1, 2);
    return options;
  }

  void AddRequest() {
    std::vector<int32_t> prompt;
    for (int i = Draw(1, 20); i > 0; --i) prompt.push_back(Draw(0, 999));
    const int64_t count = Draw(1, 30);
    references_.push_back(WithoutFaults(prompt, count));
    ASSERT_TRUE(writer_->Add({.prompt = std::move(prompt), .max_new_tokens = count}, OrderWriter::Logits::kAgain).ok());
    hashes_.push_back(0), tokens_.emplace_back();
  }

  // The next device to fail, some time from now, for some time or for ever.
  void Fault() {
    fault_at_ = faults_-- > 0 ? now_ + absl::Milliseconds(Draw(0, Draw(0, 1) ? 800 : 20000)) : absl::InfiniteFuture();
    fault_ = names_[static_cast<size_t>(Draw(0, static_cast<int>(names_.size()) - 1))];
  }

  // Time passes. What is down may come up, what is up may go down; both make a device forget its
  // plan.
  void Pass(absl::Duration duration) {
    now_ += duration;
    while (fault_at_ <= now_) {
      down_until_[fault_] = Draw(0, 9) == 0 ? absl::InfiniteFuture() : fault_at_ + absl::Milliseconds(Draw(0, Draw(0, 1) ? 3000 : 70000));
      broken_.insert(fault_);
      Fault();
    }
  }
  bool IsUp(const std::string& device) const {
    const auto found = down_until_.find(device);
    return found == down_until_.end() || found->second <= now_;
  }
  std::optional<std::string> Broken() const {
    for (const std::string& device : uses_) {
      if (broken_.contains(device) || !IsUp(device)) return device;
    }
    return std::nullopt;
  }

  absl::Status RunPlan() {
    Pipeline pipeline;
    while (!writer_->idle()) {
      Pass(absl::Milliseconds(Draw(1, 200)));
      if (const auto device = Broken()) return absl::UnavailableError(*device);
      for (const Order& order : writer_->NextOrders()) pipeline.OnOrder(order);
      const std::optional<Pipeline::Report> report = pipeline.Step();
      if (report) OnReport(*report);
    }
    return absl::OkStatus();
  }

  void OnReport(const Pipeline::Report& report) {
    const auto tokens = writer_->OnTokens(report.step, report.tokens);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    for (const OrderWriter::Token& token : *tokens) {
      hashes_[static_cast<size_t>(token.request)] = report.hashes[token.index];
      if (token.again) continue;
      tokens_[static_cast<size_t>(token.request)].push_back(report.tokens[token.index].token);
      attempts_ = 0, (void)recovery_->OnEvent(Recovery::NewToken{}, now_);
    }
    ASSERT_TRUE(writer_->OnStepEnded(report.step).ok());
  }

  void Recover(const absl::Status& failure) {
    failed_at_ = now_;
    Recovery::Answer answer = recovery_->OnEvent(Recovery::Failed{std::string(failure.message()), failure}, now_);
    while (!As<Recovery::GoOn>(answer)) {
      if (const auto* end = As<Recovery::GiveUp>(answer)) return CheckEnd(*end);
      if (const auto* ask = As<Recovery::Ask>(answer)) {
        Pass(ask->after);
        answer = recovery_->OnEvent(Recovery::Answered{Free()}, now_);
      } else if (const auto* plan = As<Recovery::MakePlan>(answer)) {
        answer = recovery_->OnEvent(MakePlan(plan->devices), now_);
      } else {
        answer = recovery_->OnEvent(Install(*As<Recovery::Install>(answer)), now_);
      }
    }
  }

  Devices Free() {
    Pass(absl::Milliseconds(Draw(0, 1000)));
    free_.clear();
    for (const std::string& device : names_) {
      if (IsUp(device)) free_.insert(device);
    }
    return free_;
  }

  Recovery::Event MakePlan(const Devices& devices) {
    EXPECT_TRUE(std::ranges::includes(free_, devices)) << "it plans with a device that does not answer";
    EXPECT_GE(now_ - failed_at_, options_.patience) << "it does not wait";
    Pass(absl::Milliseconds(Draw(0, 3000)));
    if (devices.size() < need_) return Recovery::NoPlan{absl::ResourceExhaustedError("too few")};
    newest_ = devices;
    while (newest_.size() > need_ && Draw(0, 2) == 0) newest_.erase(newest_.begin());
    return Recovery::Planned{newest_};
  }

  Recovery::Event Install(const Recovery::Install& install) {
    uses_ = install.first ? Devices(names_.begin(), names_.end()) : newest_;
    EXPECT_TRUE(std::ranges::includes(free_, uses_)) << "it installs on a device that does not answer";
    EXPECT_LE(++attempts_, options_.attempts);
    broken_.clear();
    Pass(absl::Milliseconds(Draw(0, 3000)));
    if (const auto device = Broken()) {
      failed_at_ = now_;
      return Recovery::InstallFailed{*device, absl::UnavailableError(*device)};
    }
    EXPECT_TRUE(writer_->Restart(RandomPlan()).ok());
    return Recovery::Installed{};
  }

  // It gives up for one of two reasons only.
  void CheckEnd(const Recovery::GiveUp& end) {
    ended_ = true;
    if (attempts_ == options_.attempts) return;
    EXPECT_GE(now_ - failed_at_, options_.give_up) << end.why;
    EXPECT_LT(now_ - failed_at_, options_.give_up + absl::Seconds(10)) << "it waits for too long";
    EXPECT_LT(free_.size(), need_) << "there was a plan: " << end.why;
  }

  std::mt19937 random_;
  Recovery::Options options_;
  std::vector<std::string> names_;
  size_t need_ = 1;  // devices, for a plan
  int faults_ = 0;   // still to come
  std::optional<Recovery> recovery_;
  OrderWriter::Options orders_;
  std::optional<OrderWriter> writer_;
  std::vector<Reference> references_;
  std::vector<uint64_t> hashes_;              // as reported last
  std::vector<std::vector<int32_t>> tokens_;  // as reported, each once
  absl::Time now_ = kStart, fault_at_, failed_at_;
  std::string fault_;
  std::map<std::string, absl::Time> down_until_;
  Devices uses_, newest_, free_;
  Devices broken_;  // since the plan was installed
  int attempts_ = 0;
  bool ended_ = false;
};

TEST(RecoveryTest, RandomFaultsLoseNoTokenWheneverTheyCome) {
  int ended = 0;
  int64_t recoveries = 0;
  for (uint32_t seed = 1; seed <= static_cast<uint32_t>(Cases(5000, 5000)); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Simulation simulation(seed);
    simulation.Run();
    if (::testing::Test::HasFailure()) return;
    ended += simulation.ended() ? 1 : 0;
    recoveries += simulation.recoveries();
  }
  if (!ManyCases()) return;
  EXPECT_GT(recoveries, 2500) << "faults that come too late show nothing";
  EXPECT_LT(ended, 2500) << "most runs survive";
  EXPECT_GT(ended, 0);
}

}  // namespace
}  // namespace lime
