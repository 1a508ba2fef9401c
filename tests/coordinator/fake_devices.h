// Devices that compute nothing and never wait: a token is a hash of all ids before it, so a lost,
// repeated or misplaced token changes it. Orders are carried out within Send, or one step at a time
// if a test holds them.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/serving/devices.h"
#include "gtest/gtest.h"
#include "tests/planner/small_cluster.h"

namespace lime {

// One stage on one device.
inline Plan OneStage(int32_t sequences, int64_t context = 256) {
  PlanRequest request;
  request.model_name = "small", request.context = context, request.sequences = sequences, request.batches = {sequences};
  request.prompt_tokens = 32, request.chunks = {16};
  const std::vector<ClusterDevice> devices = {Board("a", 8 * kGiB)};
  const PlanProblem problem = *MakePlanProblem(SmallModel(), devices, request);
  PlanChoice choice{.microbatches = 1, .batch = sequences};
  choice.first_token = {.feasible = true, .ms = 1, .chunk_rows = 16, .chunks = 2, .chunks_per_sweep = 1};
  choice.stages.stages.push_back({.device = 0, .lo = 0, .hi = static_cast<int>(problem.head.parts.size())});
  return *MakePlan(problem, choice);
}

class FakeDevices final : public Devices {
 public:
  static constexpr int32_t kVocab = 256;

  explicit FakeDevices(const Plan& plan) : plan_(plan) {
    plan_.epoch = 1;
    installed_.resize(1);
    free_ = DevicesUsed(plan);
  }

  static int32_t Next(const std::vector<int32_t>& known, uint64_t choice) {
    uint64_t hash = 0x9e3779b97f4a7c15 * (choice + 1);
    for (const int32_t id : known) hash = (hash ^ static_cast<uint64_t>(id)) * 0xff51afd7ed558ccd, hash ^= hash >> 29;
    return static_cast<int32_t>(hash % kVocab);
  }
  static std::vector<int32_t> Answer(std::vector<int32_t> known, int64_t count, uint64_t choice) {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < count; ++i) tokens.push_back(Next(known, choice)), known.push_back(tokens.back());
    return tokens;
  }

  // From now on steps wait for Step.
  void Hold() {
    absl::MutexLock lock(&mutex_);
    held_ = true;
  }
  void Release() {
    absl::MutexLock lock(&mutex_);
    held_ = false;
    Pump();
  }
  // From now on an installation waits for ReleaseInstalls or until it is cancelled.
  void HoldInstalls() {
    absl::MutexLock lock(&mutex_);
    may_install_ = false;
  }
  void ReleaseInstalls() {
    absl::MutexLock lock(&mutex_);
    may_install_ = true;
  }
  // Waits until a step is ordered: the requests that came first have their slots.
  void AwaitStep() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &FakeDevices::HasStep));
  }
  // Waits until a step is ordered, then carries out all orders up to this step.
  void Step() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &FakeDevices::HasStep));
    bool step = false;
    while (!step) step = CarryOut();
  }
  // Waits until `count` requests have left their slots. Carries out no step.
  void AwaitRetired(int64_t count) const { AwaitCount(&FakeDevices::retired_, count); }
  // Wait until Install, or Free, was called `count` times.
  void AwaitInstalls(int64_t count) const { AwaitCount(&FakeDevices::installs_, count); }
  void AwaitAsked(int64_t count) const { AwaitCount(&FakeDevices::asked_, count); }
  void Fail(const absl::Status& why) {
    absl::MutexLock lock(&mutex_);
    if (news_) news_(0, FailedNews{why});
  }
  // From now on the devices keep their KV after a failure.
  void KeepKv() {
    absl::MutexLock lock(&mutex_);
    keeps_kv_ = true;
  }
  // The devices that answer after a failure.
  void SetFree(std::set<std::string> devices) {
    absl::MutexLock lock(&mutex_);
    free_ = std::move(devices);
  }
  int64_t installs() const {
    absl::MutexLock lock(&mutex_);
    return installs_;
  }
  int64_t asked() const {
    absl::MutexLock lock(&mutex_);
    return asked_;
  }
  // Sequences whose KV the installed plan took over.
  int64_t taken_over() const {
    absl::MutexLock lock(&mutex_);
    return taken_over_;
  }

  absl::Status Install(Plan plan, const InstallOptions& options) override {
    absl::MutexLock lock(&mutex_);
    ++installs_;
    while (!may_install_) {
      if (options.cancelled != nullptr && options.cancelled->load()) return absl::CancelledError("interrupted");
      (void)mutex_.AwaitWithTimeout(absl::Condition(&may_install_), absl::Milliseconds(1));
    }
    plan.epoch = plan_.epoch + 1;
    plan_ = std::move(plan);
    taken_over_ = std::ssize(options.kv);
    std::map<int32_t, Slot> kept;
    for (const KvSequence& sequence : options.kv) {
      kept[sequence.to] = slots_.at(sequence.from);
      EXPECT_EQ(std::ssize(kept[sequence.to].known), sequence.positions + (kept[sequence.to].idle ? 0 : 1))
          << "the last token is not computed";
    }
    slots_ = std::move(kept);
    return absl::OkStatus();
  }
  void UseVocabulary(const json_schema::VocabularyPtr& vocabulary) override { vocabulary_ = vocabulary; }
  // What Serving passed on.
  json_schema::VocabularyPtr vocabulary() const { return vocabulary_; }
  const Plan& plan() const override { return plan_; }
  const std::vector<InstalledPlan>& installed() const override { return installed_; }
  absl::Status Open(News news) override {
    absl::MutexLock lock(&mutex_);
    news_ = std::move(news);
    next_order_ = next_step_ = 0;
    return absl::OkStatus();
  }
  void Send(const OrderMessage& message) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(message.order.number, next_order_++);
    orders_.push_back(message);
    retired_ += std::holds_alternative<RetireOrder>(message.order.what) ? 1 : 0;
    if (!held_) Pump();
  }
  absl::StatusOr<DeviceStatistics> Statistics(int32_t) const override { return DeviceStatistics{}; }
  absl::Status Unload() override {
    Abandon();
    return absl::OkStatus();
  }
  absl::StatusOr<Handover> HandOver() override {
    absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(orders_.empty()) << "a step is under way";
    news_ = nullptr;
    return Handover{.all = true, .hashes = {}};
  }
  void Abandon() override {
    absl::MutexLock lock(&mutex_);
    news_ = nullptr;
    orders_.clear();
    if (!keeps_kv_) slots_.clear();
  }
  bool HaveKeptKv() override {
    absl::MutexLock lock(&mutex_);
    return keeps_kv_;
  }
  std::set<std::string> Free() override {
    absl::MutexLock lock(&mutex_);
    ++asked_;
    return free_;
  }

 private:
  struct Slot {
    std::vector<int32_t> known;
    uint64_t choice = 0;
    bool idle = false;  // `known` has the ids whose KV it keeps
  };
  void AwaitCount(int64_t FakeDevices::*of, int64_t count) const {
    absl::MutexLock lock(&mutex_);
    const auto reached = [this, of, count] { return this->*of >= count; };
    mutex_.Await(absl::Condition(&reached));
  }
  bool HasStep() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::ranges::any_of(orders_, [](const OrderMessage& each) { return std::holds_alternative<StepOrder>(each.order.what); });
  }
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (!orders_.empty()) (void)CarryOut();
  }
  // Carries out the oldest order. Returns whether it was a step.
  bool CarryOut() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const OrderMessage message = std::move(orders_.front());
    orders_.pop_front();
    if (const auto* admit = std::get_if<AdmitOrder>(&message.order.what)) {
      const Slot slot = slots_[admit->source >= 0 ? admit->source : admit->sequence];
      if (admit->computed > 0 && admit->source < 0 && !slot.idle) {
        EXPECT_EQ(slot.known, admit->prompt);
      }
      const bool has_kv = std::ssize(slot.known) >= admit->computed;
      EXPECT_TRUE(has_kv && std::equal(slot.known.begin(), slot.known.begin() + admit->computed, admit->prompt.begin()))
          << "KV of other ids";
      slots_[admit->sequence] = {.known = admit->prompt, .choice = message.sampling.choice.value_or(static_cast<uint64_t>(admit->request))};
    } else if (const auto* retire = std::get_if<RetireOrder>(&message.order.what)) {
      EXPECT_EQ(slots_.count(retire->sequence), 1u);
      Slot& slot = slots_[retire->sequence];
      EXPECT_LE(retire->kept, std::ssize(slot.known));
      slot.known.resize(static_cast<size_t>(retire->kept));
      slot.idle = true;
      if (retire->kept == 0) slots_.erase(retire->sequence);
    } else if (const auto* step = std::get_if<StepOrder>(&message.order.what)) {
      Run(*step);
      return true;
    }
    return false;
  }
  void Run(const StepOrder& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    sampled_.step = next_step_++, sampled_.ends_step = true;
    sampled_.tokens.clear();
    for (const MicroBatch& batch : step.microbatches) {
      for (const BatchRow& row : batch.rows) {
        if (!row.wants_logits) continue;
        Slot& slot = slots_.at(row.sequence);
        if (row.position + 1 == std::ssize(slot.known)) slot.known.push_back(Next(slot.known, slot.choice));
        sampled_.tokens.push_back({row.sequence, row.position + 1, slot.known[static_cast<size_t>(row.position) + 1]});
      }
    }
    sampled_.logits_hashes.assign(sampled_.tokens.size(), 0);
    sampled_.hash_states.assign(sampled_.tokens.size(), "");
    sampled_.scores.assign(sampled_.tokens.size(), std::nullopt);
    if (news_) news_(0, sampled_);
  }

  json_schema::VocabularyPtr vocabulary_;
  mutable absl::Mutex mutex_;
  Plan plan_;
  std::vector<InstalledPlan> installed_;
  News news_ ABSL_GUARDED_BY(mutex_);
  std::deque<OrderMessage> orders_ ABSL_GUARDED_BY(mutex_);
  std::map<int32_t, Slot> slots_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> free_ ABSL_GUARDED_BY(mutex_);
  SampledNews sampled_ ABSL_GUARDED_BY(mutex_);
  bool held_ ABSL_GUARDED_BY(mutex_) = false, may_install_ ABSL_GUARDED_BY(mutex_) = true, keeps_kv_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t next_order_ ABSL_GUARDED_BY(mutex_) = 0, next_step_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t retired_ ABSL_GUARDED_BY(mutex_) = 0, installs_ ABSL_GUARDED_BY(mutex_) = 0, asked_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t taken_over_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace lime
