#include "planner/evaluation/lower_bound.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "planner/evaluation/evaluator.h"
#include "planner/evaluation/simplex.h"

namespace lime {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Joins equal blocks and equal devices to keep the program small, and unequal ones if there are
// still too many. That only loses precision, because ProvenMs checks the result against the
// instance itself.
constexpr size_t kMaxBlockGroups = 24, kMaxDeviceGroups = 64;

struct BlockGroup {
  double mb = 0, kv_mb = 0;  // of all of them
  std::vector<int32_t> blocks;
};

struct DeviceGroup {
  double mem_mb = 0, mb_per_ms = 0;
  double embed_rows_ms = kInfinity;  // the minimum of all
  std::vector<int32_t> devices;
};

// One price per resource of a device: a proof that no plan is faster.
struct Prices {
  std::vector<double> memory;     // per MB of weights or KV on device i
  std::vector<double> kv;         // per MB of KV, in addition
  std::vector<double> computing;  // per ms of computing there
  double path = 0;                // per ms of a micro-batch's path
};

class Bound {
 public:
  explicit Bound(const Instance& instance) : instance_(instance) {
    for (const Instance::Block& block : instance.blocks) {
      largest_mb_ = std::max(largest_mb_, block.mb);
      total_mb_ += block.mb + block.kv_mb;
    }
    if (!AnyReadsRows()) total_mb_ += instance.embed_mb;
    constexpr double kCounted = Evaluator::kSteps - 1 - Evaluator::kSettledStep;
    // At the end of the settled step, all micro-batches but one may have completed the next step.
    computing_per_step_ = instance.microbatches - (instance.microbatches - 1) / kCounted;
    GroupBlocks();
    GroupDevices();
  }

  // For every k: T >= min(least T for which k - 1 devices suffice, the program's optimum with the
  // hops of k devices).
  double Ms() {
    double best = 0;
    int low = 1, high = instance_.NumDevices();
    while (low <= high) {
      const int k = low + (high - low) / 2;
      const double fewer = k == 1 ? kInfinity : LeastMsOn(k - 1);
      const double program = ProgramMs(k);
      best = std::max(best, std::min(fewer, program));
      if (fewer > program) {
        low = k + 1;
      } else {
        high = k - 1;
      }
    }
    constexpr double kRounding = 1 - 1e-11;
    return std::isfinite(best) ? std::max(0.0, best * kRounding) : 0;
  }

 private:
  bool AnyReadsRows() const {
    return std::any_of(instance_.devices.begin(), instance_.devices.end(),
                       [](const Instance::Device& device) { return device.embed_rows_ms.has_value(); });
  }
  double MbPerMs(int d) const {
    const Instance::Device& device = instance_.devices[d];
    if (device.disk_mb_per_ms <= 0 || largest_mb_ <= 0) return 0;
    return 1 / (1 / device.disk_mb_per_ms + device.disk_lat_ms / largest_mb_);
  }
  double MemMb(int d) const { return instance_.devices[d].mem_mb + kMemorySlackMb; }

  void GroupBlocks() {
    std::map<std::vector<double>, std::vector<int32_t>> alike;
    for (int b = 0; b < instance_.NumBlocks(); ++b) {
      std::vector<double> key = {instance_.blocks[b].mb + instance_.blocks[b].kv_mb, instance_.blocks[b].kv_mb};
      if (instance_.NumBlocks() * instance_.devices.size() <= 1'000'000) {
        for (const Instance::Device& device : instance_.devices) key.push_back(device.comp_ms[b]);
      }
      alike[key].push_back(b);
    }
    const size_t together = (alike.size() + kMaxBlockGroups - 1) / kMaxBlockGroups;
    size_t index = 0;
    for (const auto& [key, blocks] : alike) {
      if (index++ % together == 0) block_groups_.emplace_back();
      BlockGroup& group = block_groups_.back();
      for (const int32_t b : blocks) {
        group.mb += instance_.blocks[b].mb;
        group.kv_mb += instance_.blocks[b].kv_mb;
        group.blocks.push_back(b);
      }
    }
  }

  void GroupDevices() {
    std::map<std::vector<double>, std::vector<int32_t>> alike;
    for (int d = 0; d < instance_.NumDevices(); ++d) {
      std::vector<double> key = {std::accumulate(instance_.devices[d].comp_ms.begin(), instance_.devices[d].comp_ms.end(), 0.0)};
      for (const BlockGroup& group : block_groups_) key.push_back(CompMs(group, d));
      alike[key].push_back(d);
    }
    const size_t together = (alike.size() + kMaxDeviceGroups - 1) / kMaxDeviceGroups;
    size_t index = 0;
    for (const auto& [key, devices] : alike) {
      if (index++ % together == 0) device_groups_.emplace_back();
      DeviceGroup& group = device_groups_.back();
      for (const int32_t d : devices) {
        group.mem_mb += MemMb(d);
        group.mb_per_ms += MbPerMs(d);
        group.embed_rows_ms = std::min(group.embed_rows_ms, instance_.devices[d].embed_rows_ms.value_or(kInfinity));
        group.devices.push_back(d);
      }
    }
  }

  double CompMs(const BlockGroup& group, int d) const {
    double ms = 0;
    for (const int32_t b : group.blocks) ms += instance_.devices[d].comp_ms[b];
    return ms;
  }

  double HopsMs(int devices) const {
    const Instance::Net& net = instance_.net;
    return devices < 2 ? 0 : (devices - 1) * (net.tx_ms + net.lat_ms) + net.lat_ms;
  }

  // The least T for which the largest k devices hold everything.
  double LeastMsOn(int k) const {
    const auto suffice = [&](double ms) {
      std::vector<double> room_mb(instance_.NumDevices());
      for (int d = 0; d < instance_.NumDevices(); ++d) room_mb[d] = MemMb(d) + MbPerMs(d) * ms;
      std::nth_element(room_mb.begin(), room_mb.begin() + (k - 1), room_mb.end(), std::greater<>());
      return std::accumulate(room_mb.begin(), room_mb.begin() + k, 0.0) * (1 + 1e-12) >= total_mb_;
    };
    if (suffice(0)) return 0;
    double low = 0, high = 1;
    while (high < 1e30 && !suffice(high)) low = high, high *= 2;
    for (int i = 0; i < 60; ++i) {
      const double middle = (low + high) / 2;
      (suffice(middle) ? high : low) = middle;
    }
    return low;
  }

  // Variables: the share of every block group on every device group; the shares of the embedding
  // there, held and read by rows; and T without the hops.
  double ProgramMs(int devices) const {
    const double hops_ms = HopsMs(devices);
    const size_t groups = device_groups_.size(), kinds = block_groups_.size() + 1, by_rows = kinds * groups, last = by_rows + groups;
    LinearProgram program;
    program.cost.assign(last + 1, 0.0);
    program.cost[last] = 1;
    const std::vector<double> zero(last + 1, 0.0);
    for (size_t k = 0; k < kinds; ++k) {
      program.rows.push_back({.a = zero, .b = 1, .equal = true});
      for (size_t g = 0; g < groups; ++g) program.rows.back().a[k * groups + g] = 1;
    }
    for (size_t g = 0; g < groups; ++g) program.rows.back().a[by_rows + g] = std::isfinite(device_groups_[g].embed_rows_ms) ? 1 : 0;
    program.rows.push_back({.a = zero, .b = 0});  // path of a micro-batch
    program.rows.back().a[last] = -1;
    LinearProgram::Row& path = program.rows.back();
    std::vector<LinearProgram::Row> rows;
    for (size_t g = 0; g < groups; ++g) {
      const DeviceGroup& group = device_groups_[g];
      const double count = static_cast<double>(group.devices.size());
      LinearProgram::Row memory = {.a = zero, .b = group.mem_mb + group.mb_per_ms * hops_ms}, kv = {.a = zero, .b = group.mem_mb},
                         computing = {.a = zero, .b = hops_ms * count};
      memory.a[last] = -group.mb_per_ms;
      computing.a[last] = -count;
      for (size_t k = 0; k < kinds; ++k) {
        const bool embedding = k + 1 == kinds;
        const size_t at = k * groups + g;
        kv.a[at] = embedding ? instance_.embed_mb : block_groups_[k].kv_mb;
        memory.a[at] = kv.a[at] + (embedding ? 0 : block_groups_[k].mb);
        const double comp_ms = embedding ? 0 : CompMs(block_groups_[k], group.devices[0]);
        path.a[at] = comp_ms;
        computing.a[at] = comp_ms * computing_per_step_;
      }
      if (std::isfinite(group.embed_rows_ms)) {
        path.a[by_rows + g] = group.embed_rows_ms;
        computing.a[by_rows + g] = group.embed_rows_ms * computing_per_step_;
      }
      for (LinearProgram::Row* row : {&memory, &kv, &computing}) rows.push_back(std::move(*row));
    }
    for (LinearProgram::Row& row : rows) program.rows.push_back(std::move(row));
    return ProvenMs(PricesOf(Minimise(program).multipliers), hops_ms);
  }

  Prices PricesOf(const std::vector<double>& multipliers) const {
    const size_t devices = instance_.devices.size(), first = block_groups_.size() + 1;
    Prices prices = {std::vector<double>(devices), std::vector<double>(devices), std::vector<double>(devices), 0};
    prices.path = std::max(0.0, multipliers[first]);
    for (size_t g = 0; g < device_groups_.size(); ++g) {
      for (const int32_t d : device_groups_[g].devices) {
        prices.memory[d] = std::max(0.0, multipliers[first + 1 + 3 * g]);
        prices.kv[d] = std::max(0.0, multipliers[first + 2 + 3 * g]);
        prices.computing[d] = std::max(0.0, multipliers[first + 3 + 3 * g]);
      }
    }
    return prices;
  }

  // Weak duality: for any prices, a plan pays at least the price of the cheapest device for each
  // block, and no resource sells more than it has in T. Rounding or joining therefore cannot make
  // the bound too high.
  double ProvenMs(const Prices& prices, double hops_ms) const {
    double paid = prices.path * hops_ms, sold_per_ms = prices.path, embedding = kInfinity;
    for (int d = 0; d < instance_.NumDevices(); ++d) {
      paid -= (prices.memory[d] + prices.kv[d]) * MemMb(d);
      sold_per_ms += prices.memory[d] * MbPerMs(d) + prices.computing[d];
      embedding = std::min(embedding, (prices.memory[d] + prices.kv[d]) * instance_.embed_mb);
      if (const std::optional<double>& rows_ms = instance_.devices[d].embed_rows_ms) {
        embedding = std::min(embedding, (prices.path + prices.computing[d] * computing_per_step_) * *rows_ms);
      }
    }
    paid += embedding;
    for (int b = 0; b < instance_.NumBlocks(); ++b) {
      const Instance::Block& block = instance_.blocks[b];
      double cheapest = kInfinity;
      for (int d = 0; d < instance_.NumDevices(); ++d) {
        const double comp_ms = instance_.devices[d].comp_ms[b];
        cheapest = std::min(cheapest, prices.memory[d] * (block.mb + block.kv_mb) + prices.kv[d] * block.kv_mb + prices.path * comp_ms +
                                          prices.computing[d] * comp_ms * computing_per_step_);
      }
      paid += cheapest;
    }
    return sold_per_ms > 0 && paid > 0 ? paid / sold_per_ms : 0;
  }

  const Instance& instance_;
  double largest_mb_ = 0, total_mb_ = 0, computing_per_step_ = 1;
  std::vector<BlockGroup> block_groups_;
  std::vector<DeviceGroup> device_groups_;
};

}  // namespace

double LowerBoundMs(const Instance& instance) {
  return Bound(instance).Ms();
}

}  // namespace lime
