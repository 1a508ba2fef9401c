#include "coordinator/planning/baselines/retained_kv.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "common/activation.h"
#include "common/flow.h"
#include "coordinator/cluster/device_memory.h"
#include "planner/plan/baselines/eviction.h"

namespace lime {
namespace {

constexpr int64_t kShares = 32;  // steps of the retained share to try

class Search {
 public:
  Search(const ModelSpec& spec, const RetainedKv& all, const RetainedKvSearch& how) : spec_(spec), all_(all), how_(how) {}

  absl::StatusOr<Plan> Run() {
    const PlanRequest& request = all_.request;
    std::vector<int32_t> batches = request.batches;
    for (int32_t batch = 1; request.batches.empty() && batch < 2 * request.sequences; batch *= 2)
      batches.push_back(std::min(batch, request.sequences));
    std::optional<Plan> found;
    for (const int32_t batch : batches) {
      absl::StatusOr<Plan> plan = MostRetained(batch);
      if (!plan.ok() || (found && plan->predicted.ms_per_step >= found->predicted.ms_per_step)) continue;
      // The bound is for plans that retain all KV. It says nothing if this plan is faster.
      plan->predicted.lower_bound_ms = how_.bound_ms <= plan->predicted.ms_per_step ? how_.bound_ms : 0;
      found = *std::move(plan);
      how_.best();
    }
    if (!found) return absl::ResourceExhaustedError("no context fits");
    return *std::move(found);
  }

 private:
  // The memory for KV and for recomputed rows is linear in the retained positions, so the sizes
  // that fit are an interval.
  absl::StatusOr<Plan> MostRetained(int32_t batch) {
    const int64_t pages = (all_.request.context - 1) / kPageTokens;
    int64_t fits = 0, too_many = pages + 1;
    const auto try_out = [&](int64_t retained) { (Retaining(retained * kPageTokens, batch).ok() ? fits : too_many) = retained; };
    for (int64_t share = kShares; share > 0 && fits == 0 && !how_.ends(); --share) try_out(pages * share / kShares);
    while (fits > 0 && too_many - fits > 1 && !how_.ends()) try_out((fits + too_many) / 2);
    return fits > 0 ? Retaining(fits * kPageTokens, batch) : absl::ResourceExhaustedError("no position is retained");
  }

  absl::StatusOr<Plan> Retaining(int64_t retained_positions, int32_t batch) {
    const int64_t chunk = std::min(kEvictedRows, retained_positions - kPageTokens);
    if (chunk < batch) return absl::ResourceExhaustedError("chunks of a prompt have no room beside the positions that are retained");
    const int32_t sequences = all_.request.sequences;
    Plan shape{.context = all_.request.context,
               .retained_positions = retained_positions,
               .sequences = sequences,
               .microbatches = (sequences + batch - 1) / batch,
               .batch = batch,
               .prefill_chunk = chunk};
    if (MostEvicted(shape) > kMostComputedAgain / sequences)
      return absl::ResourceExhaustedError("a step would compute more positions again than the limit");
    const Bytes row_bytes = spec_.config.stream_cols() * ElementBytes(spec_.working_dtype);
    Flow flow = Flow::Of(shape);
    flow.devices = std::ssize(all_.devices);
    if (flow.devices > 1 && (SentRows(shape) > kMaxActivationBytes / row_bytes || flow.WaitingRows() > kMaxQueuedBytes / row_bytes))
      return absl::ResourceExhaustedError("the positions that are computed again do not fit in the messages of a link");
    shape.prefill_chunk = 0;
    const Bytes more = MoreActivations(shape, row_bytes);
    RetainedKv retained = all_;
    for (ClusterDevice& device : retained.devices) device.activations += more;
    retained.request.retained_positions = retained_positions;
    retained.request.batches = {batch};
    retained.request.chunks = {chunk};
    return how_.search(retained);
  }

  // Extra activation memory of every device: hidden states of positions computed again, here and in
  // messages.
  Bytes MoreActivations(const Plan& shape, Bytes row_bytes) const {
    const int64_t own = how_.most_rows, rows = RowsAgainWaiting(shape) + 2 * (SentRows(shape) + own);
    const auto activations = [&](int64_t most) { return AssumedActivations(spec_, most, all_.request.sequences, all_.request.context); };
    return rows * row_bytes + activations(std::max(own, MaxRows(shape))) - activations(own);
  }

  const ModelSpec& spec_;
  const RetainedKv& all_;
  const RetainedKvSearch& how_;
};

}  // namespace

absl::StatusOr<Plan> SearchRetainedKv(const ModelSpec& spec, const RetainedKv& all, const RetainedKvSearch& how) {
  return Search(spec, all, how).Run();
}

}  // namespace lime
