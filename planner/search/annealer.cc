#include "planner/search/annealer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "planner/search/part_groups.h"

namespace lime {
namespace {

constexpr double kWaits = 0.85;  // below this share of a step, disks limit the token
constexpr double kLateCost = 10, kMostLateMs = 1e100;

}  // namespace

Annealer::Annealer(const Instance& instance, Options options, SearchBudget& budget)
    : instance_(instance),
      options_(std::move(options)),
      budget_(budget),
      evaluator_(instance),
      random_(options_.seed),
      unit_begins_(UnitBegins(instance, options_.granularity)),
      units_(static_cast<int>(unit_begins_.size()) - 1),
      longest_run_(instance.NumBlocks() * 2 / static_cast<int>(GroupParts(instance, 1).size() - 1) - 1),
      may_move_(instance.NumDevices() > 1 && !(options_.move_cost && !options_.move_cost->MayMove())),
      used_mb_(instance.devices.size()),
      need_mb_(instance.devices.size()),
      smallest_mb_(instance.devices.size()),
      current_used_mb_(instance.devices.size()) {
  if (options_.first_token != nullptr) first_token_.emplace(options_.first_token->problem);
  mb_before_.push_back(0);
  for (const Instance::Block& block : instance.blocks) mb_before_.push_back(mb_before_.back() + block.mb + block.kv_mb);
}

double Annealer::Cost(const Assignment& plan, double limit) {
  double moving = 0;
  if (options_.move_cost && may_move_) {
    for (size_t b = 0; b < plan.device.size(); ++b) {
      if (plan.device[b] != options_.move_cost->home[b]) moving += options_.move_cost->Of(instance_.blocks[b]);
    }
  }
  const double ms = evaluator_.MsPerStep(plan, limit - moving);
  if (first_token_ && ms + moving < limit) return ms + moving + kLateCost * LateMs(plan);
  if (std::isfinite(ms)) return ms + moving;
  return evaluator_.overflow_mb() > 0 ? kDoesNotFit * (1 + evaluator_.overflow_mb()) : std::numeric_limits<double>::infinity();
}

double Annealer::LateMs(const Assignment& plan) {
  const double most_ms = options_.first_token->most_ms;
  const FirstToken first = first_token_->Predict(ToPlan(plan), most_ms);
  budget_.Spend(first_token_->work());
  if (!first.feasible) return kMostLateMs;
  return first.ms <= most_ms ? 0 : std::min(first.ms - most_ms, kMostLateMs);
}

Annealer::Candidate Annealer::Repaired(Assignment plan) {
  draft_ = std::move(plan);
  tidies_ = true;
  Repair();
  const double cost = Cost(draft_);
  budget_.Spend(2 * evaluator_.work());
  return {draft_, cost};
}

// Cools with the work done, whatever a single move costs.
Annealer::Candidate Annealer::Run(const Candidate& start, const Schedule& schedule) {
  current_ = start;
  Cost(start.plan);
  waits_ = evaluator_.path_ms() < kWaits * start.cost;
  judged_ = start.cost * (1 + schedule.per_busy_disk * evaluator_.BusyDisks(start.cost));
  tidies_ = schedule.tidies;
  Look();
  Candidate best = start;
  const double begin = budget_.remaining();
  double done = 0, heat = schedule.hot;
  for (int64_t i = 0; done < schedule.work; ++i) {
    if (i % 32 == 0) heat = schedule.hot * std::pow(schedule.cold / schedule.hot, done / schedule.work);
    draft_ = current_.plan;
    double work = instance_.NumBlocks();
    if (Propose()) {
      Repair();
      const double limit = judged_ * (1 - heat * std::log(1 - random_.Uniform()));
      const double cost = Cost(draft_, limit),
                   judged = cost < limit ? cost * (1 + schedule.per_busy_disk * evaluator_.BusyDisks(cost)) : cost;
      work += 2.0 * instance_.NumBlocks() + evaluator_.work();
      if (judged < limit) Accept(cost, judged, best);
    }
    if (!budget_.Spend(work)) break;
    done = begin - budget_.remaining();
  }
  return best;
}

void Annealer::Accept(double cost, double judged, Candidate& best) {
  std::swap(current_.plan, draft_);
  current_.cost = cost;
  judged_ = judged;
  waits_ = evaluator_.path_ms() < kWaits * cost;
  Look();
  if (cost < best.cost) best = current_;
}

bool Annealer::Propose() {
  const int dice = random_.Below(100);
  if (may_move_) {
    if (random_.Chance(waits_ ? 16 : 2)) return SwapAlike();
    if (dice < 26) return ShiftCut();
    if (dice < 38) return SlideStage();
    if (dice < 48) return TradeAtCuts();
    if (dice < 51) return MoveRun();
    if (dice < 56) return Exchange();
    if (dice < 59) return MergeStage();
    if (dice < 62) return SwapStageDevices();
    if (dice < 64) return SwapDevicesInRange();
  }
  if (dice < 76) return Toggle();
  return SwapResidency(dice < 88);
}

// Computes what moves from current_ need.
void Annealer::Look() {
  draft_ = current_.plan;
  MeasureMemory();
  current_used_mb_ = used_mb_;
  cuts_.clear();
  for (int u = 1; u < units_; ++u) {
    if (current_.plan.device[unit_begins_[u]] != current_.plan.device[unit_begins_[u] - 1]) cuts_.push_back(u);
  }
}

void Annealer::MeasureMemory() {
  std::fill(used_mb_.begin(), used_mb_.end(), 0.0);
  std::fill(need_mb_.begin(), need_mb_.end(), 0.0);
  std::fill(smallest_mb_.begin(), smallest_mb_.end(), std::numeric_limits<double>::infinity());
  const bool together = instance_.microbatches > 1;
  const int blocks = instance_.NumBlocks();
  for (int lo = 0, hi = 0; lo < blocks; lo = hi) {
    const int d = draft_.device[lo];
    double stage_mb = 0;
    for (hi = lo; hi < blocks && draft_.device[hi] == d; ++hi) {
      if (!draft_.streamed[hi]) continue;
      const double mb = instance_.blocks[hi].mb;
      used_mb_[d] -= mb;
      stage_mb = together ? stage_mb + mb : mb;
      need_mb_[d] = std::max(need_mb_[d], stage_mb);
      smallest_mb_[d] = std::min(smallest_mb_[d], mb);
    }
    used_mb_[d] += mb_before_[hi] - mb_before_[lo];
  }
  if (!draft_.embedding_by_rows) used_mb_[draft_.device[0]] += instance_.embed_mb;
}

void Annealer::Repair() {
  const int first = draft_.device[0];
  const bool reads_rows = instance_.devices[first].embed_rows_ms.has_value();
  draft_.embedding_by_rows &= reads_rows;
  MeasureMemory();
  if (reads_rows) PlaceEmbedding(first);
  const bool generous = random_.Chance(70);
  for (int d = 0; d < instance_.NumDevices(); ++d) {
    const double room_mb = instance_.devices[d].mem_mb - used_mb_[d] - need_mb_[d];
    if (room_mb < -kMemorySlackMb) {
      StreamUntilFits(d);
    } else if (generous && smallest_mb_[d] <= room_mb && (tidies_ || used_mb_[d] != current_used_mb_[d])) {
      KeepWhatFits(d);
    }
  }
}

// The embedding leaves a device that is too small before any block does, and returns if there is
// room.
void Annealer::PlaceEmbedding(int device) {
  const double room_mb = instance_.devices[device].mem_mb - used_mb_[device] - need_mb_[device];
  if (!draft_.embedding_by_rows && room_mb < -kMemorySlackMb && random_.Chance(90)) {
    draft_.embedding_by_rows = true;
    used_mb_[device] -= instance_.embed_mb;
  } else if (draft_.embedding_by_rows && room_mb >= instance_.embed_mb && random_.Chance(70)) {
    draft_.embedding_by_rows = false;
    used_mb_[device] += instance_.embed_mb;
  }
}

// Megabytes in the pool for the block's stage if the block streams too.
double Annealer::StageStreamedMb(int block) const {
  double mb = instance_.blocks[block].mb;
  if (instance_.microbatches == 1) return mb;
  const int device = draft_.device[block];
  for (int b = block - 1; b >= 0 && draft_.device[b] == device; --b) mb += draft_.streamed[b] ? instance_.blocks[b].mb : 0;
  for (int b = block + 1; b < instance_.NumBlocks() && draft_.device[b] == device; ++b) {
    mb += draft_.streamed[b] ? instance_.blocks[b].mb : 0;
  }
  return mb;
}

void Annealer::StreamUntilFits(int device) {
  if (instance_.devices[device].disk_mb_per_ms <= 0) return;
  blocks_of_.clear();
  for (int b = 0; b < instance_.NumBlocks(); ++b) {
    if (draft_.device[b] == device && !draft_.streamed[b] && instance_.blocks[b].mb > 0) blocks_of_.push_back(b);
  }
  while (!blocks_of_.empty() && used_mb_[device] + need_mb_[device] > instance_.devices[device].mem_mb + kMemorySlackMb) {
    const int count = static_cast<int>(blocks_of_.size());
    int pick = random_.Below(count);
    double need_mb = StageStreamedMb(blocks_of_[pick]);
    for (int tries = 0; tries < 3 && need_mb > need_mb_[device]; ++tries) {
      const int other = random_.Below(count);
      const double other_mb = StageStreamedMb(blocks_of_[other]);
      if (other_mb < need_mb) pick = other, need_mb = other_mb;
    }
    const int block = blocks_of_[pick];
    draft_.streamed[block] = 1;
    used_mb_[device] -= instance_.blocks[block].mb;
    need_mb_[device] = std::max(need_mb_[device], need_mb);
    blocks_of_[pick] = blocks_of_.back();
    blocks_of_.pop_back();
  }
}

void Annealer::KeepWhatFits(int device) {
  const int blocks = instance_.NumBlocks(), start = random_.Below(blocks);
  double room_mb = instance_.devices[device].mem_mb - used_mb_[device] - need_mb_[device];
  for (int i = 0; i < blocks; ++i) {
    const int b = start + i < blocks ? start + i : start + i - blocks;
    if (draft_.device[b] != device || !draft_.streamed[b] || instance_.blocks[b].mb > room_mb) continue;
    draft_.streamed[b] = 0;
    room_mb -= instance_.blocks[b].mb;
  }
}

}  // namespace lime
