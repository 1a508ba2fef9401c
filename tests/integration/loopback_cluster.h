// A cluster in this process: a StageSession for each device of a plan, joined by links that lie in
// memory. A link passes messages in order to a thread of the receiving device. It allocates nothing
// after it has reached its largest content.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "coordinator/serving/devices.h"
#include "daemon/engine/stage_engine.h"
#include "daemon/stage/stage_session.h"
#include "gtest/gtest.h"
#include "planner/base/recycled_queue.h"
#include "planner/problem/plan_problem.h"

namespace lime {

// The messages that have arrived for one device.
class Mailbox {
 public:
  using Receive = std::function<void(int32_t from, ActivationMessage message)>;

  explicit Mailbox(Receive receive) : receive_(std::move(receive)) {
    for (RecycledQueue<Letter>* letters : {&letters_, &received_}) letters->Reserve(64, [](Letter&) {});
    thread_ = std::thread([this] { Deliver(); });
  }
  ~Mailbox() {
    {
      absl::MutexLock lock(&mutex_);
      closed_ = true;
    }
    thread_.join();
  }

  void Put(int32_t from, ActivationMessage message) {
    absl::MutexLock lock(&mutex_);
    Letter& letter = letters_.Push();
    letter.from = from, letter.message = std::move(message);
  }

 private:
  struct Letter {
    int32_t from = 0;
    ActivationMessage message;
  };

  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_ || !letters_.empty(); }
  void Deliver() {
    while (true) {
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(this, &Mailbox::HasNews));
        if (closed_) return;
        std::swap(letters_, received_);
      }
      for (size_t i = 0; i < received_.size(); ++i) receive_(received_[i].from, std::move(received_[i].message));
      received_.clear();
    }
  }

  const Receive receive_;
  absl::Mutex mutex_;
  RecycledQueue<Letter> letters_ ABSL_GUARDED_BY(mutex_), received_;  // received_: the thread's
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

class LoopbackCluster final : public Devices {
 public:
  LoopbackCluster(std::string weights, StageFactory make_stage) : weights_(std::move(weights)), make_stage_(std::move(make_stage)) {}
  ~LoopbackCluster() override { Abandon(); }

  absl::Status Install(Plan plan, const InstallOptions&) override {
    plan_ = std::move(plan);
    plan_.epoch = 1;
    for (int32_t d = 0; d < plan_.NumDevices(); ++d) {
      auto session = std::make_shared<StageSession>(
          StageSession::Options{.call = {.plan = plan_,
                                         .device = d,
                                         .addresses = std::vector<std::string>(static_cast<size_t>(plan_.NumDevices())),
                                         .weights = weights_},
                                .make_stage = make_stage_,
                                .transport = std::make_unique<Memory>(*this)});
      LIME_ASSIGN_OR_RETURN(InstalledPlan installed, session->Open());
      sessions_.push_back(std::move(session));
      installed_.push_back(std::move(installed));
    }
    for (const auto& session : sessions_) {
      mailboxes_.push_back(std::make_unique<Mailbox>([this, session = session.get()](int32_t from, ActivationMessage message) {
        const absl::Status accepted = session->OnActivation(from, std::move(message));
        EXPECT_TRUE(accepted.ok() || closing_) << accepted;
      }));
    }
    return absl::OkStatus();
  }
  const Plan& plan() const override { return plan_; }
  const std::vector<InstalledPlan>& installed() const override { return installed_; }
  void UseVocabulary(const json_schema::VocabularyPtr& vocabulary) override {
    for (const auto& session : sessions_) session->UseVocabulary(vocabulary);
  }
  absl::Status Open(News news) override {
    news_ = std::move(news);
    for (size_t d = 0; d < sessions_.size(); ++d)
      LIME_RETURN_IF_ERROR(sessions_[d]->SetSink([this, d](const FromDevice& what) { news_(static_cast<int32_t>(d), what); }));
    return absl::OkStatus();
  }
  void Send(const OrderMessage& order) override {
    for (size_t d = 0; d < sessions_.size(); ++d) {
      const absl::Status status = sessions_[d]->OnOrder(order);
      if (!status.ok()) news_(static_cast<int32_t>(d), FailedNews{status});
    }
  }
  absl::StatusOr<DeviceStatistics> Statistics(int32_t device) const override {
    return sessions_[static_cast<size_t>(device)]->Statistics();
  }
  absl::Status Unload() override {
    Abandon();
    return absl::OkStatus();
  }
  absl::StatusOr<Handover> HandOver() override { return absl::UnimplementedError("another plan"); }
  void Abandon() override {
    closing_ = true;
    for (const auto& session : sessions_) session->Close();
    mailboxes_.clear();
    sessions_.clear();
  }
  std::set<std::string> Free() override { return DevicesUsed(plan_); }

 private:
  class MemoryLink final : public Link {
   public:
    MemoryLink(Mailbox& mailbox, int32_t from) : mailbox_(mailbox), from_(from) {}
    void Send(ActivationMessage activation) override { mailbox_.Put(from_, std::move(activation)); }
    Counts sent() const override { return {}; }
    std::optional<Rate> rate() const override { return std::nullopt; }
    void Tick() override {}

   private:
    Mailbox& mailbox_;
    const int32_t from_;
  };
  class Memory final : public Transport {
   public:
    explicit Memory(LoopbackCluster& cluster) : cluster_(cluster) {}
    std::unique_ptr<Link> OpenLink(LinkOptions options) override {
      return std::make_unique<MemoryLink>(*cluster_.mailboxes_[static_cast<size_t>(options.to)], options.from);
    }
    absl::Status ReadKv(const KvHolder&, const KvReadCall&, const std::atomic<bool>&, const KvTakeover::PageSink&) override {
      return absl::UnimplementedError("another plan");
    }
    void EndKvReads() override {}

   private:
    LoopbackCluster& cluster_;
  };

  const std::string weights_;
  const StageFactory make_stage_;
  Plan plan_;
  std::vector<InstalledPlan> installed_;
  std::vector<std::shared_ptr<StageSession>> sessions_;
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;  // by device
  News news_;
  std::atomic<bool> closing_ = false;  // messages in flight may be refused
};

struct SplitShape {
  int32_t devices = 2;
  int rounds = 1;  // number of times that stages go round the devices
  int32_t sequences = 1, batch = 1;
  int64_t context = 512, prompt = 200;
  bool split_head = false;            // ranges of the head are on all devices in turn
  std::vector<int64_t> neuron_rows;   // PlanRequest::neuron_rows
  std::vector<DeciderForm> deciders;  // PlanRequest::deciders
};

// A plan with everything in memory, but for neurons, and the layers in equal shares.
inline absl::StatusOr<Plan> SplitPlan(const ModelSpec& spec, const SplitShape& shape) {
  std::vector<ClusterDevice> devices(static_cast<size_t>(shape.devices));
  for (size_t d = 0; d < devices.size(); ++d) {
    devices[d] = {.name = std::string(1, static_cast<char>('a' + d)), .budget = 16 * kGiB};
    devices[d].profile.read_bytes_per_second = 1e10;
    devices[d].profile.flops = 1e11;
    devices[d].profile.disk = {{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 1e9, .latency_ms = 0.1}};
  }
  PlanRequest request{.context = shape.context, .sequences = shape.sequences, .batches = {shape.batch}, .prompt_tokens = shape.prompt};
  request.chunks = {64};
  request.neuron_rows = shape.neuron_rows, request.deciders = shape.deciders;
  LIME_ASSIGN_OR_RETURN(const PlanProblem problem, MakePlanProblem(spec, devices, request));
  PlanChoice choice{.microbatches = (shape.sequences + shape.batch - 1) / shape.batch, .batch = shape.batch};
  choice.first_token = {
      .feasible = true, .ms = 1, .chunk_rows = 64, .chunks = static_cast<int32_t>((shape.prompt + 63) / 64), .chunks_per_sweep = 1};
  const Instance& instance = problem.instance;
  std::vector<Stage>& stages = choice.stages.stages;
  for (int b = 0; b < instance.NumBlocks(); ++b) {
    const bool range = shape.split_head && instance.blocks[b].kind == Instance::Kind::kHead;
    const auto begun = static_cast<int>(stages.size());
    const bool share = !instance.ContinuesBlock(b) && b * shape.rounds * shape.devices >= begun * instance.NumBlocks();
    if (b == 0 || range || share) {
      stages.push_back({begun % shape.devices, b, b + 1});
    } else {
      stages.back().hi = b + 1;
    }
  }
  return MakePlan(problem, choice);
}

}  // namespace lime
