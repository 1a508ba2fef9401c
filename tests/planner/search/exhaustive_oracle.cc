#include "tests/planner/search/exhaustive_oracle.h"

#include <cmath>
#include <limits>
#include <vector>

#include "planner/evaluation/evaluator.h"

namespace lime {
namespace {

// The same layer as the block before: may not be cut off from it.
bool Continues(const Instance& instance, int b) {
  if (b == 0 || instance.blocks[b].kind == Instance::Kind::kHead || instance.blocks[b].kind == Instance::Kind::kLayer) return false;
  const Instance::Kind before = instance.blocks[b - 1].kind;
  if (before == Instance::Kind::kHead || before == Instance::Kind::kLayer) return false;
  return instance.blocks[b].layer == instance.blocks[b - 1].layer;
}

bool MayCut(const Instance& instance, int b, Granularity granularity) {
  if (granularity == Granularity::kBlock) return true;
  if (granularity == Granularity::kLayer) return !Continues(instance, b);
  if (b == 0 || instance.blocks[b].kind == Instance::Kind::kHead) return true;
  return instance.blocks[b].kind != instance.blocks[b - 1].kind || instance.blocks[b].layer != instance.blocks[b - 1].layer;
}

double UnhinderedMs(const Instance& instance, const std::vector<Stage>& stages) {
  double ms = 0;
  for (const Stage& stage : stages) {
    for (int b = stage.lo; b < stage.hi; ++b) ms += instance.devices[stage.device].comp_ms[b];
  }
  const double hops = static_cast<double>(stages.size() - 1);
  return ms + hops * (instance.net.tx_ms + instance.net.lat_ms);
}

bool MayFit(const Instance& instance, const std::vector<Stage>& stages, uint32_t streamed) {
  double free_mb[8] = {};
  for (int d = 0; d < instance.NumDevices(); ++d) free_mb[d] = instance.devices[d].mem_mb + 1e-5;
  for (const Stage& stage : stages) {
    for (int b = stage.lo; b < stage.hi; ++b) {
      free_mb[stage.device] -= instance.blocks[b].kv_mb + ((streamed >> b & 1) != 0 ? 0 : instance.blocks[b].mb);
    }
  }
  for (int d = 0; d < instance.NumDevices(); ++d) {
    if (free_mb[d] < 0) return false;
  }
  return true;
}

}  // namespace

OracleBest LookAtEveryPlan(const Instance& instance, Granularity granularity) {
  const int n = instance.NumBlocks();
  OracleBest best = {.ms_per_step = std::numeric_limits<double>::infinity()};
  Evaluator evaluator(instance);
  std::vector<int> device(n, 0);
  std::vector<uint8_t> flags(n, 0);
  for (bool more = true; more;) {
    bool allowed = true;
    std::vector<Stage> stages;
    for (int b = 0; b < n; ++b) {
      const bool cut = b == 0 || device[b] != device[b - 1];
      if (cut && !MayCut(instance, b, granularity)) allowed = false;
      if (cut) stages.push_back({device[b], b, b});
      stages.back().hi = b + 1;
    }
    if (allowed && UnhinderedMs(instance, stages) * (1 - 1e-9) < best.ms_per_step) {
      for (uint32_t streamed = 0; streamed < 1u << n; ++streamed) {
        if (!MayFit(instance, stages, streamed)) continue;
        for (int b = 0; b < n; ++b) flags[b] = streamed >> b & 1;
        for (const bool by_rows : {false, true}) {
          if (by_rows && !instance.devices[stages[0].device].embed_rows_ms) continue;
          const double ms = evaluator.MsPerStep(stages, flags, by_rows);
          if (!(ms < best.ms_per_step)) continue;
          best = {.feasible = true, .ms_per_step = ms, .plan = {.stages = stages, .embedding_by_rows = by_rows}};
          for (int b = 0; b < n; ++b) {
            if (flags[b]) best.plan.streamed.push_back(b);
          }
        }
      }
    }
    more = false;
    for (int b = 0; b < n && !more; ++b) {
      device[b] = (device[b] + 1) % instance.NumDevices();
      more = device[b] != 0;
    }
  }
  return best;
}

}  // namespace lime
