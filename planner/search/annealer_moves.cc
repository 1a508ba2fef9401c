// The moves of the annealer.
#include <algorithm>

#include "planner/search/annealer.h"

namespace lime {

void Annealer::SetUnits(int begin, int end, int device) {
  std::fill(draft_.device.begin() + unit_begins_[begin], draft_.device.begin() + unit_begins_[end], static_cast<int16_t>(device));
}

int Annealer::StageBegin(int unit) const {
  while (unit > 0 && UnitDevice(unit - 1) == UnitDevice(unit)) --unit;
  return unit;
}

int Annealer::StageEnd(int unit) const {
  int end = unit + 1;
  while (end < units_ && UnitDevice(end) == UnitDevice(unit)) ++end;
  return end;
}

// Mostly 1, sometimes long.
int Annealer::RunLength() {
  int length = 1;
  while (length < units_ && random_.Chance(length < 4 ? 45 : 75)) ++length;
  return length;
}

bool Annealer::ShiftCut() {
  if (cuts_.empty()) return false;
  const int cut = cuts_[random_.Below(static_cast<int>(cuts_.size()))], length = RunLength();
  if (random_.Chance(50)) {
    SetUnits(cut, std::min(cut + length, units_), UnitDevice(cut - 1));
  } else {
    SetUnits(std::max(cut - length, 0), cut, UnitDevice(cut));
  }
  return true;
}

// A stage moves by a few units, which its neighbours exchange.
bool Annealer::SlideStage() {
  const int begin = StageBegin(random_.Below(units_)), end = StageEnd(begin);
  if (begin == 0 || end == units_) return false;
  const int before = UnitDevice(begin - 1), device = UnitDevice(begin), behind = UnitDevice(end);
  const int length = std::min(RunLength(), end - begin);
  if (random_.Chance(50)) {
    const int by = std::min(length, units_ - end);
    SetUnits(begin, begin + by, before);
    SetUnits(end, end + by, device);
  } else {
    const int by = std::min(length, begin);
    SetUnits(end - by, end, behind);
    SetUnits(begin - by, begin, device);
  }
  return true;
}

// One stage grows at one end, and another stage of the same device shrinks. The device keeps its
// share, so its memory does not change.
bool Annealer::TradeAtCuts() {
  if (cuts_.size() < 2) return false;
  const int n = static_cast<int>(cuts_.size());
  const int a = random_.Below(n);
  const int gains = UnitDevice(cuts_[a] - 1), loses = UnitDevice(cuts_[a]);
  const int length = random_.Chance(70) ? 1 : RunLength();
  const int first = random_.Below(n);
  for (int i = 0; i < n; ++i) {
    const int b = (first + i) % n, cut = cuts_[b];
    if (b == a) continue;
    const int left = UnitDevice(cut - 1), right = UnitDevice(cut);
    if (left == gains && right == loses) {
      SetUnits(std::max(cut - length, 0), cut, loses);
    } else if (left == loses && right == gains) {
      SetUnits(cut, std::min(cut + length, units_), loses);
    } else {
      continue;
    }
    SetUnits(cuts_[a], std::min(cuts_[a] + length, units_), gains);
    return true;
  }
  return false;
}

bool Annealer::MoveRun() {
  const int begin = random_.Below(units_), length = RunLength(), device = random_.Below(instance_.NumDevices());
  if (device == UnitDevice(begin)) return false;
  SetUnits(begin, std::min(begin + length, units_), device);
  return true;
}

// A unit moves to another device, and about as many megabytes of that device come back, possibly as
// several small units for a large one.
bool Annealer::Exchange() {
  const int unit = random_.Below(units_), from = UnitDevice(unit), to = random_.Below(instance_.NumDevices());
  if (to == from) return false;
  double owed_mb = UnitMb(unit);
  const double slack_mb = owed_mb * 0.25;
  for (int i = 0; i < 8; ++i) {
    const int back = UnitBeside(to, from, owed_mb + slack_mb);
    if (back < 0) break;
    owed_mb -= UnitMb(back);
    SetUnits(back, back + 1, from);
  }
  SetUnits(unit, unit + 1, to);
  return true;
}

// A unit of `device` of at most `most_mb`, next to a stage of `other` if possible. -1: none.
int Annealer::UnitBeside(int device, int other, double most_mb) {
  const int start = random_.Below(units_);
  int any = -1;
  for (int i = 0; i < units_; ++i) {
    const int u = start + i < units_ ? start + i : start + i - units_;
    if (UnitDevice(u) != device || UnitMb(u) > most_mb) continue;
    if ((u > 0 && UnitDevice(u - 1) == other) || (u + 1 < units_ && UnitDevice(u + 1) == other)) return u;
    if (any < 0) any = u;
  }
  return any;
}

// Two equal units exchange device and residency. Memory and disk loads stay the same; only the
// times of use change.
bool Annealer::SwapAlike() {
  const int u = random_.Below(units_), step = random_.Chance(50) ? 1 : -1;
  int alike = RunLength();
  for (int v = u + step; v >= 0 && v < units_; v += step) {
    if (!Alike(u, v) || --alike > 0) continue;
    const auto begin = unit_begins_[u], other = unit_begins_[v], blocks = unit_begins_[u + 1] - begin;
    if (draft_.device[begin] == draft_.device[other] &&
        std::equal(&draft_.streamed[begin], &draft_.streamed[begin] + blocks, &draft_.streamed[other])) {
      continue;
    }
    std::swap_ranges(&draft_.device[begin], &draft_.device[begin] + blocks, &draft_.device[other]);
    std::swap_ranges(&draft_.streamed[begin], &draft_.streamed[begin] + blocks, &draft_.streamed[other]);
    return true;
  }
  return false;
}

bool Annealer::Alike(int u, int v) const {
  const int begin = unit_begins_[u], other = unit_begins_[v], blocks = unit_begins_[u + 1] - begin;
  if (unit_begins_[v + 1] - other != blocks) return false;
  for (int i = 0; i < blocks; ++i) {
    const Instance::Block &a = instance_.blocks[begin + i], &b = instance_.blocks[other + i];
    if (a.mb != b.mb || a.kv_mb != b.kv_mb) return false;
  }
  return true;
}

bool Annealer::MergeStage() {
  if (cuts_.empty()) return false;
  const int begin = StageBegin(random_.Below(units_)), end = StageEnd(begin);
  const bool before = end == units_ || (begin > 0 && random_.Chance(50));
  SetUnits(begin, end, UnitDevice(before ? begin - 1 : end));
  return true;
}

bool Annealer::SwapStageDevices() {
  if (cuts_.empty()) return false;
  const int a = StageBegin(random_.Below(units_)), a_end = StageEnd(a);
  const int b = StageBegin(random_.Below(units_)), b_end = StageEnd(b);
  const int a_device = UnitDevice(a), b_device = UnitDevice(b);
  if (a_device == b_device) return false;
  SetUnits(a, a_end, b_device);
  SetUnits(b, b_end, a_device);
  return true;
}

// Two devices exchange their roles, between two cuts or everywhere.
bool Annealer::SwapDevicesInRange() {
  const int a = random_.Below(instance_.NumDevices()), b = random_.Below(instance_.NumDevices());
  if (a == b) return false;
  int begin = random_.Chance(50) ? 0 : random_.Below(units_), end = random_.Chance(50) ? units_ : random_.Below(units_) + 1;
  if (begin >= end) std::swap(begin, end);
  for (int block = unit_begins_[begin]; block < unit_begins_[end]; ++block) {
    int16_t& device = draft_.device[block];
    device = static_cast<int16_t>(device == a ? b : device == b ? a : device);
  }
  return true;
}

bool Annealer::Toggle() {
  if (random_.Chance(2)) {
    draft_.embedding_by_rows ^= true;  // refused if the device reads no rows
    return instance_.devices[draft_.device[0]].embed_rows_ms.has_value();
  }
  const int block = random_.Below(instance_.NumBlocks());
  SetStreamed(block, PartRun(), draft_.streamed[block] ^ 1);
  return true;
}

// Mostly one. For a model block in parts sometimes a larger number.
int Annealer::PartRun() {
  return longest_run_ == 1 || random_.Chance(50) ? 1 : 1 + random_.Below(longest_run_);
}

// Changes up to `count` blocks from `block` on, while they are on one device and differ. Returns
// their number.
int Annealer::SetStreamed(int block, int count, uint8_t streamed) {
  int done = 0;
  for (int b = block; done < count && b < instance_.NumBlocks(); ++b, ++done) {
    if (draft_.device[b] != draft_.device[block] || draft_.streamed[b] == streamed) break;
    draft_.streamed[b] = streamed;
  }
  return done;
}

// Streamed blocks, mostly one, become resident, and as many on the same device stream instead.
bool Annealer::SwapResidency(bool near) {
  const int blocks = instance_.NumBlocks();
  const int start = random_.Below(blocks);
  int block = start;
  while (!draft_.streamed[block]) {
    block = block + 1 == blocks ? 0 : block + 1;
    if (block == start) return false;
  }
  const int step = random_.Chance(50) ? 1 : blocks - 1;
  int other = near ? block : random_.Below(blocks), skip = near ? random_.Below(4) : 0;
  for (int i = 0; i < blocks; ++i) {
    other = (other + step) % blocks;
    if (draft_.device[other] != draft_.device[block] || draft_.streamed[other]) continue;
    if (skip-- > 0) continue;
    SetStreamed(other, SetStreamed(block, PartRun(), 0), 1);
    return true;
  }
  return false;
}

}  // namespace lime
