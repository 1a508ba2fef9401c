#include "planner/search/half_counts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace lime {
namespace {

constexpr int kNone = std::numeric_limits<int>::min() / 2;

}  // namespace

UnitSizes::UnitSizes(const Instance& instance, const std::vector<int32_t>& unit_begins) {
  std::vector<double> unit_mb;
  for (size_t u = 0; u + 1 < unit_begins.size(); ++u) {
    double mb = 0;
    for (int b = unit_begins[u]; b < unit_begins[u + 1]; ++b) mb += instance.blocks[b].mb + instance.blocks[b].kv_mb;
    if (instance.blocks[unit_begins[u]].kind == Instance::Kind::kHead) {
      head_mb_ += mb;
    } else {
      unit_mb.push_back(mb);
    }
  }
  for (Size& size : sizes_) size.comp_ms.assign(instance.devices.size(), 0.0);
  slowest_first_.resize(instance.devices.size());
  std::iota(slowest_first_.begin(), slowest_first_.end(), 0);
  if (unit_mb.empty()) return;
  const auto [least, most] = std::minmax_element(unit_mb.begin(), unit_mb.end());
  const double middle = *most < 1.5 * *least ? *most : std::sqrt(*least * *most);
  for (size_t u = 0; u < unit_mb.size(); ++u) {
    size_of_.push_back(unit_mb[u] > middle ? 1 : 0);
    Size& size = sizes_[size_of_.back()];
    ++size.count;
    for (int b = unit_begins[u]; b < unit_begins[u + 1]; ++b) {
      size.mb += instance.blocks[b].mb;
      size.kv_mb += instance.blocks[b].kv_mb;
      for (int d = 0; d < instance.NumDevices(); ++d) size.comp_ms[d] += instance.devices[d].comp_ms[b];
    }
  }
  for (Size& size : sizes_) {
    const double count = std::max(1, size.count);
    size.mb /= count;
    size.kv_mb /= count;
    for (double& ms : size.comp_ms) ms /= count;
  }
  std::ranges::stable_sort(slowest_first_, std::ranges::greater{}, [&](int d) { return sizes_[0].comp_ms[d]; });
}

CountProgram::CountProgram(const Instance& instance, const std::vector<int32_t>& unit_begins)
    : UnitSizes(instance, unit_begins), instance_(instance), unit_begins_(unit_begins) {}

// By size: the mean bytes of a unit that may stream if blocks above `largest_mb` may not.
const std::array<double, 2>& CountProgram::StreamableMb(double largest_mb) {
  if (largest_mb == streamable_of_mb_) return streamable_mb_;
  streamable_of_mb_ = largest_mb;
  std::array<double, 2>& mb = streamable_mb_ = {};
  for (int u = 0; u < NumHalves(); ++u) {
    for (int b = unit_begins_[u]; b < unit_begins_[u + 1]; ++b) {
      if (instance_.blocks[b].mb <= largest_mb) mb[size_of_[u]] += instance_.blocks[b].mb / sizes_[size_of_[u]].count;
    }
  }
  return mb;
}

void CountProgram::CountSmall(const Question& question, int d) {
  const Instance::Device& device = instance_.devices[d];
  const StreamingStyle& style = question.styles[d];
  double room_mb = device.mem_mb * question.usable[d] + kMemorySlackMb;
  if (d == question.order.front() && !device.embed_rows_ms) room_mb -= instance_.embed_mb;
  if (d == question.order.back()) room_mb -= head_mb_;
  const double pool_mb = std::max(style.pool_mb, style.largest_mb);
  double streamed_mb = 0;
  if (device.disk_mb_per_ms > 0 && style.largest_mb > 0) {
    // A pool of one block can read the next one only after the block was computed.
    const double ms_per_mb = (sizes_[0].comp_ms[d] + sizes_[1].comp_ms[d]) / std::max(1e-9, HalfMb(0) + HalfMb(1));
    const double wait_ms = pool_mb < 2 * style.largest_mb ? style.largest_mb * ms_per_mb : 0;
    const double load_ms = style.largest_mb / device.disk_mb_per_ms + device.disk_lat_ms + wait_ms;
    streamed_mb = std::floor(std::min(question.limit_ms / load_ms + 1e-9, 1e9)) * style.largest_mb;
  }
  const std::array<double, 2>& streamable_mb = StreamableMb(style.largest_mb);
  const auto fit = [](double room, double each) { return each > 0 ? std::min(std::floor(room / each), 1e6) : room >= 0 ? 1e6 : -1; };
  const double most_comp_ms = question.limit_ms / instance_.microbatches;
  const double small_mb = HalfMb(0), large_mb = HalfMb(1), stays_mb = small_mb - streamable_mb[0],
               large_stays_mb = large_mb - streamable_mb[1];
  small_.assign(sizes_[1].count + 1, -1);
  for (int large = 0; large <= sizes_[1].count; ++large) {
    const double resident = fit(room_mb - large * large_mb, small_mb);
    const double streaming = streamed_mb > 0 ? std::min(fit(room_mb - pool_mb + streamed_mb - large * large_mb, small_mb),
                                                        fit(room_mb - pool_mb - large * large_stays_mb, stays_mb))
                                             : -1;
    const double computed = fit(most_comp_ms - large * sizes_[1].comp_ms[d], sizes_[0].comp_ms[d]);
    const double most = std::min({std::max(resident, streaming), computed, static_cast<double>(sizes_[0].count)});
    if (most < 0) return;
    small_[large] = static_cast<int>(most);
  }
}

std::vector<HalfCounts> CountProgram::Share(const Question& question) {
  const int devices = instance_.NumDevices(), all_large = sizes_[1].count;
  work_ = NumHalves();
  // By large units placed: the most small ones.
  std::vector<int> most(all_large + 1, kNone), before;
  most[0] = 0;
  large_of_.assign(devices, std::vector<int>(all_large + 1, 0));
  for (int d = 0; d < devices; ++d) {
    CountSmall(question, d);
    before.assign(all_large + 1, kNone);
    std::swap(most, before);
    for (int large = 0; large <= all_large && small_[large] >= 0; ++large) {
      for (int placed = 0; placed + large <= all_large; ++placed) {
        const int small = before[placed] + small_[large];
        if (small <= most[placed + large]) continue;
        most[placed + large] = small;
        large_of_[d][placed + large] = large;
      }
      work_ += 0.25 * (all_large + 1 - large);
    }
    work_ += 2 * NumHalves();
  }
  if (most[all_large] < sizes_[0].count) return {};
  std::vector<HalfCounts> counts(devices);
  for (int d = devices - 1, placed = all_large; d >= 0; --d) {
    const int large = large_of_[d][placed];
    CountSmall(question, d);
    counts[d] = {small_[large], large};
    placed -= large;
  }
  RemoveFromSlowest(most[all_large] - sizes_[0].count, counts);
  return counts;
}

void CountProgram::RemoveFromSlowest(int surplus, std::vector<HalfCounts>& counts) const {
  for (const int d : slowest_first_) {
    const int off = std::min(surplus, counts[d][0]);
    counts[d][0] -= off;
    surplus -= off;
  }
}

Assignment CountProgram::Arrange(const std::vector<HalfCounts>& counts, const std::vector<int32_t>& order, int rounds) const {
  std::vector<int> device_of(NumHalves());
  std::vector<HalfCounts> have(instance_.devices.size());
  int at = 0;
  for (int stage = 0, stages = rounds * static_cast<int>(order.size()); stage < stages; ++stage) {
    const int d = order[stage % order.size()], round = stage / static_cast<int>(order.size()) + 1;
    double missing_mb[2];
    for (int size = 0; size < 2; ++size) {
      const double due = std::round(static_cast<double>(counts[d][size]) * round / rounds);
      missing_mb[size] = (due - have[d][size]) * HalfMb(size);
    }
    // Extends to the nearest match.
    int end = at, last = at;
    for (double least_mb = std::abs(missing_mb[0]) + std::abs(missing_mb[1]); last < NumHalves();) {
      const int size = size_of_[last++];
      missing_mb[size] -= HalfMb(size);
      const double off_mb = std::abs(missing_mb[0]) + std::abs(missing_mb[1]);
      if (off_mb < least_mb) least_mb = off_mb, end = last;
      if (missing_mb[0] < 0 && missing_mb[1] < 0) break;
      if (missing_mb[0] + missing_mb[1] < -4 * (HalfMb(0) + HalfMb(1))) break;
    }
    if (stage + 1 == stages) end = NumHalves();
    for (; at < end; ++at) {
      device_of[at] = d;
      ++have[d][size_of_[at]];
    }
  }
  Settle(counts, device_of);
  Assignment plan = AllOn(instance_, order.back());
  for (int u = 0; u < NumHalves(); ++u) {
    for (int b = unit_begins_[u]; b < unit_begins_[u + 1]; ++b) plan.device[b] = static_cast<int16_t>(device_of[u]);
  }
  return plan;
}

// Units at the ends of a stage move to a device that lacks one of that size, preferably next to its
// stages.
void CountProgram::Settle(const std::vector<HalfCounts>& counts, std::vector<int>& device_of) const {
  std::vector<HalfCounts> lacks = counts;
  for (int u = 0; u < NumHalves(); ++u) --lacks[device_of[u]][size_of_[u]];
  const auto device_at = [&](int u) { return u >= 0 && u < NumHalves() ? device_of[u] : -1; };
  // Spreads the moves over the model.
  int stride = std::max(1, static_cast<int>(0.618 * NumHalves()));
  while (std::gcd(stride, NumHalves()) > 1) ++stride;
  for (const bool beside : {true, false}) {
    for (int i = 0; i < NumHalves(); ++i) {
      const int u = static_cast<int>(int64_t{i} * stride % NumHalves());
      const int from = device_of[u], size = size_of_[u];
      if (lacks[from][size] >= 0) continue;
      const int before = device_at(u - 1), behind = device_at(u + 1);
      int to = -1;
      for (const int d : {before, behind}) {
        if (d >= 0 && d != from && lacks[d][size] > 0) to = d;
      }
      for (int d = 0; d < instance_.NumDevices() && to < 0 && !beside; ++d) {
        if (lacks[d][size] > 0) to = d;
      }
      if (to < 0) continue;
      device_of[u] = to;
      ++lacks[from][size];
      --lacks[to][size];
    }
  }
}

}  // namespace lime
