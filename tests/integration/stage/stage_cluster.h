// Several engines of one plan in one process. Queues join them: these deliver late and in any order
// of links, but keep the order within a link. Each pair of devices has three links: for
// activations, for KV messages, and for KV messages that may wait.
#pragma once

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/flow.h"
#include "common/sampling/logits_hash.h"
#include "daemon/engine/stage_engine.h"
#include "gtest/gtest.h"
#include "planner/plan/baselines/eviction.h"
#include "planner/plan/cluster_plan_json.h"
#include "tests/integration/stage/stage_plans.h"

namespace lime {

// Chooses the likeliest token, and hashes the logits.
class GreedySampler final : public TokenSampler {
 public:
  void Admit(const AdmitOrder& order) override {
    // The hash of a sequence that continues under this plan continues.
    if (order.computed == 0 || ended_.erase(order.sequence) > 0) hashes_[order.sequence] = {};
  }
  void Retire(int32_t sequence) override { ended_.insert(sequence); }
  absl::StatusOr<int64_t> LogitsUsed(int32_t) override { return INT64_MAX; }
  absl::StatusOr<int32_t> Sample(const BatchRow& row, std::span<const float> logits) override {
    hashes_[row.sequence].Add(logits);
    return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
  }
  // The hash of all logits of the sequence that has, or last had, the slot.
  uint64_t hash(int32_t sequence) { return hashes_[sequence].value(); }
  std::string HashState(int32_t sequence) { return hashes_[sequence].State(); }
  void Continue(int32_t sequence, const std::string& state) {
    absl::StatusOr<LogitsHash> hash = LogitsHash::Continue(state);
    ASSERT_TRUE(hash.ok()) << hash.status();
    hashes_[sequence] = *std::move(hash);
  }

 private:
  std::map<int32_t, LogitsHash> hashes_;
  std::set<int32_t> ended_;  // slots of this plan whose sequence has ended
};

enum class Delivery {
  kInOrder,  // each message once, in the order of its link
  kHostile,  // activations in any order, and repeated; engines must refuse the repetitions
};

class StageCluster {
 public:
  using MakeSampler = std::function<std::unique_ptr<TokenSampler>()>;
  using Takeover = std::function<std::shared_ptr<KvTakeover>(int32_t device)>;
  using Adjust = std::function<void(int32_t device, StageEngine::Options& options)>;

  StageCluster(
      const std::string& model, const Plan& plan, uint64_t seed, int threads = 1, Delivery delivery = Delivery::kInOrder,
      const MakeSampler& make_sampler = [] { return std::make_unique<GreedySampler>(); }, const Takeover& takeover = {},
      const Adjust& adjust = {})
      : last_device_(plan.stages.back().device),
        random_(seed),
        delivery_(delivery),
        ahead_(EvictsKv(plan) ? AgainAhead(plan) : Flow::Of(plan).PromptsAhead()),
        ended_(plan.devices.size()) {
    for (int32_t d = 0; d < plan.NumDevices(); ++d) {
      StageEngine::Options options;
      options.weights = model, options.plan = plan, options.device = d;
      options.num_threads = threads;
      options.sampler = samplers_.emplace_back(make_sampler()).get();
      if (takeover) options.takeover = takeover(d);
      options.peers.send = [this, d](int32_t to, ActivationMessage message) { Queue(d, to, std::move(message)); };
      options.peers.sampled = [this](int64_t, std::span<const SampledToken> tokens) { OnSampled(tokens); };
      options.peers.step_ended = [this, d](int64_t step) { End(d, step); };
      options.peers.failed = [this](const absl::Status& status) { Fail(status); };
      if (adjust) adjust(d, options);
      auto engine = StageEngine::Install(std::move(options));
      EXPECT_TRUE(engine.ok()) << engine.status() << "\n" << ToJsonText(plan);
      if (!engine.ok()) return;
      engines_.push_back(*std::move(engine));
    }
    thread_ = std::thread([this] { Deliver(); });
  }

  ~StageCluster() {
    EndDelivery();
    engines_.clear();
  }

  // Messages in flight are lost.
  void EndDelivery() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
      changed_.SignalAll();
    }
    if (thread_.joinable()) thread_.join();
  }

  bool ok() const { return thread_.joinable(); }
  StageEngine& engine(int d) { return *engines_[d]; }
  // The sampler that chooses the tokens.  REQUIRES: no test set another kind
  GreedySampler& sampler() { return static_cast<GreedySampler&>(*samplers_[static_cast<size_t>(last_device_)]); }
  // Bytes of the messages between parts of the head.
  int64_t head_partial_bytes() {
    absl::MutexLock lock(&mutex_);
    return head_partial_bytes_;
  }

  // Sends an order to every device, with the next number.
  void SendOrder(decltype(Order::what) what) {
    const Order order{.number = next_order_++, .what = std::move(what)};
    if (std::holds_alternative<StepOrder>(order.what)) ++steps_;
    for (auto& engine : engines_) {
      const absl::Status status = engine->OnOrder(order);
      EXPECT_TRUE(status.ok()) << status;
    }
  }

  // Waits until `count` tokens were sampled for the sequence, over all requests in its slot.
  std::vector<int32_t> Await(int32_t sequence, size_t count) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    absl::MutexLock lock(&mutex_);
    while (tokens_[sequence].size() < count && status_.ok()) {
      if (changed_.WaitWithDeadline(&mutex_, deadline)) break;
    }
    EXPECT_TRUE(status_.ok()) << status_;
    EXPECT_GE(tokens_[sequence].size(), count) << "nothing came for a minute";
    return tokens_[sequence];
  }

  // Waits until all steps that were given have ended everywhere.
  void AwaitSteps() {
    absl::MutexLock lock(&mutex_);
    const auto ended = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return !status_.ok() || std::ranges::all_of(ended_, [this](int64_t steps) { return steps == steps_; });
    };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&ended), absl::Seconds(60))) << "not all steps end";
    EXPECT_TRUE(status_.ok()) << status_;
  }

  absl::Status status() {
    absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  using Link = std::pair<std::pair<int32_t, int32_t>, int>;  // from, to, and the kind of messages

  void Queue(int32_t from, int32_t to, ActivationMessage message) {
    absl::MutexLock lock(&mutex_);
    if (message.header.payload == Payload::kHeadPartial) head_partial_bytes_ += message.header.bytes;
    links_[{{from, to}, message.header.hosting ? message.may_wait ? 2 : 1 : 0}].push_back(std::move(message));
    changed_.SignalAll();
  }

  void OnSampled(std::span<const SampledToken> tokens) {
    absl::MutexLock lock(&mutex_);
    for (const SampledToken& token : tokens) tokens_[token.sequence].push_back(token.token);
    changed_.SignalAll();
  }

  void End(int32_t device, int64_t step) {
    absl::MutexLock lock(&mutex_);
    ended_[static_cast<size_t>(device)] = step + 1;
    changed_.SignalAll();
  }

  // The number of messages of the link that may be delivered now. Tests give orders further ahead
  // than a coordinator does, so messages of steps that a coordinator would not have ordered yet
  // must wait.
  size_t MayCome(const Link& link) {
    const auto early = [&](const ActivationMessage& message) {
      if (message.header.hosting) return false;
      return message.header.payload != Payload::kToken && message.header.step >= ended_[static_cast<size_t>(link.first.second)] + ahead_;
    };
    const std::deque<ActivationMessage>& queue = links_[link];
    return static_cast<size_t>(std::ranges::find_if(queue, early) - queue.begin());
  }

  void Fail(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    status_.Update(status);
    changed_.SignalAll();
  }

  // Delivers one message at a time, of a random link.
  void Deliver() {
    absl::MutexLock lock(&mutex_);
    while (true) {
      std::vector<Link> ready;
      for (const auto& [link, queue] : links_) {
        if (MayCome(link) > 0) ready.push_back(link);
      }
      if (stopping_) return;
      if (ready.empty()) {
        changed_.Wait(&mutex_);
        continue;
      }
      const Link link = ready[random_() % ready.size()];
      ActivationMessage message = Pop(links_[link], MayCome(link));
      const bool late = random_() % 8 == 0;
      mutex_.Unlock();
      if (late) std::this_thread::sleep_for(std::chrono::microseconds(300));
      StageEngine& engine = *engines_[static_cast<size_t>(link.first.second)];
      if (message.header.hosting) {
        const absl::Status status = engine.OnHosting(link.first.first, message.payload);
        EXPECT_TRUE(status.ok()) << status;
        mutex_.Lock();
        continue;
      }
      if (delivery_ == Delivery::kHostile) delivered_.emplace_back(&engine, message);
      const absl::Status status = engine.OnActivation(std::move(message));
      EXPECT_TRUE(status.ok()) << status;
      if (delivery_ == Delivery::kHostile) Repeat();
      mutex_.Lock();
    }
  }

  ActivationMessage Pop(std::deque<ActivationMessage>& queue, size_t may_come) {
    const bool any = delivery_ == Delivery::kHostile && queue.front().header.payload != Payload::kToken;
    const auto it = queue.begin() + static_cast<std::ptrdiff_t>(any ? random_() % may_come : 0);
    ActivationMessage message = std::move(*it);
    queue.erase(it);
    return message;
  }

  // Delivers the last message and an older one again.
  void Repeat() {
    for (const size_t i : {delivered_.size() - 1, static_cast<size_t>(random_() % delivered_.size())}) {
      if (delivered_[i].second.payload.empty()) continue;  // no token was sampled
      EXPECT_FALSE(delivered_[i].first->OnActivation(delivered_[i].second).ok());
    }
  }

  const int32_t last_device_;
  std::vector<std::unique_ptr<TokenSampler>> samplers_;  // by device
  std::vector<std::unique_ptr<StageEngine>> engines_;
  std::mt19937_64 random_;
  const Delivery delivery_;
  const int64_t ahead_;                                                // steps
  std::vector<int64_t> ended_;                                         // steps, by device
  std::vector<std::pair<StageEngine*, ActivationMessage>> delivered_;  // with kHostile
  int64_t next_order_ = 0, steps_ = 0;                                 // given
  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::map<Link, std::deque<ActivationMessage>> links_;
  std::map<int32_t, std::vector<int32_t>> tokens_;
  int64_t head_partial_bytes_ = 0;
  absl::Status status_;
  bool stopping_ = false;
  std::thread thread_;
};

// Gives all orders at once: prompts in chunks, then every token.
inline void OrderAll(StageCluster& cluster, const Plan& plan, const std::vector<Reference>& requests) {
  for (int32_t s = 0; s < static_cast<int32_t>(requests.size()); ++s) {
    const std::vector<int32_t>& prompt = requests[s].prompt;
    cluster.SendOrder(AdmitOrder{.sequence = s, .request = s, .positions = kContext, .prompt = prompt});
    StepOrder step;
    for (size_t at = 0; at < prompt.size();) {
      MicroBatch& batch = step.microbatches.emplace_back();
      for (int64_t i = 0; i < plan.prefill_chunk && at < prompt.size(); ++i, ++at) {
        batch.rows.push_back(
            {.sequence = s, .token = prompt[at], .position = static_cast<int32_t>(at), .wants_logits = at + 1 == prompt.size()});
      }
      if (at < prompt.size() && static_cast<int32_t>(step.microbatches.size()) < plan.chunks_per_sweep) continue;
      cluster.SendOrder(std::exchange(step, {}));
    }
  }
  for (int i = 0; i + 1 < kNewTokens; ++i) {
    StepOrder step;
    for (int32_t s = 0; s < static_cast<int32_t>(requests.size()); ++s) {
      if (s % plan.batch == 0) step.microbatches.emplace_back();
      step.microbatches.back().rows.push_back(
          {.sequence = s, .token = kSampledToken, .position = static_cast<int32_t>(requests[s].prompt.size()) + i, .wants_logits = true});
    }
    cluster.SendOrder(std::move(step));
  }
}

}  // namespace lime
