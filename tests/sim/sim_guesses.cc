#include "tests/sim/sim_guesses.h"

#include "common/flow.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_rows.h"

namespace lime {

void SimGuesses::Note(const Order& order) {
  if (const auto* admit = std::get_if<AdmitOrder>(&order.what)) ends_[admit->sequence] = admit->positions;
  const auto* step = std::get_if<StepOrder>(&order.what);
  if (step == nullptr) return;
  Step& noted = under_way_.emplace_back();
  for (const MicroBatch& batch : step->microbatches) noted.rows += std::ssize(batch.rows);
}

std::optional<SimGuesses::Guess> SimGuesses::Draw(const Plan& plan, int64_t vocab_size, const StepOrder& step) {
  if (GrowsKv(plan) || SpillsKv(plan) || random_.Below(2) > 0) return std::nullopt;
  std::map<int32_t, BatchRow> last;  // of each sequence
  for (const MicroBatch& batch : step.microbatches) {
    for (const BatchRow& row : batch.rows) last[row.sequence] = row;
  }
  const int64_t most = std::min<int64_t>(1 + random_.Below(5), OwnRows(plan));
  int64_t room = Flow::Of(plan).RowsAhead();
  for (const Step& each : under_way_) room -= each.rows;
  const KvWindow window = WindowOf(plan);
  for (const auto& [slot, row] : last) {
    const int64_t begin = int64_t{row.position} + 1, count = std::min({most, room, ends_[slot] - begin});
    const bool keeps_pages = count > 0 && window.LeastSharedAt(begin + count) == window.LeastSharedAt(begin);
    if (!keeps_pages || (HasState(plan) && row.snapshot < 0)) continue;
    Guess guess{.rows = {.microbatches = {{}}}, .back = {.sequence = slot, .positions = begin}};
    if (HasState(plan)) guess.back.snapshot = row.snapshot;
    for (int64_t at = begin; at < begin + count; ++at) {
      const int32_t wrong = random_.Below(static_cast<int>(vocab_size));
      guess.rows.microbatches.front().rows.push_back({.sequence = slot, .token = wrong, .position = static_cast<int32_t>(at)});
    }
    under_way_.push_back({.guess = true, .rows = count});
    return guess;
  }
  return std::nullopt;
}

std::optional<int64_t> SimGuesses::StepOf(int64_t step) const {
  const auto at = under_way_.begin() + (step - ended_);
  if (at->guess) return std::nullopt;
  return step - ended_guesses_ - std::count_if(under_way_.begin(), at, [](const Step& each) { return each.guess; });
}

std::optional<int64_t> SimGuesses::EndStep() {
  const std::optional<int64_t> step = StepOf(ended_);
  ++ended_, ended_guesses_ += step ? 0 : 1;
  under_way_.pop_front();
  return step;
}

}  // namespace lime
