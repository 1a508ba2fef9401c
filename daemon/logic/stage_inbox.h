// What comes to one device of a pipeline from outside: orders, hidden states, logits so far, sampled tokens. All of it is checked against
// the plan before anything changes, and waits here until the step that it is for.
//
// Pure.   Thread: the owner's, under its lock.   Owner: StageEngine.
// Invariant: what a peer sends is used once, in the step and by the stage that it is for. Hidden states that wait, and the memory of
// payloads that were used and is kept for those that are sent, take at most WaitingBytes together.
// Once a plan is under way nothing here allocates for a step, but for what is early as never before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/activation.h"
#include "common/order.h"
#include "daemon/logic/head_partial.h"
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
  // For a payload that is to be sent: empty, with the memory of one that was used, where there is such.
  std::vector<std::byte> TakeMemory();
  // Of a payload that was used.
  void GiveMemory(std::vector<std::byte> payload);
  // Tokens that this device has sampled itself, or that OnActivation has checked.
  void TakeTokens(int64_t step, std::span<const SampledToken> tokens);

  // ---- Steps

  // A sequence takes its slot: what was sampled for one that had it before is not its own.
  void Admit(const AdmitOrder& admit);

  // The next step has begun, with these micro-batches, in whose place those of the step before are left: their memory serves the next
  // order. Returns the visits that came before, valid until the next step.
  std::span<const Visit> BeginStep(std::vector<MicroBatch>&& batches);
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
  absl::Status CheckActivation(const ActivationMessage& activation);
  absl::Status CheckVisit(const Visit& visit) const;
  absl::Status CheckPayload(int32_t stage, const MicroBatch* batch, std::span<const std::byte> payload);
  absl::Status CheckTokens(int64_t step, std::span<const SampledToken> tokens);
  absl::Status TakeTokens(const ActivationMessage& activation);
  void MakeRoomFor(Bytes bytes);
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
  std::vector<MicroBatch> batches_;  // of the step under way
  int32_t tokens_awaited_ = 0;       // the first of them whose tokens are not all known
  std::vector<Latest> latest_;       // by slot
  using Arrived = std::map<std::pair<int64_t, Visit>, std::vector<std::byte>>;
  Arrived arrived_;                              // by step; of none that has ended
  std::vector<Arrived::node_type> spare_nodes_;  // of the map, for those that arrive
  Bytes waiting_bytes_ = 0;                      // of arrived_
  std::vector<Visit> taken_;                     // of the step under way
  std::vector<Visit> came_;                      // before it
  std::vector<std::vector<std::byte>> spare_;    // payloads that were used
  Bytes spare_bytes_ = 0;                        // of their memory
  std::vector<SampledToken> tokens_;             // of the message at hand
  std::vector<int32_t> told_;                    // likewise: the last position of which a token is known, by slot
  HeadPartial partial_;                          // likewise
};

}  // namespace lime
