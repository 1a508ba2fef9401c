#include "daemon/engine/sliced_visit.h"

#include <algorithm>
#include <utility>

#include "planner/base/check.h"
#include "planner/plan/kv_eviction.h"

namespace lime {

absl::StatusOr<std::unique_ptr<SlicedVisit>> SlicedVisit::Create(const Plan& plan, Bytes row_bytes, Backend& backend) {
  std::unique_ptr<SlicedVisit> visit(new SlicedVisit(MaxRows(plan), row_bytes, backend));
  LIME_ASSIGN_OR_RETURN(visit->hidden_, HugeBuffer::Allocate(VisitRows(plan) * row_bytes));
  LIME_RETURN_IF_ERROR(visit->hidden_.Prefault());
  return visit;
}

Bytes SlicedVisit::BytesFor(const Plan& plan, Bytes row_bytes) {
  return EvictsKv(plan) ? 2 * VisitRows(plan) * row_bytes : 0;
}

void SlicedVisit::Begin(MicroBatch own, MicroBatch all) {
  LIME_CHECK_LE(std::ssize(all.rows) * row_bytes_, hidden_.bytes()) << all.rows.size();
  own_ = std::move(own), all_ = std::move(all);
  own_rows_.clear();
  for (size_t row = 0; row < all_.rows.size() && own_rows_.size() < own_.rows.size(); ++row) {
    const BatchRow& next = own_.rows[own_rows_.size()];
    if (all_.rows[row].sequence == next.sequence && all_.rows[row].position == next.position) own_rows_.push_back(row);
  }
  LIME_CHECK(own_rows_.size() == own_.rows.size()) << own_rows_.size() << " of " << own_.rows.size();
}

absl::Status SlicedVisit::InSlices(const std::function<absl::Status(const MicroBatch& slice)>& compute) {
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

absl::Status SlicedVisit::OnOwn(const std::function<absl::Status()>& compute) {
  const auto row_bytes = static_cast<size_t>(row_bytes_);
  LIME_RETURN_IF_ERROR(backend_.Begin(own_));
  for (size_t i = 0; i < own_rows_.size(); ++i)
    std::ranges::copy(Rows(own_rows_[i], 1), backend_.Hidden().subspan(i * row_bytes, row_bytes).begin());
  LIME_RETURN_IF_ERROR(compute());
  for (size_t i = 0; i < own_rows_.size(); ++i)
    std::ranges::copy(backend_.Hidden().subspan(i * row_bytes, row_bytes), Rows(own_rows_[i], 1).begin());
  return absl::OkStatus();
}

}  // namespace lime
