// Holds everything that comes to one device of a pipeline from outside: orders, hidden states,
// logits, sampled tokens. Input is checked against the plan before anything changes, then waits for
// its step.
//
// Pure.   Thread: the owner's, under its lock.   Owner: StageLogic.
// Invariant: a message of a peer is used once, in its step and by its stage. Waiting hidden states,
// and used payloads that are kept for reuse, take at most WaitingBytes together. Once a plan runs,
// nothing here allocates for a step, unless more messages are early than ever before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/activation.h"
#include "common/order.h"
#include "daemon/logic/baselines/rows_again.h"
#include "daemon/logic/head_partial.h"
#include "planner/base/bytes.h"
#include "planner/base/recycled_queue.h"
#include "planner/base/status.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/plan.h"
#include "planner/plan/plan_rows.h"

namespace lime {

class StageInbox {
 public:
  using Visit = std::pair<int32_t, int32_t>;  // stage, micro-batch

  struct Shape {
    int64_t vocab_size = 0;
    Bytes row_bytes = 0;       // of a token's hidden state
    int32_t microbatches = 1;  // of a step, at most
  };

  // REQUIRES: `plan` is valid and outlives this object; `device` is one of the plan's.
  StageInbox(const Plan& plan, int32_t device, const Shape& shape);

  // Bytes of hidden states and logits that may wait, for all steps that a peer may be ahead.
  static Bytes WaitingBytes(const Plan& plan, int32_t device, Bytes row_bytes);

  // ---- Orders, in the order of their numbers

  // Queues an order. InvalidArgument if its number is not the next one, or if it names something
  // that does not exist; nothing has changed then.
  absl::Status AddOrder(const Order& order);
  // The oldest order that waits; null if there is none.
  const Order* NextOrder() const { return orders_.empty() ? nullptr : &orders_.front(); }
  // Removes that order. Valid until the next AddOrder.  REQUIRES: NextOrder() is not null
  Order& PopOrder();

  // ---- From peers

  // Takes an activation. InvalidArgument if it does not belong to this plan and step,
  // ResourceExhausted if too much waits; nothing has changed then. Returns its visit if that
  // belongs to the current step. BeginStep returns the visits that came early.
  absl::StatusOr<std::optional<Visit>> OnActivation(ActivationMessage activation);
  // A payload to be filled with `bytes`: empty, with the memory of a used one if there is any. In a
  // decode step there is: every device gets a payload for each one that it sends. What a prompt sends
  // is larger, and gets new memory.
  std::vector<std::byte> PopSpare(Bytes bytes);
  // Adds the memory of a used payload, if it suits those of a decode step.
  void AddSpare(std::vector<std::byte> payload);
  // Tokens that this device has sampled itself, or that OnActivation has checked.
  void OnTokens(int64_t step, std::span<const SampledToken> tokens);

  // ---- Steps

  // A sequence takes its slot. Tokens sampled for the sequence before are not its own.
  void Admit(const AdmitOrder& admit);
  // A sequence goes back. Tokens of steps so far count only up to the position of its next row.
  void RollBack(const RollbackOrder& back);

  // The next step begins with these micro-batches. `batches` gets those of the step before, whose
  // memory serves the next order. Returns the visits that came early, valid until the next step.
  std::span<const Visit> BeginStep(std::vector<MicroBatch>&& batches);
  void EndStep();

  // On the first device: the next micro-batch of the current step, in order, once all its tokens
  // are known. They are in its rows then.
  std::optional<int32_t> NextWithTokens();

  // The payload with which a visit of the current step begins; empty if none has come.
  std::vector<std::byte> PopInput(const Visit& visit);

  // Micro-batches of the current step.
  int32_t num_batches() const { return static_cast<int32_t>(batches_.size()); }
  const MicroBatch& batch(int32_t microbatch) const { return batches_[static_cast<size_t>(microbatch)]; }
  // The rows that the stage computes: those of the batch, and rows that are computed again.
  MicroBatch WholeBatch(int32_t microbatch) const { return again_ ? again_->WholeBatch(batch(microbatch)) : batch(microbatch); }
  bool step_under_way() const { return step_under_way_; }
  int64_t steps_begun() const { return steps_begun_; }

 private:
  struct Latest {
    int64_t from_step = 0;  // its first step; tokens of earlier steps are the previous sequence's
    // Tokens of steps before `back_step` count only up to `back_position`: it has gone back there.
    int64_t back_step = 0;
    int32_t back_position = 0;
    int32_t position = -1;
    int32_t token = 0;
  };

  absl::Status Check(const Order& order) const;
  absl::Status Check(const AdmitOrder& admit) const;
  absl::Status Check(const RetireOrder& retire) const;
  absl::Status Check(const ResidencyOrder& residency) const;
  absl::Status Check(const RollbackOrder& back) const;
  absl::Status Check(const StepOrder& step) const;
  absl::Status CheckSlot(int32_t sequence) const;
  absl::Status CheckSnapshot(int32_t snapshot) const;
  absl::Status CheckIds(std::span<const int32_t> ids) const;
  absl::Status CheckBatch(const MicroBatch& batch) const;
  absl::Status CheckActivation(const ActivationMessage& activation);
  absl::Status CheckVisit(const Visit& visit) const;
  absl::Status CheckPayload(int32_t stage, const MicroBatch* batch, std::span<const std::byte> payload);
  absl::Status CheckTokens(int64_t step, std::span<const SampledToken> tokens);
  absl::Status OnTokens(const ActivationMessage& activation);
  static bool Counts(const Latest& latest, int64_t step, int32_t position);
  void MakeRoomFor(Bytes bytes);
  std::vector<std::byte> TakeSpare();
  bool FillTokens(MicroBatch& batch) const;

  int64_t MaxEarlySteps() const;
  int64_t steps_ended() const { return steps_begun_ - (step_under_way_ ? 1 : 0); }
  bool IsUnderWay(int64_t step) const { return step_under_way_ && step + 1 == steps_begun_; }
  bool IsFirst() const { return plan_.stages.front().device == device_; }

  const Plan& plan_;
  const int32_t device_;
  const Shape shape_;
  const bool grows_kv_;                     // of the plan
  const Bytes waiting_allowed_;             // WaitingBytes of the plan
  const Bytes new_spare_, most_spare_;      // memory of a new payload for a decode step, and of one that is kept
  const std::unique_ptr<RowsAgain> again_;  // null for LIME's own plans

  RecycledQueue<Order> orders_;  // not carried out yet
  int64_t next_order_ = 0;
  int64_t steps_begun_ = 0;
  bool step_under_way_ = false;
  std::vector<MicroBatch> batches_;  // of the current step
  int32_t tokens_awaited_ = 0;       // the first of them with an unknown token
  std::vector<Latest> latest_;       // by slot
  std::vector<int64_t> lengths_;     // by slot: positions that its sequence will have
  using Arrived = std::map<std::pair<int64_t, Visit>, std::vector<std::byte>>;
  Arrived arrived_;                              // by step; none of an ended step
  std::vector<Arrived::node_type> spare_nodes_;  // of the map, for reuse
  Bytes waiting_bytes_ = 0;                      // of arrived_
  std::vector<Visit> used_;                      // of the current step, whose input was used
  std::vector<Visit> came_;                      // before the current step
  std::vector<std::vector<std::byte>> spare_;    // used payloads
  Bytes spare_bytes_ = 0;                        // of their memory
  std::vector<SampledToken> tokens_;             // of the current message
  // By slot: the last position with a known token, as of the current message.
  std::vector<int32_t> received_;
  HeadPartial partial_;  // of the current message
};

}  // namespace lime
