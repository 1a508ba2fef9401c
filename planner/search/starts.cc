#include "planner/search/starts.h"

#include <algorithm>
#include <numeric>
#include <set>

namespace lime {
namespace {

struct Totals {
  double mb = 0;           // weights and KV
  double smallest_mb = 0;  // of blocks that may stream
  double kv_mb = 0;
};

Totals TotalsOf(const Instance& instance) {
  Totals totals;
  for (const Instance::Block& block : instance.blocks) {
    totals.mb += block.mb + block.kv_mb;
    totals.kv_mb += block.kv_mb;
    if (block.mb > 0 && (totals.smallest_mb == 0 || block.mb < totals.smallest_mb)) totals.smallest_mb = block.mb;
  }
  return totals;
}

double CompMs(const Instance::Device& device) {
  return std::accumulate(device.comp_ms.begin(), device.comp_ms.end(), 0.0);
}

// The largest share of device d in time T: limited by memory and disk, and by computing all
// micro-batches.
double MostShare(const Instance& instance, const Totals& totals, int d, double comp_ms, double limit_ms) {
  const Instance::Device& device = instance.devices[d];
  const double streaming_mb = device.mem_mb - totals.smallest_mb + device.disk_mb_per_ms * limit_ms;
  const double mb = std::max(device.mem_mb, device.disk_mb_per_ms > 0 ? streaming_mb : 0);
  double share = totals.mb > 0 ? mb / totals.mb : 1;
  if (totals.kv_mb > 0) share = std::min(share, device.mem_mb / totals.kv_mb);
  if (comp_ms > 0) share = std::min(share, limit_ms / (comp_ms * instance.microbatches));
  return std::clamp(share, 0.0, 1.0);
}

// Fills shares, fastest device first. Empty if T is too short.
std::vector<double> SharesAt(const Instance& instance, const Totals& totals, const std::vector<int32_t>& by_speed,
                             const std::vector<double>& comp_ms, double limit_ms) {
  std::vector<double> shares(instance.devices.size(), 0.0);
  double missing = 1, path_ms = 0;
  for (const int32_t d : by_speed) {
    const double share = std::min(missing, MostShare(instance, totals, d, comp_ms[d], limit_ms));
    if (share < 1e-6) continue;
    shares[d] = share;
    missing -= share;
    path_ms += share * comp_ms[d] + instance.net.tx_ms + instance.net.lat_ms;
    if (missing <= 1e-9) break;
  }
  return missing <= 1e-9 && path_ms <= limit_ms ? shares : std::vector<double>{};
}

}  // namespace

std::vector<double> FluidShares(const Instance& instance) {
  const Totals totals = TotalsOf(instance);
  std::vector<double> comp_ms;
  for (const Instance::Device& device : instance.devices) comp_ms.push_back(CompMs(device));
  std::vector<int32_t> by_speed(instance.devices.size());
  std::iota(by_speed.begin(), by_speed.end(), 0);
  std::stable_sort(by_speed.begin(), by_speed.end(), [&](int a, int b) { return comp_ms[a] < comp_ms[b]; });
  double low = 0, high = 1;
  while (high < 1e30 && SharesAt(instance, totals, by_speed, comp_ms, high).empty()) high *= 4;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (SharesAt(instance, totals, by_speed, comp_ms, middle).empty() ? low : high) = middle;
  }
  return SharesAt(instance, totals, by_speed, comp_ms, high);
}

Assignment UniformRounds(const Instance& instance, const std::vector<int32_t>& unit_begins, const std::vector<double>& shares,
                         const std::vector<int32_t>& order, int rounds) {
  const int units = static_cast<int>(unit_begins.size()) - 1;
  Assignment plan = AllOn(instance, 0);
  double total_mb = 0, sum = 0;
  for (const Instance::Block& block : instance.blocks) total_mb += block.mb + block.kv_mb;
  for (const int32_t d : order) sum += shares[d];
  // A unit goes to the stage whose range of all megabytes has the unit's middle.
  size_t stage = 0;
  const size_t stages = order.size() * rounds;
  double end_mb = total_mb * shares[order[0]] / sum / rounds, at_mb = 0;
  for (int u = 0; u < units; ++u) {
    double unit_mb = 0;
    for (int b = unit_begins[u]; b < unit_begins[u + 1]; ++b) unit_mb += instance.blocks[b].mb + instance.blocks[b].kv_mb;
    while (stage + 1 < stages && at_mb + unit_mb / 2 > end_mb) {
      ++stage;
      end_mb += total_mb * shares[order[stage % order.size()]] / sum / rounds;
    }
    for (int b = unit_begins[u]; b < unit_begins[u + 1]; ++b) plan.device[b] = static_cast<int16_t>(order[stage % order.size()]);
    at_mb += unit_mb;
  }
  return plan;
}

namespace {

// The blocks that each device may stream in its style: in order, or the first of every visit, then
// the second of every visit, and so on.
struct Candidates {
  std::vector<int32_t> blocks;
  double mb = 0;
  double over_mb = 0;  // excess over the device's memory, without the pool
};

std::vector<Candidates> CandidatesOf(const Instance& instance, const std::vector<StreamingStyle>& styles, const Assignment& plan) {
  const int blocks = instance.NumBlocks();
  std::vector<Candidates> all(instance.devices.size());
  for (size_t d = 0; d < all.size(); ++d) all[d].over_mb = -instance.devices[d].mem_mb;
  if (!plan.embedding_by_rows) all[plan.device[0]].over_mb += instance.embed_mb;
  std::vector<int32_t> place(blocks);  // in the visit, among blocks that may stream
  for (int b = 0; b < blocks; ++b) {
    const int d = plan.device[b];
    const Instance::Block& block = instance.blocks[b];
    all[d].over_mb += block.mb + block.kv_mb;
    const bool same_visit = b > 0 && plan.device[b - 1] == d;
    const bool streams = block.mb > 0 && block.mb <= styles[d].largest_mb;
    place[b] = (same_visit ? place[b - 1] : 0) + (streams ? 1 : 0);
    if (!streams) continue;
    all[d].blocks.push_back(b);
    all[d].mb += block.mb;
  }
  for (size_t d = 0; d < all.size(); ++d) {
    if (styles[d].spread || all[d].over_mb <= kMemorySlackMb) continue;
    std::stable_sort(all[d].blocks.begin(), all[d].blocks.end(), [&](int32_t a, int32_t b) { return place[a] < place[b]; });
  }
  return all;
}

}  // namespace

void StreamInStyle(const Instance& instance, const std::vector<StreamingStyle>& styles, Assignment& plan) {
  const std::vector<Candidates> all = CandidatesOf(instance, styles, plan);
  for (int d = 0; d < instance.NumDevices(); ++d) {
    const StreamingStyle& style = styles[d];
    const Candidates& candidates = all[d];
    if (candidates.over_mb <= kMemorySlackMb || candidates.blocks.empty() || instance.devices[d].disk_mb_per_ms <= 0) continue;
    const double want_mb = candidates.over_mb + std::max(style.pool_mb, style.largest_mb);
    const double share = style.spread ? std::min(1.0, want_mb / candidates.mb) : 1;
    double due_mb = 0, streamed_mb = 0;
    for (const int32_t b : candidates.blocks) {
      const double mb = instance.blocks[b].mb;
      due_mb += share * mb;
      if (streamed_mb >= want_mb || due_mb < streamed_mb + mb / 2) continue;
      plan.streamed[b] = 1;
      streamed_mb += mb;
    }
  }
}

std::vector<StreamingStyle> StreamingStyles(const Instance& instance) {
  std::set<double> sizes;
  for (const Instance::Block& block : instance.blocks) {
    if (block.mb > 0) sizes.insert(block.mb);
  }
  std::vector<double> chosen(sizes.begin(), sizes.end());
  while (chosen.size() > 4) {  // drop every other one, keep the largest
    std::vector<double> half;
    for (size_t i = chosen.size(); i > 0; i -= std::min<size_t>(i, 2)) half.insert(half.begin(), chosen[i - 1]);
    chosen = half;
  }
  std::vector<StreamingStyle> styles;
  for (const double mb : chosen) {
    for (const double deep : {1, 2, 4}) {
      for (const bool spread : {true, false}) styles.push_back({mb, deep * mb, spread});
    }
  }
  if (styles.empty()) styles.push_back({});
  return styles;
}

std::vector<std::vector<int32_t>> DeviceOrders(const Instance& instance, const std::vector<double>& shares, Random& random) {
  std::vector<int32_t> used;
  for (int d = 0; d < instance.NumDevices(); ++d) {
    if (shares[d] > 0) used.push_back(d);
  }
  std::vector<std::vector<int32_t>> orders = {used};
  if (used.size() <= 5) {
    while (std::next_permutation(used.begin(), used.end())) orders.push_back(used);
    return orders;
  }
  const auto sorted = [&](auto key) {
    std::vector<int32_t> order = used;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return key(instance.devices[a]) < key(instance.devices[b]); });
    orders.push_back(order);
    std::reverse(order.begin(), order.end());
    orders.push_back(order);
  };
  sorted(CompMs);
  sorted([](const Instance::Device& device) { return device.mem_mb; });
  sorted([](const Instance::Device& device) { return device.disk_mb_per_ms; });
  for (int i = 0; i < 9; ++i) {
    for (size_t j = used.size() - 1; j > 0; --j) std::swap(used[j], used[random.Below(static_cast<int>(j) + 1)]);
    orders.push_back(used);
  }
  return orders;
}

}  // namespace lime
