#include "tests/daemon/rpc/fake_cluster.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "lime/v1/bulk.grpc.pb.h"
#include "planner/plan/kv_spill.h"
#include "tests/planner/small_cluster.h"

namespace lime {
namespace {

// What any device makes of a row's hidden state: order matters.
uint64_t MixHidden(uint64_t hidden, int stage) {
  hidden = (hidden ^ (static_cast<uint64_t>(stage) + 0x9e3779b97f4a7c15)) * 0xff51afd7ed558ccd;
  return hidden ^ (hidden >> 29);
}
uint64_t EmbedFake(int32_t token, int32_t position) {
  return static_cast<uint64_t>(token) * 1000003 + static_cast<uint64_t>(position);
}
int32_t HeadFake(uint64_t hidden) {
  return static_cast<int32_t>(hidden % kFakeVocab);
}

}  // namespace

std::vector<int32_t> FakeTokens(std::vector<int32_t> ids, int count, int stages) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) {
    uint64_t hidden = EmbedFake(ids.back(), static_cast<int32_t>(ids.size()) - 1);
    for (int s = 0; s < stages; ++s) hidden = MixHidden(hidden, s);
    ids.push_back(HeadFake(hidden));
    tokens.push_back(ids.back());
  }
  return tokens;
}

uint64_t FakeKv(int32_t layer, int64_t request, int64_t position) {
  return MixHidden(EmbedFake(static_cast<int32_t>(request), static_cast<int32_t>(position)), layer);
}

namespace {

class FakeStage final : public StageEngine {
 public:
  explicit FakeStage(StageSetup setup, bool hands_over_kv = true)
      : setup_(std::move(setup)), layers_(LayersOn(setup_.plan, setup_.device)), hands_over_kv_(hands_over_kv) {}

  // Of the plan before.
  absl::Status TakeOver() {
    absl::MutexLock lock(&mutex_);
    if (setup_.takeover == nullptr) return absl::OkStatus();
    KvTakeover& from = *setup_.takeover;
    for (const int32_t layer : layers_) {
      const auto sink = [&](int32_t slot, int64_t first, std::span<const std::byte> pages) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        const KvSequence& sequence = *std::ranges::find(from.sequences, slot, &KvSequence::from);
        std::vector<uint64_t>& kv = kv_[{layer, sequence.to}];
        for (int64_t at = first * kPageTokens; !pages.empty(); pages = pages.subspan(static_cast<size_t>(setup_.plan.page_bytes))) {
          for (int64_t i = 0; i < kPageTokens && at < sequence.positions; ++i, ++at) {
            kv.resize(static_cast<size_t>(at + 1));
            std::memcpy(&kv.back(), pages.data() + static_cast<size_t>(i) * sizeof(uint64_t), sizeof(uint64_t));
          }
        }
        return absl::OkStatus();
      };
      std::vector<KvExtent> wanted;
      for (const KvSequence& sequence : from.sequences)
        wanted.push_back({.sequence = sequence.from, .first = 0, .end = KvPages::PagesFor(sequence.positions, 1)});
      LIME_RETURN_IF_ERROR(from.read(layer, numerics_id(), wanted, sink));
    }
    from.here.reset();
    return from.let_go();
  }

  absl::StatusOr<PlanHandover> HandOver() override {
    absl::MutexLock lock(&mutex_);
    if (!hands_over_kv_) return absl::FailedPreconditionError("that is how it is");
    const Plan& plan = setup_.plan;
    const int64_t most = plan.sequences * KvPages::PagesFor(plan.context, std::ssize(layers_));
    KvPages pages({.num_pages = most, .num_layers = std::ssize(layers_), .max_sequences = plan.sequences});
    const auto memory = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(most * plan.page_bytes));
    for (int32_t slot = 0; slot < plan.sequences && !layers_.empty(); ++slot) {
      const int64_t positions = std::ssize(kv_[{layers_.front(), slot}]);
      if (positions > 0) LIME_RETURN_IF_ERROR(pages.Reserve(slot, positions));
      for (size_t l = 0; l < layers_.size(); ++l) {
        const std::vector<uint64_t>& kv = kv_[{layers_[l], slot}];
        for (int64_t p = 0; p < positions; ++p) {
          const int32_t page = pages.Pages(slot, static_cast<int64_t>(l))[static_cast<size_t>(p / kPageTokens)];
          std::memcpy(memory->data() + page * plan.page_bytes + p % kPageTokens * static_cast<int64_t>(sizeof(uint64_t)),
                      &kv[static_cast<size_t>(p)], sizeof(uint64_t));
        }
      }
    }
    return PlanHandover{.kv = std::make_shared<KvHandover>(KvHandover::Content{.numerics_id = numerics_id(),
                                                                               .page_bytes = plan.page_bytes,
                                                                               .layers = layers_,
                                                                               .sequences = plan.sequences,
                                                                               .memory = {memory, memory->data()},
                                                                               .memory_bytes = std::ssize(*memory),
                                                                               .pages = std::move(pages),
                                                                               .file = nullptr})};
  }

  absl::Status OnOrder(const Order& order) override {
    absl::MutexLock lock(&mutex_);
    if (order.number != next_order_) return absl::InvalidArgumentError(absl::StrCat("order ", order.number, " is not ", next_order_));
    ++next_order_;
    orders_.push_back(order);
    Pump();
    return absl::OkStatus();
  }

  absl::Status OnActivation(ActivationMessage message) override {
    absl::MutexLock lock(&mutex_);
    const ActivationHeader& header = message.header;
    if (header.payload == Payload::kToken) {
      LIME_ASSIGN_OR_RETURN(const std::vector<SampledToken> tokens, ParseSampledTokens(message.payload, 1024));
      OnTokens(header.step, tokens);
    } else if (!arrived_.emplace(std::tuple(header.step, header.stage + 1, header.microbatch), message.payload).second) {
      return absl::InvalidArgumentError("this micro-batch is here already");
    }
    Pump();
    return absl::OkStatus();
  }

  DeviceStatistics stats() const override {
    absl::MutexLock lock(&mutex_);
    return {.steps = step_};
  }
  std::string numerics_id() const override { return "fake-1"; }

 private:
  int NumStages() const { return static_cast<int>(setup_.plan.stages.size()); }
  int32_t DeviceOf(int stage) const { return setup_.plan.stages[static_cast<size_t>(stage)].device; }

  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (true) {
      if (!current_) {
        if (orders_.empty()) return;
        Order order = std::move(orders_.front());
        orders_.pop_front();
        if (auto* step = std::get_if<StepOrder>(&order.what)) {
          current_ = std::move(*step);
          next_.assign(static_cast<size_t>(NumStages()), 0);
        } else if (const auto* admit = std::get_if<AdmitOrder>(&order.what)) {
          from_step_[admit->sequence] = step_;
          std::erase_if(latest_, [&](const auto& entry) { return entry.first.first == admit->sequence; });
          if (!Begins(*admit)) return;
          if (setup_.sampler != nullptr) setup_.sampler->Admit(*admit);
        } else if (const auto* retire = std::get_if<RetireOrder>(&order.what)) {
          for (const int32_t layer : layers_) kv_[{layer, retire->sequence}].clear();
          if (setup_.sampler != nullptr) setup_.sampler->Retire(retire->sequence);
        }
        continue;
      }
      bool moved = false, ended = true;
      for (int s = 0; s < NumStages(); ++s) {
        if (DeviceOf(s) != setup_.device) continue;
        while (next_[static_cast<size_t>(s)] < static_cast<int>(current_->microbatches.size()) && Visit(s, next_[static_cast<size_t>(s)])) {
          ++next_[static_cast<size_t>(s)];
          moved = true;
        }
        ended = ended && next_[static_cast<size_t>(s)] == static_cast<int>(current_->microbatches.size());
      }
      if (ended) {
        if (!KeepKv(*current_)) return;
        current_.reset();
        setup_.peers.step_ended(step_++);
      } else if (!moved) {
        return;
      }
    }
  }

  // KV of what is computed already is this request's.
  bool Begins(const AdmitOrder& admit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    requests_[admit.sequence] = admit.request;
    for (const int32_t layer : layers_) {
      const std::vector<uint64_t>& kv = kv_[{layer, admit.sequence}];
      if (std::ssize(kv) != admit.computed) return Fail(absl::StrCat("KV of ", kv.size(), " positions, not ", admit.computed));
      for (size_t p = 0; p < kv.size(); ++p) {
        if (kv[p] != FakeKv(layer, admit.request, static_cast<int64_t>(p)))
          return Fail(absl::StrCat("KV of position ", p, " is another's"));
      }
    }
    return true;
  }

  bool KeepKv(const StepOrder& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const MicroBatch& batch : step.microbatches) {
      for (const BatchRow& row : batch.rows) {
        for (const int32_t layer : layers_) {
          std::vector<uint64_t>& kv = kv_[{layer, row.sequence}];
          if (std::ssize(kv) != row.position) return Fail(absl::StrCat("position ", row.position, " behind ", kv.size()));
          kv.push_back(FakeKv(layer, requests_[row.sequence], row.position));
        }
      }
    }
    return true;
  }

  bool Visit(int stage, int m) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::vector<BatchRow>& rows = current_->microbatches[static_cast<size_t>(m)].rows;
    std::vector<std::byte> bytes;
    if (stage == 0) {
      for (const BatchRow& row : rows) {
        if (row.token == kSampledToken && !latest_.contains({row.sequence, row.position})) return false;
      }
      bytes.resize(rows.size() * sizeof(uint64_t));
      for (size_t i = 0; i < rows.size(); ++i) {
        const int32_t token = rows[i].token == kSampledToken ? latest_[{rows[i].sequence, rows[i].position}] : rows[i].token;
        latest_.erase({rows[i].sequence, rows[i].position});
        const uint64_t hidden = EmbedFake(token, rows[i].position);
        std::memcpy(bytes.data() + i * sizeof(hidden), &hidden, sizeof(hidden));
      }
    } else {
      const auto found = arrived_.find({step_, stage, m});
      if (found == arrived_.end()) return false;
      bytes = std::move(found->second);
      arrived_.erase(found);
      if (bytes.size() != rows.size() * sizeof(uint64_t)) return Fail("hidden states of another size");
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      uint64_t hidden = 0;
      std::memcpy(&hidden, bytes.data() + i * sizeof(hidden), sizeof(hidden));
      hidden = MixHidden(hidden, stage);
      std::memcpy(bytes.data() + i * sizeof(hidden), &hidden, sizeof(hidden));
    }
    return stage + 1 < NumStages() ? Hand(stage, m, Payload::kHidden, std::move(bytes)) : Sample(m, bytes);
  }

  bool Sample(int m, const std::vector<std::byte>& bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::vector<BatchRow>& rows = current_->microbatches[static_cast<size_t>(m)].rows;
    std::vector<SampledToken> tokens;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!rows[i].wants_logits) continue;
      uint64_t hidden = 0;
      std::memcpy(&hidden, bytes.data() + i * sizeof(hidden), sizeof(hidden));
      std::vector<float> logits(kFakeVocab, 0);
      logits[static_cast<size_t>(HeadFake(hidden))] = 1;
      const absl::StatusOr<int32_t> token = setup_.sampler->Sample(rows[i], logits);
      if (!token.ok()) return Fail(std::string(token.status().message()));
      tokens.push_back({rows[i].sequence, rows[i].position + 1, *token});
    }
    setup_.peers.sampled(step_, tokens);
    if (DeviceOf(0) != setup_.device) return Hand(NumStages() - 1, m, Payload::kToken, Encode(tokens));
    OnTokens(step_, tokens);
    return true;
  }

  // Those of who had the slot before are nobody's.
  void OnTokens(int64_t step, const std::vector<SampledToken>& tokens) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const SampledToken& token : tokens) {
      if (step >= from_step_[token.sequence]) latest_[{token.sequence, token.position}] = token.token;
    }
  }

  bool Hand(int stage, int m, Payload payload, std::vector<std::byte> bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const ActivationHeader header{.epoch = setup_.plan.epoch,
                                  .step = step_,
                                  .stage = stage,
                                  .microbatch = m,
                                  .payload = payload,
                                  .bytes = static_cast<int64_t>(bytes.size())};
    setup_.peers.send(DeviceOf((stage + 1) % NumStages()), {header, std::move(bytes)});
    return true;
  }

  bool Fail(const std::string& why) {
    setup_.peers.failed(absl::InternalError(why));
    return false;
  }

  const StageSetup setup_;
  const std::vector<int32_t> layers_;  // whose KV is here
  const bool hands_over_kv_;
  mutable absl::Mutex mutex_;
  std::map<std::pair<int32_t, int32_t>, std::vector<uint64_t>> kv_ ABSL_GUARDED_BY(mutex_);  // by layer and slot
  std::map<int32_t, int64_t> requests_ ABSL_GUARDED_BY(mutex_);                              // by slot
  std::deque<Order> orders_ ABSL_GUARDED_BY(mutex_);
  int64_t next_order_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<StepOrder> current_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> next_ ABSL_GUARDED_BY(mutex_);                                  // micro-batch, by stage
  std::map<int32_t, int64_t> from_step_ ABSL_GUARDED_BY(mutex_);                   // of the sequence in a slot
  std::map<std::pair<int32_t, int32_t>, int32_t> latest_ ABSL_GUARDED_BY(mutex_);  // tokens, by sequence and position
  std::map<std::tuple<int64_t, int, int>, std::vector<std::byte>> arrived_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

Plan MakeStages(const std::vector<int32_t>& order, int32_t sequences, int32_t batch) {
  const std::vector<ClusterDevice> boards = {Board("a", kGiB), Board("b", kGiB), Board("c", kGiB)};
  PlanRequest request;
  request.model_name = "small", request.context = 256, request.sequences = sequences, request.batches = {batch};
  const PlanProblem problem = *MakePlanProblem(SmallModel(), boards, request);
  PlanChoice choice{.microbatches = (sequences + batch - 1) / batch, .batch = batch};
  // Whole blocks, the head's parts together.
  std::vector<int> begins;
  const std::vector<PlanPart>& parts = problem.head.parts;
  for (size_t p = 0; p < parts.size(); ++p) {
    if (p == 0 || parts[p].block != parts[p - 1].block) begins.push_back(static_cast<int>(p));
  }
  const size_t stages = order.size();
  for (size_t j = 0; j < stages; ++j) {
    const int hi = j + 1 == stages ? static_cast<int>(parts.size()) : begins[begins.size() * (j + 1) / stages];
    choice.stages.stages.push_back({.device = order[j], .lo = begins[begins.size() * j / stages], .hi = hi});
  }
  return *MakePlan(problem, choice);
}

std::unique_ptr<StageEngine> MakeFakeStage(StageSetup setup, bool hands_over_kv) {
  return std::make_unique<FakeStage>(std::move(setup), hands_over_kv);
}

DeviceServer::Options FakeDevice(const std::string& name, bool hands_over_kv) {
  DeviceServer::Options options;
  options.health.name = name;
  options.plans.weights = "nowhere";
  options.plans.make_stage = [hands_over_kv](StageSetup setup) -> absl::StatusOr<std::unique_ptr<StageEngine>> {
    if (setup.load.progress) setup.load.progress({.done = 1, .total = 2});
    auto stage = std::make_unique<FakeStage>(std::move(setup), hands_over_kv);
    LIME_RETURN_IF_ERROR(stage->TakeOver());
    return stage;
  };
  return options;
}

std::shared_ptr<void> StartOtherServer(int& port) {
  struct Other {
    v1::Bulk::Service nothing;
    std::unique_ptr<grpc::Server> server;
  };
  const auto other = std::make_shared<Other>();
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&other->nothing);
  other->server = builder.BuildAndStart();
  return other;
}

}  // namespace lime
