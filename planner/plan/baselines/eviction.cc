#include "planner/plan/baselines/eviction.h"

#include <algorithm>
#include <iterator>

#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {
namespace {

constexpr Bytes kMostShared = Bytes{1} << 44;  // bytes of pages

// Whether a row is the last one of its sequence.
bool EndsSequence(const MicroBatch& batch, size_t row) {
  return row + 1 == batch.rows.size() || batch.rows[row + 1].sequence != batch.rows[row].sequence;
}

}  // namespace

int64_t EvictedPositions(const Plan& plan, int64_t positions) {
  return EvictsKv(plan) ? RoundUp(std::max<int64_t>(0, positions - plan.retained_positions), kPageTokens) : 0;
}

int64_t MostEvicted(const Plan& plan) {
  return EvictedPositions(plan, plan.context);
}

int64_t MeanEvicted(const Plan& plan, int64_t chunk_rows) {
  int64_t sum = 0, chunks = 0;
  for (int64_t end = 0; EvictsKv(plan) && end < plan.prompt_tokens; ++chunks) {
    end = std::min(plan.prompt_tokens, end + chunk_rows);
    sum += EvictedPositions(plan, end);
  }
  return chunks > 0 ? sum / chunks : 0;
}

int64_t RetainedPages(const Plan& plan) {
  const int64_t retained = EvictsKv(plan) ? std::min(plan.retained_positions, plan.context) : plan.context;
  return (retained + kPageTokens - 1) / kPageTokens;
}

int64_t SharedPages(const Plan& plan) {
  return MostEvicted(plan) / kPageTokens;
}

int64_t PagesInTurn(const Plan& plan) {
  return plan.sequences * SharedPages(plan);
}

int64_t NumSentRows(const Plan& plan, const MicroBatch& batch) {
  int64_t rows = std::ssize(batch.rows);
  for (size_t row = 0; EvictsKv(plan) && row < batch.rows.size(); ++row) {
    if (EndsSequence(batch, row)) rows += EvictedPositions(plan, int64_t{batch.rows[row].position} + 1);
  }
  return rows;
}

MicroBatch WithEvicted(const Plan& plan, const MicroBatch& batch, const std::function<std::span<const int32_t>(int32_t sequence)>& known) {
  MicroBatch all;
  all.rows.reserve(static_cast<size_t>(NumSentRows(plan, batch)));
  for (size_t begin = 0, row = 0; row < batch.rows.size(); ++row) {
    if (!EndsSequence(batch, row)) continue;
    const int32_t sequence = batch.rows[row].sequence;
    const std::span<const int32_t> tokens = known(sequence);
    const auto evicted = static_cast<int32_t>(EvictedPositions(plan, int64_t{batch.rows[row].position} + 1));
    for (int32_t at = 0; at < evicted; ++at)
      all.rows.push_back({.sequence = sequence,
                          .token = at < std::ssize(tokens) ? tokens[static_cast<size_t>(at)] : 0,
                          .position = at,
                          .length = batch.rows[row].length});
    for (; begin <= row; ++begin) all.rows.push_back(batch.rows[begin]);
  }
  return all;
}

int64_t OwnRows(const Plan& plan) {
  return std::max<int64_t>(plan.batch, plan.prefill_chunk);
}

int64_t SentRows(const Plan& plan) {
  return OwnRows(plan) + plan.batch * MostEvicted(plan);
}

int64_t MaxRows(const Plan& plan) {
  return EvictsKv(plan) ? std::max(OwnRows(plan), kEvictedRows) : OwnRows(plan);
}

int64_t RowsAgainWaiting(const Plan& plan) {
  return AgainAhead(plan) * plan.sequences * MostEvicted(plan);
}

double SlicedMs(const VisitShape& visit, const std::function<double(int64_t rows, int64_t positions)>& ms) {
  const int64_t length = visit.evicted + visit.own, all = visit.sequences * length;
  const int64_t slice = std::max(kEvictedRows, visit.sequences * visit.own);
  double sum_ms = 0;
  for (int64_t begin = 0; begin < all; begin += slice) {
    const int64_t end = std::min(all, begin + slice);
    const bool has_own = end % length == 0 || end % length > visit.evicted || begin / length != (end - 1) / length;
    sum_ms += ms(end - begin, has_own ? visit.context : end % length);
  }
  return sum_ms;
}

Plan WithEvictedPositions(const Plan& plan, double evicted) {
  Plan with = plan;
  const auto most = static_cast<double>(MostEvicted(plan));
  if (most == 0) return with;
  const double share = evicted / most;
  for (PlanPart& part : with.parts) {
    part.decode_ms -= (1 - share) * part.evicted_ms;
    part.evicted_ms *= share;
  }
  for (double* const ms : {&with.decode.tx_ms, &with.decode.embed_rows_ms}) *ms *= (1 + evicted) / (1 + most);
  return with;
}

absl::Status CheckRetainedKv(const Plan& plan) {
  for (const PlanPart& part : plan.parts) {
    if (part.evicted_ms > part.decode_ms || (part.evicted_ms > 0 && !EvictsKv(plan)))
      return absl::InvalidArgumentError(
          "plan: field \"evicted_ms\" of a part is more than its time to compute the evicted positions again");
  }
  if (!EvictsKv(plan)) return absl::OkStatus();
  const int64_t retained = plan.retained_positions, least = OwnRows(plan) + kPageTokens;
  if (retained % kPageTokens != 0 || retained < least || retained >= plan.context) {
    return Invalid("plan: field \"kept_positions\" = ", retained, " is not a multiple of ", kPageTokens, " that is at least ", least,
                   " (one page more than a chunk of a prompt) and below the context of ", plan.context);
  }
  if (MostEvicted(plan) > kMostComputedAgain / plan.sequences) {
    return Invalid("plan: field \"kept_positions\" = ", retained, " leaves ", MostEvicted(plan), " positions of ", plan.sequences,
                   " sequences to be computed again in a step, which exceeds the limit");
  }
  if (SharedPages(plan) > kMostShared / plan.page_bytes / plan.sequences)
    return Invalid("plan: field \"kept_positions\" = ", retained, " leaves ", SharedPages(plan), " pages of each of ", plan.sequences,
                   " sequences to all layers in turn, which exceeds the limit");
  if (!plan.reads_once)
    return Invalid(
        "plan: field \"kept_positions\" is given, but every micro-batch reads streamed parts; a plan that evicts KV streams nothing");
  if (plan.chunks_per_sweep > 1) return Invalid("plan: field \"kept_positions\" is given, but chunks of a prompt share a sweep");
  if (std::ranges::any_of(plan.parts, [](const PlanPart& part) { return part.streamed || part.is_kv(); }))
    return Invalid("plan: field \"kept_positions\" is given, but parts stream; a plan that evicts KV streams nothing");
  if (std::ranges::any_of(plan.devices, [](const PlanDevice& device) { return device.max_layer_pages > 0; }))
    return Invalid("plan: field \"kept_positions\" is given, but KV also leaves memory; a plan does one or the other");
  const int64_t pages = plan.sequences * RetainedPages(plan);
  for (int p = 0; p < plan.NumParts(); ++p) {
    const PlanPart& part = plan.parts[p];
    if (HasState(part.block.kind))
      return Invalid("plan: field \"kept_positions\" is given, but ", BlockName(part.block),
                     " keeps a state of its sequences, which has absorbed the positions that would be computed again");
    if (HasKv(part.block.kind) && BeginsBlock(plan, p) && part.kv_pages != pages)
      return Invalid("plan: field \"kept_positions\" = ", retained, " needs ", pages, " pages of a layer, but one layer has ",
                     part.kv_pages);
  }
  for (const Stage& stage : plan.stages) {
    if (IdsBefore(plan, stage.lo) > 0) return Invalid("plan: field \"kept_positions\" is given, but devices share the head");
  }
  return absl::OkStatus();
}

}  // namespace lime
