#include "planner/search/dispatch.h"

#include <algorithm>
#include <limits>

#include "planner/base/random.h"

namespace lime {

Dispatcher::Dispatcher(const Instance& instance, const MixedCountProgram& counts)
    : instance_(instance), counts_(counts), machines_(instance.devices.size()) {}

void Dispatcher::Prepare(const Question& question) {
  Random random(question.seed);
  held_ = {};
  for (size_t d = 0; d < machines_.size(); ++d) {
    const MixedCountProgram::Share& share = question.shares[d];
    Machine& machine = machines_[d];
    machine.reads.clear();
    const int small = share.streamed[0], all = small + share.streamed[1];
    const double begin = random.Uniform();
    for (int i = 0; i < all; ++i) {
      const double each = static_cast<double>(small) / all;
      machine.reads.push_back(static_cast<int>((i + 1 + begin) * each) > static_cast<int>((i + begin) * each) ? 0 : 1);
    }
    machine.come_ms.assign(all, 0.0);
    machine.loaded = machine.used = 0;
    machine.disk_free_ms = all > 0 ? random.Uniform() * counts_.LoadMs(static_cast<int>(d), machine.reads[0]) : 0;
    machine.room_ms = 0;
    machine.pool_mb = instance_.devices[d].mem_mb + kMemorySlackMb;
    for (int size = 0; size < 2; ++size) {
      machine.held[size] = share.units[size] - share.streamed[size];
      held_[size] += machine.held[size];
      machine.pool_mb -= machine.held[size] * counts_.WeightsMb(size) + share.units[size] * counts_.KvMb(size);
    }
    if (static_cast<int>(d) == question.order.front() && !instance_.devices[d].embed_rows_ms) machine.pool_mb -= instance_.embed_mb;
    if (static_cast<int>(d) == question.order.back()) machine.pool_mb -= counts_.head_mb();
    Load(static_cast<int>(d));
  }
}

// Continues reading while there is room.
void Dispatcher::Load(int d) {
  Machine& machine = machines_[d];
  const int64_t all = static_cast<int64_t>(machine.reads.size());
  while (machine.loaded < machine.used + all) {
    const int64_t i = machine.loaded % all;
    const int size = machine.reads[i];
    const double mb = counts_.WeightsMb(size);
    if (machine.pool_mb < mb && machine.loaded > machine.used) return;
    machine.pool_mb -= mb;
    machine.disk_free_ms = std::max(machine.disk_free_ms, machine.room_ms) + counts_.LoadMs(d, size);
    machine.come_ms[i] = machine.disk_free_ms;
    ++machine.loaded;
  }
}

// The device that computes a resident unit: the token's current device, else the one with the most
// units left.
int Dispatcher::Holder(int size, int at, bool first, const Question& question) const {
  if (first) return machines_[question.order.front()].remaining[size] > 0 ? question.order.front() : -1;
  if (at >= 0 && machines_[at].remaining[size] > 0) return at;
  int most = -1;
  for (const int32_t d : question.order) {
    const Machine& machine = machines_[d];
    if (machine.remaining[size] == 0) continue;
    if (most < 0 || machine.remaining[size] * machines_[most].held[size] > machines_[most].remaining[size] * machine.held[size]) most = d;
  }
  return most;
}

Dispatcher::Pick Dispatcher::PickFor(const Question& question, int size, double now_ms, double begin_ms, int at, bool first) const {
  // The device whose block arrives first; among arrived blocks, the device whose disk stops first.
  int next = -1;
  double next_ms = std::numeric_limits<double>::infinity(), stands_ms = next_ms;
  for (const int32_t d : question.order) {
    const Machine& machine = machines_[d];
    if (machine.streams_left == 0 || (first && d != question.order.front())) continue;
    const int64_t i = machine.used % static_cast<int64_t>(machine.reads.size());
    if (machine.reads[i] != size) continue;
    const double ms = std::max(now_ms, machine.come_ms[i]);
    if (ms > next_ms || (ms == next_ms && machine.disk_free_ms >= stands_ms)) continue;
    next = d, next_ms = ms, stands_ms = machine.disk_free_ms;
  }
  const int holder = Holder(size, at, first, question);
  if (next < 0) return {.device = holder};
  if (holder < 0 || next_ms <= now_ms) return {.device = next, .streamed = true};
  const double due = held_[size] * std::min(1.0, (now_ms - begin_ms) / question.limit_ms) + question.ahead;
  return held_[size] - remaining_[size] < due ? Pick{.device = holder} : Pick{.device = next, .streamed = true};
}

// If every remaining block of a size comes after one of the other size: any of them, out of order.
Dispatcher::Pick Dispatcher::PickOutOfTurn(int size) {
  for (size_t d = 0; d < machines_.size(); ++d) {
    Machine& machine = machines_[d];
    const int64_t all = static_cast<int64_t>(machine.reads.size());
    for (int i = 1; i < machine.streams_left; ++i) {
      uint8_t& later = machine.reads[(machine.used + i) % all];
      if (later != size) continue;
      std::swap(later, machine.reads[machine.used % all]);
      return {.device = static_cast<int>(d), .streamed = true};
    }
  }
  return {};
}

void Dispatcher::BeginStep() {
  remaining_ = held_;
  for (Machine& machine : machines_) {
    machine.remaining = machine.held;
    machine.streams_left = static_cast<int>(machine.reads.size());
  }
}

// Returns when the unit has been computed.
double Dispatcher::Assign(const Pick& pick, int size, double now_ms) {
  Machine& machine = machines_[pick.device];
  const double comp_ms = counts_.CompMs(pick.device, size);
  if (!pick.streamed) {
    --machine.remaining[size];
    --remaining_[size];
    return now_ms + comp_ms;
  }
  const double come_ms = machine.come_ms[machine.used % static_cast<int64_t>(machine.reads.size())];
  --machine.streams_left;
  ++machine.used;
  machine.pool_mb += counts_.WeightsMb(size);
  machine.room_ms = std::max(now_ms, come_ms) + comp_ms;
  Load(pick.device);
  return machine.room_ms;
}

Assignment Dispatcher::Arrange(const Question& question) {
  Prepare(question);
  Assignment plan = AllOn(instance_, question.order.back());
  const double hop_ms = instance_.net.tx_ms + instance_.net.lat_ms;
  const int units = counts_.NumHalves();
  double now_ms = 0;
  int at = question.order.front();
  for (int step = 0; step < kSteps; ++step) {
    const double begin_ms = now_ms;
    BeginStep();
    for (int u = 0; u < units; ++u) {
      const int size = counts_.SizeOf(u);
      Pick pick = PickFor(question, size, now_ms, begin_ms, at, u == 0);
      if (pick.device < 0) pick = PickFor(question, size, now_ms, begin_ms, at, false);
      if (pick.device < 0) pick = PickOutOfTurn(size);
      if (pick.device != at) now_ms += hop_ms;
      at = pick.device;
      now_ms = Assign(pick, size, now_ms);
      plan.device[u] = static_cast<int16_t>(at);
      plan.streamed[u] = pick.streamed ? 1 : 0;
    }
    at = question.order.back();
  }
  work_ = kSteps * units * (1 + 0.5 * static_cast<double>(machines_.size()));
  return plan;
}

}  // namespace lime
