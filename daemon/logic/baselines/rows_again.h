// Work of a stage beside its orders if the plan evicts KV (planner/plan/baselines/eviction.h): it
// sends older positions through all layers again, ahead of a micro-batch's own rows. Pure.
//
// Thread: the owner's.   Owner: StageInbox.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "common/activation.h"
#include "common/flow.h"
#include "common/order.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/baselines/eviction.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/plan.h"

namespace lime {

class RowsAgain {
 public:
  // Null if the plan keeps all KV.  REQUIRES: `plan` is valid and outlives this object
  static std::unique_ptr<RowsAgain> For(const Plan& plan, int32_t device) {
    if (!EvictsKv(plan)) return nullptr;
    return std::unique_ptr<RowsAgain>(new RowsAgain(plan, device));
  }

  // Checks that all rows of a micro-batch fit in one message, and all rows that may wait in the
  // queue of a link.
  static absl::Status CheckMessages(const Plan& plan, Bytes row_bytes) {
    if (!EvictsKv(plan) || plan.stages.size() <= 1) return absl::OkStatus();
    if (SentRows(plan) > kMaxActivationBytes / row_bytes)
      return Invalid("hidden states of ", SentRows(plan), " rows, with the rows that are computed again, exceed the limit of ",
                     FormatBytes(kMaxActivationBytes), " for a message; plan a shorter context or a smaller batch");
    if (const int64_t rows = Flow::Of(plan).WaitingRows(); rows > kMaxQueuedBytes / row_bytes)
      return Invalid("hidden states of ", rows,
                     " rows, with the rows that are computed again, may wait for a link and exceed the limit of ",
                     FormatBytes(kMaxQueuedBytes), "; plan a shorter context or fewer sequences");
    return absl::OkStatus();
  }

  // Checks that the rows of a sequence follow one another, in the micro-batch of their slot. So
  // evicted positions go ahead of a slot's rows only once in a step.  REQUIRES: the slots exist
  absl::Status Check(const StepOrder& step) const {
    std::set<int32_t> slots;  // groups of slots seen
    for (const MicroBatch& batch : step.microbatches) {
      LIME_RETURN_IF_ERROR(CheckOwn(batch));
      if (!batch.rows.empty() && !slots.insert(batch.rows.front().sequence / plan_.batch).second)
        return Invalid("rows of slot ", batch.rows.front().sequence,
                       " or its neighbours are in two micro-batches of a step, which a plan that evicts KV does not allow");
    }
    return absl::OkStatus();
  }

  // A sequence takes its slot, and gets tokens in the order of their positions.
  void Admit(const AdmitOrder& admit) {
    if (is_first_) known_[static_cast<size_t>(admit.sequence)] = admit.prompt;
  }
  void Add(const SampledToken& token) {
    std::vector<int32_t>& known = known_[static_cast<size_t>(token.sequence)];
    if (is_first_ && token.position == std::ssize(known)) known.push_back(token.token);
  }

  // The batch with evicted positions ahead of its rows. Only the first device knows the tokens of
  // evicted positions.
  MicroBatch WholeBatch(const MicroBatch& batch) const {
    return WithEvicted(plan_, batch,
                       [this](int32_t sequence) -> std::span<const int32_t> { return known_[static_cast<size_t>(sequence)]; });
  }

 private:
  RowsAgain(const Plan& plan, int32_t device)
      : plan_(plan), is_first_(plan.stages.front().device == device), known_(static_cast<size_t>(plan.sequences)) {}

  absl::Status CheckOwn(const MicroBatch& batch) const {
    std::set<int32_t> seen;
    for (size_t row = 0; row < batch.rows.size(); ++row) {
      const BatchRow &first = batch.rows.front(), &here = batch.rows[row];
      if (here.sequence / plan_.batch != first.sequence / plan_.batch) {
        return Invalid("a micro-batch has rows of slots ", first.sequence, " and ", here.sequence, ", but it may have rows of only ",
                       plan_.batch, " neighbouring slots in a plan that evicts KV");
      }
      const bool goes_on = row > 0 && batch.rows[row - 1].sequence == here.sequence;
      if (goes_on ? int64_t{here.position} != int64_t{batch.rows[row - 1].position} + 1 : !seen.insert(here.sequence).second)
        return Invalid("position ", here.position, " of slot ", here.sequence,
                       " does not follow the other rows of the slot, which a plan that evicts KV does not allow");
    }
    return absl::OkStatus();
  }

  const Plan& plan_;
  const bool is_first_;
  std::vector<std::vector<int32_t>> known_;  // by slot: tokens by position, on the first device
};

}  // namespace lime
