#include "planner/evaluation/evaluator.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_format.h"

namespace lime {

Evaluator::Evaluator(const Instance& instance, bool reads_once)
    : instance_(instance),
      reads_once_(reads_once),
      used_mb_(instance.NumDevices()),
      pool_mb_(instance.NumDevices()),
      runners_(instance.NumDevices()) {
  loads_.resize(instance.blocks.size());
  load_mb_.resize(instance.blocks.size());
  stage_rank_.resize(instance.blocks.size());
  prefix_mb_.resize(2 * instance.blocks.size() + 1);
  flags_.resize(instance.blocks.size());
}

void Evaluator::SetMicrobatches(int microbatches) {
  microbatches_ = microbatches;
  loads_per_step_ = reads_once_ ? 1 : microbatches;
  together_ = reads_once_ && microbatches > 1;
  ready_ms_.assign(microbatches, 0.0);
}

double Evaluator::MsPerStep(const StagePlan& plan) {
  std::fill(flags_.begin(), flags_.end(), 0);
  for (const int32_t block : plan.streamed) flags_[block] = 1;
  return MsPerStep(plan.stages, flags_, plan.embedding_by_rows);
}

double Evaluator::MsPerStep(std::span<const Stage> stages, std::span<const uint8_t> streamed, bool embedding_by_rows) {
  streamed_ = streamed;
  by_rows_ = embedding_by_rows;
  SetMicrobatches(instance_.microbatches);
  if (!Compile(stages, kSteps)) return std::numeric_limits<double>::infinity();
  Run(stages, {.last_microbatches = microbatches_});
  return RateMs();
}

double Evaluator::PromptMs(const StagePlan& plan, int64_t chunks, int per_sweep) {
  std::fill(flags_.begin(), flags_.end(), 0);
  for (const int32_t block : plan.streamed) flags_[block] = 1;
  streamed_ = flags_;
  by_rows_ = plan.embedding_by_rows;
  SetMicrobatches(per_sweep);
  const int64_t sweeps = (chunks + per_sweep - 1) / per_sweep;
  const int steps = static_cast<int>(std::min<int64_t>(sweeps, kSteps));
  if (!Compile(plan.stages, steps)) return std::numeric_limits<double>::infinity();
  const int64_t last = sweeps > kSteps ? per_sweep : chunks - (sweeps - 1) * per_sweep;
  Run(plan.stages, {.steps = steps, .last_microbatches = static_cast<int>(last), .feeds_back = false});
  return sweeps > kSteps ? step_ends_[kSteps - 1] + static_cast<double>(sweeps - kSteps) * RateMs() : step_ends_[steps - 1];
}

bool Evaluator::Compile(std::span<const Stage> stages, int steps) {
  problem_ = Problem::kNone;
  if (!CheckMemory(stages) || !CheckPools(stages)) return false;
  CompileLoads(stages, steps);
  return true;
}

bool Evaluator::Fail(Problem problem, int device, int stage, double need_mb, double have_mb) {
  problem_ = problem;
  problem_device_ = device;
  problem_stage_ = stage;
  need_mb_ = need_mb;
  have_mb_ = have_mb;
  return false;
}

bool Evaluator::CheckMemory(std::span<const Stage> stages) {
  std::fill(used_mb_.begin(), used_mb_.end(), 0.0);
  for (const Stage& stage : stages) {
    for (int b = stage.lo; b < stage.hi; ++b) {
      const Instance::Block& block = instance_.blocks[b];
      used_mb_[stage.device] += block.kv_mb + (streamed_[b] ? 0.0 : block.mb);
    }
  }
  if (!by_rows_) used_mb_[stages.front().device] += instance_.embed_mb;
  for (int d = 0; d < instance_.NumDevices(); ++d) {
    pool_mb_[d] = instance_.devices[d].mem_mb - used_mb_[d];
    if (problem_ == Problem::kNone && pool_mb_[d] < -kMemorySlackMb) Fail(Problem::kMemory, d, 0, used_mb_[d], instance_.devices[d].mem_mb);
  }
  return problem_ == Problem::kNone;
}

// With one micro-batch, a block leaves before the next arrives. With several, all blocks of a stage
// stay until the last micro-batch has used them.
bool Evaluator::CheckPools(std::span<const Stage> stages) {
  for (size_t j = 0; j < stages.size(); ++j) {
    const int d = stages[j].device;
    bool streams = false;
    double need_mb = 0;
    for (int b = stages[j].lo; b < stages[j].hi; ++b) {
      if (!streamed_[b]) continue;
      streams = true;
      need_mb = together_ ? need_mb + instance_.blocks[b].mb : std::max(need_mb, instance_.blocks[b].mb);
    }
    if (!streams) continue;
    if (instance_.devices[d].disk_mb_per_ms <= 0) return Fail(Problem::kNoDisk, d, static_cast<int>(j), need_mb, 0);
    if (need_mb > pool_mb_[d] + kMemorySlackMb) return Fail(Problem::kPool, d, static_cast<int>(j), need_mb, pool_mb_[d]);
  }
  return true;
}

void Evaluator::CompileLoads(std::span<const Stage> stages, int steps) {
  for (Runner& runner : runners_) runner = Runner{};
  for (const Stage& stage : stages) {
    for (int b = stage.lo; b < stage.hi; ++b) runners_[stage.device].num_loads += streamed_[b] ? 1 : 0;
  }
  int32_t first = 0;
  for (int d = 0; d < instance_.NumDevices(); ++d) {
    runners_[d].comp_ms = instance_.devices[d].comp_ms.data();
    runners_[d].first_load = first;
    first += runners_[d].num_loads;
  }
  const size_t releases_each = static_cast<size_t>(steps) * loads_per_step_;
  if (release_ms_.size() < first * releases_each) release_ms_.resize(first * releases_each);
  for (Runner& runner : runners_) runner.release_ms = release_ms_.data() + runner.first_load * releases_each;
  for (const Stage& stage : stages) {
    Runner& runner = runners_[stage.device];
    const Instance::Device& device = instance_.devices[stage.device];
    int32_t rank = 0;
    for (int b = stage.lo; b < stage.hi; ++b) {
      if (!streamed_[b]) continue;
      const int32_t at = runner.first_load + runner.next_wait++;
      load_mb_[at] = instance_.blocks[b].mb;
      loads_[at].ms = load_mb_[at] / device.disk_mb_per_ms + device.disk_lat_ms;
      stage_rank_[at] = ++rank;
    }
  }
  for (int d = 0; d < instance_.NumDevices(); ++d) {
    runners_[d].next_wait = 0;
    if (runners_[d].num_loads > 0) ComputeWindows(runners_[d], pool_mb_[d]);
  }
}

// w: whole sweeps that fit in the pool, plus the longest remaining run that ends with the load; at
// most 4 q + 4.
void Evaluator::ComputeWindows(const Runner& runner, double pool_mb) {
  const int32_t q = runner.num_loads;
  const double* mb = load_mb_.data() + runner.first_load;
  prefix_mb_[0] = 0;
  for (int32_t i = 0; i < 2 * q; ++i) prefix_mb_[i + 1] = prefix_mb_[i] + mb[i < q ? i : i - q];
  const double sweep_mb = prefix_mb_[q];
  const double room_mb = pool_mb + kMemorySlackMb;
  const int32_t sweeps = 5 * sweep_mb <= room_mb ? 5 : static_cast<int32_t>(room_mb / sweep_mb);
  const double rest_mb = room_mb - sweeps * sweep_mb;
  // Start of the remaining run in the doubled sequence; the run is shorter than a sweep.
  int32_t begin = 1;
  for (int32_t i = 0; i < q; ++i) {
    begin = std::max(begin, i + 1);
    while (begin <= i + q && prefix_mb_[i + q + 1] - prefix_mb_[begin] > rest_mb) ++begin;
    const int32_t fitting = std::min(sweeps * q + (i + q + 1 - begin), 4 * q + 4);
    // CheckPools found that these fit. Rounding must not contradict it.
    const int32_t least = together_ ? stage_rank_[runner.first_load + i] : 1;
    loads_[runner.first_load + i].loads_in_ring = std::max(fitting, least);
  }
}

template <bool kFirst, bool kLast>
double Evaluator::RunBlocks(const Stage& stage, double now) {
  Runner& runner = runners_[stage.device];
  const double* comp_ms = runner.comp_ms;
  double* release_ms = runner.release_ms;
  const Load* loads = loads_.data() + runner.first_load;
  const int32_t q = runner.num_loads;
  int32_t wait = runner.next_wait, release = runner.next_release;
  int32_t slot = q > 0 ? wait % q : 0;
  double load_end = runner.load_end_ms;
  for (int b = stage.lo; b < stage.hi; ++b) {
    if (!streamed_[b]) {
      now += comp_ms[b];
      continue;
    }
    if constexpr (kFirst) {
      const Load load = loads[slot];
      slot = slot + 1 == q ? 0 : slot + 1;
      if (wait >= load.loads_in_ring) load_end = std::max(load_end, release_ms[wait - load.loads_in_ring]);
      load_end += load.ms;
      ++wait;
      now = std::max(now, load_end);
    }
    now += comp_ms[b];
    if constexpr (kLast) release_ms[release++] = now;
  }
  runner.next_wait = wait;
  runner.next_release = release;
  runner.load_end_ms = load_end;
  return now;
}

double Evaluator::RunStage(const Stage& stage, double start, bool first, bool last) {
  if (first && last) return RunBlocks<true, true>(stage, start);
  if (first) return RunBlocks<true, false>(stage, start);
  return last ? RunBlocks<false, true>(stage, start) : RunBlocks<false, false>(stage, start);
}

void Evaluator::Run(std::span<const Stage> stages, const Course& course) {
  const double tx = instance_.net.tx_ms, lat = instance_.net.lat_ms;
  const double back = stages.front().device == stages.back().device ? 0.0 : lat;
  const double rows_ms = by_rows_ ? instance_.devices[stages.front().device].embed_rows_ms.value_or(0) : 0;
  for (int step = 0; step < course.steps; ++step) {
    const int microbatches = step + 1 == course.steps ? course.last_microbatches : microbatches_;
    double& step_end = step_ends_[step];
    step_end = 0;
    for (size_t j = 0; j < stages.size(); ++j) {
      Runner& runner = runners_[stages[j].device];
      for (int m = 0; m < microbatches; ++m) {
        const double start = std::max(ready_ms_[m], runner.free_ms) + (j == 0 ? rows_ms : 0);
        const double end = RunStage(stages[j], start, !together_ || m == 0, !together_ || m + 1 == microbatches);
        runner.free_ms = end;
        if (j + 1 < stages.size()) {
          const double sent = std::max(end, runner.egress_free_ms) + tx;
          runner.egress_free_ms = sent;
          ready_ms_[m] = sent + lat;
        } else {
          ready_ms_[m] = course.feeds_back ? end + back : 0;
          step_end = std::max(step_end, end);
        }
      }
    }
  }
}

std::string Evaluator::Infeasibility() const {
  const std::string label = DeviceLabel(instance_, problem_device_);
  switch (problem_) {
    case Problem::kNone:
      return "";
    case Problem::kMemory:
      return absl::StrFormat("%s needs %.6g MB for resident weights and KV, but has %.6g MB", label, need_mb_, have_mb_);
    case Problem::kPool:
      return absl::StrFormat("%s has %.6g MB free for streaming, but %s of stage %d need%s %.6g MB", label, have_mb_,
                             together_ ? "the streamed blocks" : "the largest streamed block", problem_stage_, together_ ? "" : "s",
                             need_mb_);
    case Problem::kNoDisk:
      return absl::StrFormat("%s streams in stage %d, but its disk reads 0 MB/ms", label, problem_stage_);
  }
  return "";
}

}  // namespace lime
