// A micro-batch's visit to a stage, when evicted positions are computed again ahead of its own rows
// (planner/plan/baselines/eviction.h). These are more rows than the backend takes at a time. Each
// block computes all rows, slice by slice, before the next block begins. So the layers can use the
// same pages in turn. Between blocks the hidden states are here.
//
// All parts are whole: a plan that evicts streams nothing.
//
// Thread: the compute thread.   Owner: StageCompute.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "daemon/machine/huge_buffer.h"
#include "kernels/backend.h"
#include "planner/base/bytes.h"
#include "planner/base/check.h"
#include "planner/base/status.h"
#include "planner/plan/baselines/eviction.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/plan.h"
#include "planner/plan/program.h"

namespace lime {

class SlicedVisit {
 public:
  // Null if nothing is evicted. `row_bytes`: of a hidden state.  REQUIRES: `plan` and `backend`
  // outlive this; the backend takes MaxRows(plan) rows
  static absl::StatusOr<std::unique_ptr<SlicedVisit>> Create(const Plan& plan, Bytes row_bytes, Backend& backend) {
    if (!EvictsKv(plan)) return nullptr;
    std::unique_ptr<SlicedVisit> visit(new SlicedVisit(plan, row_bytes, backend));
    LIME_ASSIGN_OR_RETURN(visit->hidden_, HugeBuffer::AllocatePresent(SentRows(plan) * row_bytes));
    return visit;
  }

  // Bytes that Create allocates, and as many for a visit's message while it arrives. 0: nothing is
  // evicted.
  static Bytes BytesFor(const Plan& plan, Bytes row_bytes) { return EvictsKv(plan) ? 2 * SentRows(plan) * row_bytes : 0; }

  // A visit asks its owner for these.
  struct Owner {
    // When the visit begins: the step's rows, and the same rows with the evicted ones ahead. No
    // token is negative.
    std::function<std::pair<MicroBatch, MicroBatch>()> rows;
    // Computes the embedding of the backend's batch.
    std::function<absl::Status(const MicroBatch& slice)> embed;
    // Fills the hidden states that the stage before has sent.
    std::function<absl::Status(std::span<std::byte> hidden)> copy_input;
  };

  // Computes one part.
  absl::Status Run(const Compute& what, const Owner& owner) {
    const bool needs_input = what.stage > 0 && what.part == plan_.stages[what.stage].lo;
    if (what.part == kEmbeddingPart || needs_input) Begin(owner.rows());
    if (what.part == kEmbeddingPart) return InSlices(owner.embed);
    if (needs_input) LIME_RETURN_IF_ERROR(owner.copy_input(Hidden()));
    const BlockId id = plan_.parts[what.part].block;
    if (what.part != PartsOf(plan_, id).first) return absl::OkStatus();
    const int head = PartsOf(plan_, {BlockKind::kHead, 0}).first;
    const bool own = id.kind == BlockKind::kHead || id == plan_.parts[head - 1].block;
    return own ? OnOwn([&] { return backend_.Compute(id); }) : InSlices([&](const MicroBatch&) { return backend_.Compute(id); });
  }

  // [all rows, hidden]. Read after the last block.
  std::span<std::byte> Hidden() { return Rows(0, all_.rows.size()); }

 private:
  SlicedVisit(const Plan& plan, Bytes row_bytes, Backend& backend)
      : plan_(plan), slice_rows_(MaxRows(plan)), row_bytes_(row_bytes), backend_(backend) {}

  // REQUIRES: at most SentRows(plan) rows
  void Begin(std::pair<MicroBatch, MicroBatch> rows) {
    own_ = std::move(rows.first), all_ = std::move(rows.second);
    LIME_CHECK_LE(std::ssize(all_.rows) * row_bytes_, hidden_.bytes()) << all_.rows.size();
    own_rows_.clear();
    for (size_t row = 0; row < all_.rows.size() && own_rows_.size() < own_.rows.size(); ++row) {
      const BatchRow& next = own_.rows[own_rows_.size()];
      if (all_.rows[row].sequence == next.sequence && all_.rows[row].position == next.position) own_rows_.push_back(row);
    }
    LIME_CHECK(own_rows_.size() == own_.rows.size()) << own_rows_.size() << " of " << own_.rows.size();
  }

  // Makes each slice in turn the backend's batch, with its hidden states, and calls `compute`.
  absl::Status InSlices(const std::function<absl::Status(const MicroBatch& slice)>& compute) {
    for (size_t begin = 0; begin < all_.rows.size(); begin += static_cast<size_t>(slice_rows_)) {
      const size_t count = std::min(static_cast<size_t>(slice_rows_), all_.rows.size() - begin);
      slice_.rows.assign(all_.rows.begin() + static_cast<int64_t>(begin), all_.rows.begin() + static_cast<int64_t>(begin + count));
      for (BatchRow& row : slice_.rows) row.wants_logits = false;
      LIME_RETURN_IF_ERROR(backend_.Begin(slice_));
      std::ranges::copy(Rows(begin, count), backend_.Hidden().begin());
      LIME_RETURN_IF_ERROR(compute(slice_));
      std::ranges::copy(backend_.Hidden(), Rows(begin, count).begin());
    }
    return absl::OkStatus();
  }

  // Calls `compute` once, for the own rows alone: the last attention has used the other rows.
  absl::Status OnOwn(const std::function<absl::Status()>& compute) {
    const auto row_bytes = static_cast<size_t>(row_bytes_);
    LIME_RETURN_IF_ERROR(backend_.Begin(own_));
    for (size_t i = 0; i < own_rows_.size(); ++i)
      std::ranges::copy(Rows(own_rows_[i], 1), backend_.Hidden().subspan(i * row_bytes, row_bytes).begin());
    LIME_RETURN_IF_ERROR(compute());
    for (size_t i = 0; i < own_rows_.size(); ++i)
      std::ranges::copy(backend_.Hidden().subspan(i * row_bytes, row_bytes), Rows(own_rows_[i], 1).begin());
    return absl::OkStatus();
  }

  std::span<std::byte> Rows(size_t begin, size_t count) {
    const auto row = static_cast<size_t>(row_bytes_);
    return std::span(hidden_.data(), static_cast<size_t>(hidden_.bytes())).subspan(begin * row, count * row);
  }

  const Plan& plan_;
  const int64_t slice_rows_;
  const Bytes row_bytes_;
  Backend& backend_;
  HugeBuffer hidden_;
  MicroBatch own_, all_, slice_;
  std::vector<size_t> own_rows_;  // indices of the own rows in all_
};

}  // namespace lime
