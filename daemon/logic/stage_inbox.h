// What comes to one device of a pipeline from outside: orders, hidden states, logits so far, sampled tokens. All of it is checked against
// the plan before anything changes, and waits here until the step that it is for.
//
// Pure.   Thread: the owner's, under its lock.   Owner: StageEngine.
// Invariant: what a peer sends is used once, in the step and by the stage that it is for. Hidden states that wait take at most
// WaitingBytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "common/activation.h"
#include "common/order.h"
#include "planner/base/bytes.h"
#include "planner/base/recycled_queue.h"
#include "planner/base/status.h"
#include "planner/plan/kv_eviction.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/plan.h"

namespace lime {

class StageInbox {
 public:
  using Visit = std::pair<int32_t, int32_t>;  // of a micro-batch to a stage: stage, micro-batch

  struct Shape {
    int64_t vocab_size = 0;
    Bytes row_bytes = 0;       // of the hidden state of one token
    int32_t microbatches = 1;  // of a step, at most
  };

  // REQUIRES: `plan` is valid and outlives this; `device` is one of it.
  StageInbox(const Plan& plan, int32_t device, const Shape& shape);

  // Bytes of hidden states, and of logits between parts of the head, that may wait: of all steps that a peer may be ahead.
  static Bytes WaitingBytes(const Plan& plan, int32_t device, Bytes row_bytes);

  // ---- Orders, in the order of their numbers

  // InvalidArgument, and nothing has changed, where the order's number is not the next one or it names what is not there.
  absl::Status AddOrder(const Order& order);
  // The oldest one that was not taken; null where there is none.
  const Order* NextOrder() const { return orders_.empty() ? nullptr : &orders_.front(); }
  // Valid until the next AddOrder.  REQUIRES: NextOrder() is not null
  Order& TakeOrder();

  // ---- From peers

  // InvalidArgument, and nothing has changed, for what does not belong to this plan and step; ResourceExhausted where too much waits. The
  // visit that has come, where it is one of the step under way: what is early is told by BeginStep.
  absl::StatusOr<std::optional<Visit>> OnActivation(ActivationMessage activation);
  // Tokens that this device has sampled itself, or that OnActivation has checked.
  void TakeTokens(int64_t step, std::span<const SampledToken> tokens);

  // ---- Steps

  // A sequence takes its slot: what was sampled for one that had it before is not its own.
  void Admit(const AdmitOrder& admit);

  // The next step has begun, with these micro-batches, in whose place those of the step before are left: their memory serves the next
  // order. Returns the visits that came before.
  std::vector<Visit> BeginStep(std::vector<MicroBatch>&& batches);
  void EndStep();

  // On the first device: the next micro-batch of the step under way, in order, whose tokens are all known; they are in its rows then.
  std::optional<int32_t> NextWithTokens();

  // The payload that a visit of the step under way begins with; empty where none has come.
  std::vector<std::byte> TakeInput(const Visit& visit);

  int32_t num_batches() const { return static_cast<int32_t>(batches_.size()); }  // of the step under way
  const MicroBatch& batch(int32_t microbatch) const { return batches_[static_cast<size_t>(microbatch)]; }
  // With evicted positions ahead of its rows; their tokens are known on the first device alone.
  MicroBatch WholeBatch(int32_t microbatch) const;
  bool step_under_way() const { return step_under_way_; }
  int64_t steps_begun() const { return steps_begun_; }

 private:
  struct Latest {
    int64_t from_step = 0;  // its first step: what was sampled before belongs to the sequence that had the slot
    int32_t position = -1;
    int32_t token = 0;
    std::vector<int32_t> known;  // by position, on the first device of a plan that evicts
  };

  absl::Status Check(const Order& order) const;
  absl::Status Check(const AdmitOrder& admit) const;
  absl::Status Check(const RetireOrder& retire) const { return CheckSlot(retire.sequence); }
  absl::Status Check(const ResidencyOrder& residency) const;
  absl::Status Check(const StepOrder& step) const;
  absl::Status CheckSlot(int32_t sequence) const;
  absl::Status CheckIds(std::span<const int32_t> ids) const;
  absl::Status CheckBatch(const MicroBatch& batch) const;
  absl::Status CheckOwn(const MicroBatch& batch) const;
  absl::Status CheckActivation(const ActivationMessage& activation) const;
  absl::Status CheckVisit(const Visit& visit) const;
  absl::Status CheckPayload(int32_t stage, const MicroBatch* batch, std::span<const std::byte> payload) const;
  absl::Status CheckTokens(int64_t step, std::span<const SampledToken> tokens) const;
  bool FillTokens(MicroBatch& batch) const;

  bool KeepsTokens() const { return IsFirst() && EvictsKv(plan_); }
  int64_t MaxEarlySteps() const;
  int64_t steps_ended() const { return steps_begun_ - (step_under_way_ ? 1 : 0); }
  bool IsUnderWay(int64_t step) const { return step_under_way_ && step + 1 == steps_begun_; }
  bool IsFirst() const { return plan_.stages.front().device == device_; }

  const Plan& plan_;
  const int32_t device_;
  const Shape shape_;
  const bool grows_kv_;          // of the plan
  const Bytes waiting_allowed_;  // WaitingBytes of the plan

  RecycledQueue<Order> orders_;  // not carried out yet
  int64_t next_order_ = 0;
  int64_t steps_begun_ = 0;
  bool step_under_way_ = false;
  std::vector<MicroBatch> batches_;                                      // of the step under way
  int32_t tokens_awaited_ = 0;                                           // the first of them whose tokens are not all known
  std::vector<Latest> latest_;                                           // by slot
  std::map<std::pair<int64_t, Visit>, std::vector<std::byte>> arrived_;  // by step; of none that has ended
  Bytes waiting_bytes_ = 0;                                              // of arrived_
  std::set<Visit> taken_;                                                // of the step under way
};

}  // namespace lime
