#include "planner/search/mixed_counts.h"

#include <algorithm>
#include <limits>

#include "planner/base/random.h"

namespace lime {
namespace {

constexpr int kMostUnits = 2047;  // of one size; the program needs the square of it
constexpr int kRadix = kMostUnits + 1, kNoUnit = -2 * kRadix;

// How many of `each` fit in `room`, at most `most`; -1 if `room` is negative.
int Fit(double room, double each, int most) {
  if (room < 0) return -1;
  return each * most <= room ? most : static_cast<int>(room / each);
}

}  // namespace

MixedCountProgram::MixedCountProgram(const Instance& instance, const std::vector<int32_t>& unit_begins)
    : UnitSizes(instance, unit_begins), instance_(instance) {
  applies_ = NumHalves() > 0 && std::max(sizes_[0].count, sizes_[1].count) <= kMostUnits;
  for (int u = 0; u < NumHalves(); ++u) {
    const Instance::Block& block = instance.blocks[unit_begins[u]];
    applies_ = applies_ && unit_begins[u + 1] == unit_begins[u] + 1 && block.mb + block.kv_mb > 0;
  }
}

// The most small units with `large` large ones, over all numbers of streamed large ones.
MixedCountProgram::Share MixedCountProgram::MostSmall(const Room& room, int large) {
  const Size &small_size = sizes_[0], &large_size = sizes_[1];
  Share best = {.units = {-1, large}};
  const double comp_ms = room.comp_ms - large * large_size.comp_ms[room.device];
  const int computed = comp_ms < 0 ? -1 : Fit(comp_ms, small_size.comp_ms[room.device], small_size.count);
  const double small_mb = small_size.mb + small_size.kv_mb, need_mb = large * (large_size.mb + large_size.kv_mb);
  const auto try_streaming = [&](int small_streams, int streams, double left_mb) {
    if (left_mb < 0) return;
    int small = Fit(left_mb + small_streams * small_size.mb, small_mb, small_size.count);
    if (small < small_streams) small = Fit(left_mb, small_size.kv_mb, small_streams);
    small = std::min(small, computed);
    if (small > best.units[0]) best = {.units = {small, large}, .streamed = {std::min(small_streams, small), streams}};
  };
  try_streaming(0, 0, room.mb - need_mb);
  const int alone = room.SmallStreams(0, small_size.count);
  if (alone > 0) try_streaming(alone, 0, room.mb - room.small_pool_mb - need_mb);
  const double most_mb = room.mb - room.large_pool_mb - need_mb + room.disk_mb;
  const int most = most_mb < 0 ? -1 : std::min(computed, Fit(most_mb, small_mb, small_size.count));
  for (int streams = 1; streams <= large && streams * room.large_ms <= room.limit_ms && best.units[0] < most; ++streams) {
    const double left_mb = room.mb - room.large_pool_mb - need_mb + streams * large_size.mb;
    try_streaming(0, streams, left_mb);
    try_streaming(room.SmallStreams(streams, small_size.count), streams, left_mb);
    work_ += 2;
  }
  work_ += 3;
  return best;
}

MixedCountProgram::Room MixedCountProgram::RoomOf(const Question& question, int d) const {
  const Instance::Device& device = instance_.devices[d];
  const double pool = question.pools[d];
  Room room = {.device = d, .mb = device.mem_mb + kMemorySlackMb, .limit_ms = question.limit_ms};
  if (d == question.order.front() && !device.embed_rows_ms) room.mb -= instance_.embed_mb;
  if (d == question.order.back()) room.mb -= head_mb_;
  room.comp_ms = question.limit_ms / instance_.microbatches;
  room.large_pool_mb = pool * sizes_[1].mb;
  room.small_pool_mb = std::max(1.0, 2 * pool - 1) * sizes_[0].mb;
  // A pool of one block can read the next one only after the block was computed.
  const auto load_ms = [&](const Size& size) {
    return device.disk_mb_per_ms > 0 ? size.mb / device.disk_mb_per_ms + device.disk_lat_ms + (pool < 1.5 ? size.comp_ms[d] : 0)
                                     : std::numeric_limits<double>::infinity();
  };
  room.small_ms = load_ms(sizes_[0]);
  room.large_ms = load_ms(sizes_[1]);
  room.disk_mb = question.limit_ms * device.disk_mb_per_ms;
  return room;
}

// Skips an unchanged device: a change of a recipe mostly changes one.
void MixedCountProgram::CountSmall(const Question& question, int d) {
  const Room room = RoomOf(question, d);
  if (room == room_of_[d]) return;
  room_of_[d] = room;
  best_of_[d].clear();
  for (int large = 0; large <= sizes_[1].count; ++large) {
    const Share best = MostSmall(room, large);
    if (best.units[0] < 0) return;
    best_of_[d].push_back(best);
  }
}

std::vector<MixedCountProgram::Share> MixedCountProgram::Shares(const Question& question) {
  const int devices = instance_.NumDevices(), all_large = sizes_[1].count;
  work_ = NumHalves();
  room_of_.resize(devices);
  best_of_.resize(devices);
  large_of_.resize(devices);
  // By large units placed: the most small ones.
  std::vector<int> most(all_large + 1, kNoUnit), next;
  most[0] = 0;
  int reach = 0;  // most large units placed so far
  for (int d = 0; d < devices; ++d) {
    CountSmall(question, d);
    const std::vector<Share>& best = best_of_[d];
    if (best.empty()) return {};
    // Encodes the small units and, in the lower digits, the large units of d, so that max() keeps
    // both.
    next.assign(all_large + 1, kNoUnit * kRadix);
    for (int large = 0; large < static_cast<int>(best.size()); ++large) {
      const int last = std::min(reach, all_large - large), small = best[large].units[0] * kRadix + large;
      for (int placed = 0; placed <= last; ++placed) next[placed + large] = std::max(next[placed + large], most[placed] * kRadix + small);
      work_ += 0.08 * (last + 1);
    }
    reach = std::min(reach + static_cast<int>(best.size()) - 1, all_large);
    large_of_[d].resize(all_large + 1);
    for (int placed = 0; placed <= all_large; ++placed) {
      large_of_[d][placed] = next[placed] < 0 ? 0 : next[placed] % kRadix;
      most[placed] = next[placed] < 0 ? kNoUnit : std::min(next[placed] / kRadix, sizes_[0].count);
    }
  }
  if (most[all_large] < sizes_[0].count) return {};
  std::vector<Share> shares(devices);
  int surplus = -sizes_[0].count;
  for (int d = devices - 1, placed = all_large; d >= 0; --d) {
    shares[d] = best_of_[d][large_of_[d][placed]];
    surplus += shares[d].units[0];
    placed -= large_of_[d][placed];
  }
  RemoveFromSlowest(surplus, shares);
  return shares;
}

void MixedCountProgram::RemoveFromSlowest(int surplus, std::vector<Share>& shares) const {
  for (const int d : slowest_first_) {
    Share& share = shares[d];
    const int off = std::min(surplus, share.units[0]);
    share.units[0] -= off;
    share.streamed[0] = std::max(0, share.streamed[0] - off);
    surplus -= off;
  }
}

// A device continues until it is ahead of its even share by half of its units per round. Then the
// device that is most behind continues.
Assignment MixedCountProgram::Arrange(const std::vector<Share>& shares, const std::vector<int32_t>& order, int rounds,
                                      uint64_t seed) const {
  struct Pace {
    double units = 0, remaining = 0, ahead = 0, streams = 0, begin = 0;
  };
  Random random(seed);
  const size_t devices = shares.size();
  std::vector<Pace> paces(2 * devices);  // by size and index in the order
  for (size_t i = 0; i < devices; ++i) {
    const Share& share = shares[order[i]];
    for (size_t size = 0; size < 2; ++size) {
      const double units = share.units[size];
      paces[size * devices + i] = {.units = units,
                                   .remaining = units,
                                   .ahead = 0.5 * units / rounds,
                                   .streams = units > 0 ? share.streamed[size] / units : 0,
                                   .begin = random.Uniform()};
    }
  }
  Assignment plan = AllOn(instance_, order.back());
  const double each[] = {1.0 / std::max(1, sizes_[0].count), 1.0 / std::max(1, sizes_[1].count)};
  // Share of the model after the middle of the next unit of a size.
  double remaining[] = {1 - each[0] / 2, 1 - each[1] / 2};
  size_t at = 0;
  for (int u = 0; u < NumHalves(); ++u) {
    const int size = size_of_[u];
    Pace* const of_size = &paces[size * devices];
    const auto behind = [&](const Pace& pace) { return pace.remaining - pace.units * remaining[size]; };
    if (of_size[at].remaining < 0.5 || behind(of_size[at]) < -of_size[at].ahead) {
      double most = -std::numeric_limits<double>::infinity();
      for (size_t i = 0; i < devices; ++i) {
        if (of_size[i].remaining > 0.5 && behind(of_size[i]) > most + 1e-9) most = behind(of_size[i]), at = i;
      }
    }
    Pace& pace = of_size[at];
    const double done = pace.units - pace.remaining + pace.begin;
    plan.device[u] = static_cast<int16_t>(order[at]);
    plan.streamed[u] = static_cast<int>((done + 1) * pace.streams) > static_cast<int>(done * pace.streams) ? 1 : 0;
    pace.remaining -= 1;
    remaining[size] -= each[size];
  }
  return plan;
}

}  // namespace lime
