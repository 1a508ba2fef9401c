#include "planner/evaluation/quick_evaluator.h"

#include <algorithm>

#include "planner/evaluation/evaluator.h"

namespace lime {
namespace {

constexpr double kEndlessMs = std::numeric_limits<double>::infinity();
constexpr int kSteps = Evaluator::kSteps, kSettledStep = Evaluator::kSettledStep;
constexpr int kHistory = 9;  // steps before the first; a window is at most 4 q + 4 loads

// The ends of the steps and the mean time after the settled step. Steps that were not simulated
// follow from the last one.
class Ends {
 public:
  // Returns true if no more steps are needed.
  bool Add(int step, double end_ms, bool settled) {
    shift_ms_ = end_ms - last_ms_;
    last_ms_ = end_ms;
    last_ = step;
    if (step == kSettledStep) settled_ms_ = end_ms;
    return settled;
  }
  double MsPerStep() const {
    if (last_ <= kSettledStep) return shift_ms_;
    return (last_ms_ + (kSteps - 1 - last_) * shift_ms_ - settled_ms_) / (kSteps - 1 - kSettledStep);
  }
  int steps() const { return last_ + 1; }

 private:
  int last_ = 0;
  double last_ms_ = 0, shift_ms_ = 0, settled_ms_ = 0;
};

}  // namespace

QuickEvaluator::QuickEvaluator(const Instance& instance)
    : instance_(instance),
      devices_(instance.devices.size()),
      ready_ms_(instance.microbatches),
      free_ms_(instance.devices.size()),
      egress_free_ms_(instance.devices.size()),
      load_end_ms_(instance.devices.size()),
      load_end_before_ms_(instance.devices.size()) {
  mb_before_.push_back(0);
  for (const Instance::Block& block : instance.blocks) mb_before_.push_back(mb_before_.back() + block.mb + block.kv_mb);
  for (const Instance::Device& device : instance.devices) {
    comp_before_ms_.push_back(0);
    for (const double ms : device.comp_ms) comp_before_ms_.push_back(comp_before_ms_.back() + ms);
  }
}

double QuickEvaluator::MsPerStep(const Assignment& plan, double limit_ms) {
  Compile(plan);
  work_ = static_cast<double>(instance_.blocks.size() + devices_.size());
  if (!Fits() || LeastMs() >= limit_ms) return kEndlessMs;
  if (loads_.empty() && instance_.microbatches == 1) return path_ms_;
  CompileWindows();
  return instance_.microbatches == 1 ? RunOne() : RunMany();
}

// Collects stages, loads in order of use, and sums over devices. With one micro-batch nothing else
// waits for the network, so a hop is part of the gap before the next load.
void QuickEvaluator::Compile(const Assignment& plan) {
  for (DeviceState& device : devices_) {
    device.used_mb = device.pool_need_mb = device.comp_ms = device.load_ms = 0;
    device.loads.clear();
  }
  visits_.clear();
  loads_.clear();
  const bool alone = instance_.microbatches == 1;
  const double hop_ms = instance_.net.tx_ms + instance_.net.lat_ms;
  const int blocks = instance_.NumBlocks();
  const double rows_ms = plan.embedding_by_rows ? instance_.devices[plan.device[0]].embed_rows_ms.value_or(0) : 0;
  double gap_ms = rows_ms;
  for (int lo = 0, hi = 0; lo < blocks; lo = hi) {
    const int d = plan.device[lo];
    const double* comp_ms = &comp_before_ms_[static_cast<size_t>(d) * (blocks + 1)];
    const int32_t loads = static_cast<int32_t>(loads_.size());
    visits_.push_back({.device = d, .first_load = loads, .end_load = loads});
    if (lo > 0) gap_ms = alone ? gap_ms + hop_ms : 0;
    int from = lo;
    for (hi = lo; hi < blocks && plan.device[hi] == d; ++hi) {
      if (!plan.streamed[hi]) continue;
      AddLoad(hi, gap_ms + (comp_ms[hi] - comp_ms[from]));
      devices_[d].used_mb -= instance_.blocks[hi].mb;
      gap_ms = 0;
      from = hi + 1;
    }
    gap_ms += comp_ms[hi] - comp_ms[from];
    visits_.back().tail_ms = gap_ms;
    visits_.back().comp_ms = comp_ms[hi] - comp_ms[lo];
    devices_[d].used_mb += mb_before_[hi] - mb_before_[lo];
  }
  visits_.front().comp_ms += rows_ms;
  if (!plan.embedding_by_rows) devices_[visits_.front().device].used_mb += instance_.embed_mb;
  path_ms_ = static_cast<double>(visits_.size() - 1) * hop_ms;
  if (visits_.front().device != visits_.back().device) path_ms_ += instance_.net.lat_ms;
  for (const Visit& visit : visits_) {
    path_ms_ += visit.comp_ms;
    devices_[visit.device].comp_ms += visit.comp_ms;
  }
}

void QuickEvaluator::AddLoad(int block, double gap_ms) {
  Visit& visit = visits_.back();
  DeviceState& device = devices_[visit.device];
  const Instance::Device& profile = instance_.devices[visit.device];
  const double mb = instance_.blocks[block].mb;
  const int32_t index = static_cast<int32_t>(loads_.size());
  const bool first = visit.end_load == visit.first_load;
  const bool together = instance_.microbatches > 1 && !first;
  const double stage_mb = together ? loads_.back().stage_mb + mb : mb;
  loads_.push_back({.gap_ms = gap_ms,
                    .comp_ms = profile.comp_ms[block],
                    .load_ms = profile.disk_mb_per_ms > 0 ? mb / profile.disk_mb_per_ms + profile.disk_lat_ms : kEndlessMs,
                    .mb = mb,
                    .stage_mb = stage_mb,
                    .device = visit.device,
                    .rank = together ? loads_.back().rank + 1 : 1});
  visit.end_load = index + 1;
  device.loads.push_back(index);
  device.load_ms += loads_.back().load_ms;
  device.pool_need_mb = std::max(device.pool_need_mb, stage_mb);
}

bool QuickEvaluator::Fits() {
  overflow_mb_ = 0;
  bool fits = true;
  for (size_t d = 0; d < devices_.size(); ++d) {
    const double over_mb = devices_[d].used_mb + devices_[d].pool_need_mb - instance_.devices[d].mem_mb;
    if (over_mb > kMemorySlackMb) overflow_mb_ += over_mb;
    fits = fits && over_mb <= kMemorySlackMb && devices_[d].load_ms < kEndlessMs;
  }
  return fits;
}

// Lower bounds of any schedule: the path of one micro-batch; the compute time of one device (after
// the last counted step, all micro-batches but one may already have run); its loads (without those
// that its pool may have held at the start).
double QuickEvaluator::LeastMs() const {
  double least_ms = path_ms_;
  constexpr double kCounted = kSteps - 1 - kSettledStep;
  const double microbatches = instance_.microbatches;
  for (size_t d = 0; d < devices_.size(); ++d) {
    const DeviceState& device = devices_[d];
    least_ms = std::max(least_ms, device.comp_ms * (microbatches - (microbatches - 1) / kCounted));
    if (device.loads.empty()) continue;
    const Instance::Device& profile = instance_.devices[d];
    const double q = static_cast<double>(device.loads.size());
    const double ahead_ms = (profile.mem_mb - device.used_mb) / profile.disk_mb_per_ms + (4 * q + 4) * profile.disk_lat_ms;
    least_ms = std::max(least_ms, device.load_ms - ahead_ms / kCounted);
  }
  return least_ms * (1 - 1e-12);
}

double QuickEvaluator::BusyDisks(double ms) const {
  double busy = 0;
  for (const DeviceState& device : devices_) {
    const double share = ms > 0 ? device.load_ms / ms : 0, squared = share * share, fourth = squared * squared;
    busy += fourth * fourth;
  }
  return busy;
}

void QuickEvaluator::CompileWindows() {
  max_reach_ = 0;
  settled_steps_ = 0;
  for (std::vector<double>* times : {&free_ms_, &egress_free_ms_, &load_end_ms_, &load_end_before_ms_}) {
    std::fill(times->begin(), times->end(), 0.0);
  }
  for (size_t d = 0; d < devices_.size(); ++d) {
    if (!devices_[d].loads.empty()) CompileWindows(devices_[d], instance_.devices[d].mem_mb - devices_[d].used_mb);
  }
  release_ms_.resize(loads_.size() * (kHistory + kSteps));
  std::fill_n(release_ms_.begin(), loads_.size() * kHistory, -kEndlessMs);
}

// The same as Evaluator::ComputeWindows.
void QuickEvaluator::CompileWindows(const DeviceState& device, double pool_mb) {
  const int q = static_cast<int>(device.loads.size());
  prefix_mb_.resize(2 * q + 1);
  prefix_mb_[0] = 0;
  for (int i = 0; i < 2 * q; ++i) prefix_mb_[i + 1] = prefix_mb_[i] + loads_[device.loads[i < q ? i : i - q]].mb;
  const double sweep_mb = prefix_mb_[q], room_mb = pool_mb + kMemorySlackMb;
  const int sweeps = 5 * sweep_mb <= room_mb ? 5 : static_cast<int>(room_mb / sweep_mb);
  const double rest_mb = room_mb - sweeps * sweep_mb;
  int begin = 1;
  for (int i = 0; i < q; ++i) {
    Load& load = loads_[device.loads[i]];
    begin = std::max(begin, i + 1);
    while (begin <= i + q && prefix_mb_[i + q + 1] - prefix_mb_[begin] > rest_mb) ++begin;
    const int window = std::max(std::min(sweeps * q + (i + q + 1 - begin), 4 * q + 4), load.rank);
    const int reach = window > i ? (window - i + q - 1) / q : 0;
    max_reach_ = std::max(max_reach_, reach);
    const int64_t n = static_cast<int64_t>(loads_.size());
    load.waits_for = device.loads[i - window + reach * q] - device.loads[i] - reach * n;
  }
}

// If all steps within reach of any window equal the step before plus a constant, so do all later
// steps. A disk that is faster than the others only gets ahead until its pool is full, which
// changes nothing. A slower one shows as a larger shift.
bool QuickEvaluator::Settles(double shift_low, double shift_high) {
  for (size_t d = 0; d < load_end_ms_.size(); ++d) {
    shift_high = std::max(shift_high, load_end_ms_[d] - load_end_before_ms_[d]);
    load_end_before_ms_[d] = load_end_ms_[d];
  }
  settled_steps_ = shift_high - shift_low <= 1e-9 * shift_high ? settled_steps_ + 1 : 0;
  return settled_steps_ > max_reach_;
}

// With one micro-batch, everything except the disks is idle when the token arrives.
double QuickEvaluator::RunOne() {
  const int64_t n = static_cast<int64_t>(loads_.size());
  const double rest_ms = visits_.back().tail_ms;
  const double back_ms = visits_.front().device == visits_.back().device ? 0 : instance_.net.lat_ms;
  Ends ends;
  double now = 0;
  for (int step = 0; step < kSteps; ++step) {
    double* row = release_ms_.data() + (kHistory + step) * n;
    double low = kEndlessMs, high = -kEndlessMs;
    for (int64_t i = 0; i < n; ++i) {
      const Load& load = loads_[i];
      double& load_end = load_end_ms_[load.device];
      load_end = std::max(load_end, row[i + load.waits_for]) + load.load_ms;
      now = std::max(now + load.gap_ms, load_end) + load.comp_ms;
      row[i] = now;
      const double shift = now - row[i - n];
      low = std::min(low, shift);
      high = std::max(high, shift);
    }
    if (ends.Add(step, now + rest_ms, Settles(low, high))) break;
    now += rest_ms + back_ms;
  }
  work_ += static_cast<double>(n) * ends.steps();
  return ends.MsPerStep();
}

double QuickEvaluator::RunVisit(const Visit& visit, double now, bool first, double* row) {
  for (int64_t i = visit.first_load; i < visit.end_load; ++i) {
    const Load& load = loads_[i];
    now += load.gap_ms;
    if (first) {
      double& load_end = load_end_ms_[load.device];
      load_end = std::max(load_end, row[i + load.waits_for]) + load.load_ms;
      now = std::max(now, load_end);
    }
    now += load.comp_ms;
    if (!first) row[i] = now;
  }
  return now + visit.tail_ms;
}

double QuickEvaluator::RunMany() {
  const int microbatches = instance_.microbatches;
  const double tx_ms = instance_.net.tx_ms, lat_ms = instance_.net.lat_ms;
  const double back_ms = visits_.front().device == visits_.back().device ? 0 : lat_ms;
  std::fill(ready_ms_.begin(), ready_ms_.end(), 0.0);
  ends_ms_.assign(visits_.size() * 2, -kEndlessMs);
  Ends ends;
  for (int step = 0; step < kSteps; ++step) {
    double* row = release_ms_.data() + (kHistory + step) * loads_.size();
    double low = kEndlessMs, high = -kEndlessMs, end = 0;
    for (size_t j = 0; j < visits_.size(); ++j) {
      const Visit& visit = visits_[j];
      const bool last_visit = j + 1 == visits_.size();
      double free = free_ms_[visit.device], egress_free = egress_free_ms_[visit.device];
      for (int m = 0; m < microbatches; ++m) {
        const double start = std::max(ready_ms_[m], free);
        const bool first = m == 0, last = m + 1 == microbatches;
        free = first || last ? RunVisit(visit, start, first, row) : start + visit.comp_ms;
        egress_free = last_visit ? egress_free : std::max(free, egress_free) + tx_ms;
        ready_ms_[m] = last_visit ? free + back_ms : egress_free + lat_ms;
        if (!first && !last) continue;
        double& before = ends_ms_[2 * j + (last ? 1 : 0)];
        low = std::min(low, ready_ms_[m] - before);
        high = std::max(high, ready_ms_[m] - before);
        before = ready_ms_[m];
      }
      free_ms_[visit.device] = end = free;
      egress_free_ms_[visit.device] = egress_free;
    }
    if (ends.Add(step, end, Settles(low, high))) break;
  }
  work_ += (2.0 * static_cast<double>(loads_.size()) + static_cast<double>(visits_.size()) * microbatches) * ends.steps();
  return ends.MsPerStep();
}

}  // namespace lime
