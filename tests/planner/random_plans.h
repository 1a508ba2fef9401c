// Random instances and plans for tests. A seed gives the same ones on every machine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "planner/plan/instance/instance.h"
#include "planner/plan/instance/stage_plan.h"

namespace lime {

class RandomPlans {
 public:
  explicit RandomPlans(uint64_t seed) : random_(seed) {}

  // low to high, both included. std::uniform_int_distribution differs between libraries.
  int Int(int low, int high) { return low + static_cast<int>(random_() % static_cast<uint64_t>(high - low + 1)); }
  // A multiple of 1/8, whose sums are exact, so that memory can be just large enough; or any
  // double.
  double Number(double low, double high) {
    const double value = low + (high - low) * static_cast<double>(random_() >> 11) * 0x1p-53;
    return round_ ? static_cast<int64_t>(value * 8) / 8.0 : value;
  }
  bool Chance(int percent) { return Int(1, 100) <= percent; }

  Instance MakeInstance(int max_blocks, int max_devices, int max_microbatches) {
    round_ = Chance(50);
    Instance instance;
    const int blocks = Int(1, max_blocks), devices = Int(1, max_devices);
    const bool pieces = Chance(40);
    for (int b = 0; b < blocks; ++b) {
      const bool attention = b % 2 == 0;
      const bool head = b + 1 == blocks && Chance(50);
      if (b > 0 && pieces && Chance(50)) {  // one more piece of the model block before
        Instance::Block piece = instance.blocks.back();
        piece.mb = Number(1, 20);
        instance.blocks.push_back(piece);
        continue;
      }
      instance.blocks.push_back({.kind = head        ? Instance::Kind::kHead
                                         : attention ? Instance::Kind::kAttention
                                                     : Instance::Kind::kMlp,
                                 .layer = b / 2,
                                 .mb = Chance(5) ? 0 : Number(1, Chance(30) ? 60 : 20),
                                 .kv_mb = attention && !head ? Number(0, 4) : 0});
    }
    for (int d = 0; d < devices; ++d) {
      Instance::Device device = {.mem_mb = Number(0, 20.0 * blocks), .disk_mb_per_ms = Number(0.5, 10), .disk_lat_ms = Number(0, 1)};
      for (int b = 0; b < blocks; ++b) device.comp_ms.push_back(Chance(5) ? 0 : Number(0.5, 8));
      instance.devices.push_back(std::move(device));
    }
    instance.embed_mb = Chance(50) ? 0 : Number(0, 20);
    for (Instance::Device& device : instance.devices) {
      if (Chance(30)) device.embed_rows_ms = Number(0, 3);
    }
    instance.net = {.tx_ms = Number(0, 3), .lat_ms = Number(0, 2)};
    instance.microbatches = Int(1, max_microbatches);
    return instance;
  }

  // Any stages and any streamed blocks, whether or not they fit.
  StagePlan MakePlan(const Instance& instance) {
    StagePlan plan;
    for (int lo = 0; lo < instance.NumBlocks();) {
      int device = Int(0, instance.NumDevices() - 1);
      if (!plan.stages.empty() && plan.stages.back().device == device) device = (device + 1) % instance.NumDevices();
      const int hi = instance.NumDevices() == 1 ? instance.NumBlocks() : Int(lo + 1, std::min(instance.NumBlocks(), lo + 5));
      plan.stages.push_back({device, lo, hi});
      lo = hi;
    }
    const int percent = Int(0, 100);
    for (int b = 0; b < instance.NumBlocks(); ++b) {
      if (Chance(percent)) plan.streamed.push_back(b);
    }
    plan.embedding_by_rows = instance.devices[plan.stages[0].device].embed_rows_ms && Chance(50);
    return plan;
  }

  // Gives each device memory for a pool that is just large enough or somewhat larger, so that loads
  // wait for one another.
  void FitMemory(const StagePlan& plan, Instance& instance) {
    std::vector<double> used(instance.devices.size(), 0.0), pool(instance.devices.size(), 0.0);
    if (!plan.embedding_by_rows) used[plan.stages.front().device] += instance.embed_mb;
    for (const Stage& stage : plan.stages) {
      double streamed = 0;
      for (int b = stage.lo; b < stage.hi; ++b) {
        const bool streams = std::binary_search(plan.streamed.begin(), plan.streamed.end(), b);
        const Instance::Block& block = instance.blocks[b];
        used[stage.device] += block.kv_mb + (streams ? 0 : block.mb);
        if (streams) streamed = instance.microbatches > 1 ? streamed + block.mb : std::max(streamed, block.mb);
      }
      pool[stage.device] = std::max(pool[stage.device], streamed);
    }
    for (int d = 0; d < instance.NumDevices(); ++d) {
      const double extra = Chance(30) ? 0 : Number(0, Chance(20) ? 400 : 40);
      instance.devices[d].mem_mb = used[d] + pool[d] + extra;
    }
  }

 private:
  std::mt19937_64 random_;
  bool round_ = false;
};

}  // namespace lime
