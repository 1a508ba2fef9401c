// A micro-batch's visit to a stage where evicted positions go ahead of its own rows (planner/plan/kv_eviction.h): more rows than the
// backend takes at a time. Each block computes all of them, slice by slice, before the next block begins, so that the layers can use the
// same pages in turn; in between their hidden states are here.
//
// Thread: the compute thread.   Owner: StageCompute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "daemon/weights/huge_buffer.h"
#include "kernels/backend.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/plan.h"

namespace lime {

class SlicedVisit {
 public:
  // `row_bytes`: the hidden state of a row. REQUIRES: `backend` outlives this, and takes MaxRows(plan) rows.
  static absl::StatusOr<std::unique_ptr<SlicedVisit>> Create(const Plan& plan, Bytes row_bytes, Backend& backend);
  // What that allocates, and what of a visit's message is there once more while it arrives; 0 for a plan that does not evict.
  static Bytes BytesFor(const Plan& plan, Bytes row_bytes);

  // `all`: `own` with the rows that go ahead. No token is negative.  REQUIRES: at most VisitRows(plan) rows
  void Begin(MicroBatch own, MicroBatch all);

  // [all rows, hidden]: written before the first block where other devices computed those before, read after the last.
  std::span<std::byte> Hidden() { return Rows(0, all_.rows.size()); }

  // Calls `compute` for every slice in turn, which is the backend's batch then, with its hidden states.
  absl::Status InSlices(const std::function<absl::Status(const MicroBatch& slice)>& compute);
  // Once, for the own rows alone: behind the last attention nobody needs the others.
  absl::Status OnOwn(const std::function<absl::Status()>& compute);

 private:
  SlicedVisit(int64_t slice_rows, Bytes row_bytes, Backend& backend) : slice_rows_(slice_rows), row_bytes_(row_bytes), backend_(backend) {}
  std::span<std::byte> Rows(size_t begin, size_t count) {
    const auto row = static_cast<size_t>(row_bytes_);
    return std::span(hidden_.data(), static_cast<size_t>(hidden_.bytes())).subspan(begin * row, count * row);
  }

  const int64_t slice_rows_;
  const Bytes row_bytes_;
  Backend& backend_;
  HugeBuffer hidden_;
  MicroBatch own_, all_, slice_;
  std::vector<size_t> own_rows_;  // where the own rows are among all
};

}  // namespace lime
