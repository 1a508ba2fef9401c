// Computes how many units each device gets. Exact. Most models have many equal layers, so units
// have two sizes (attention and MLP halves) or one (layers). A device's memory, and the bytes that
// its disk reads in a fixed time, limit how many units of each size it can hold. A dynamic program
// over the devices finds numbers that add up.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/evaluation/assignment.h"
#include "planner/search/starts.h"

namespace lime {

// Units of the small and of the large size. The head is not counted; it is on the last device.
using HalfCounts = std::array<int, 2>;

// Units of two sizes: below and above the geometric mean of the smallest and the largest unit. The
// head is apart.
class UnitSizes {
 public:
  int NumHalves() const { return static_cast<int>(size_of_.size()); }

 protected:
  // Mean values of the units of one size.
  struct Size {
    int count = 0;
    double mb = 0, kv_mb = 0;
    std::vector<double> comp_ms;  // by device
  };

  UnitSizes(const Instance& instance, const std::vector<int32_t>& unit_begins);

  std::vector<uint8_t> size_of_;  // by unit that is not of the head
  std::array<Size, 2> sizes_;
  std::vector<int> slowest_first_;  // devices, by the time of a small unit
  double head_mb_ = 0;
};

class CountProgram : UnitSizes {
 public:
  CountProgram(const Instance& instance, const std::vector<int32_t>& unit_begins);

  struct Question {
    double limit_ms = 0;                        // limit for disks and for computing in a step
    const std::vector<double>& usable;          // by device: the usable share of its memory
    const std::vector<StreamingStyle>& styles;  // by device: how it chooses the blocks that stream
    const std::vector<int32_t>& order;          // the first device has the embedding, the last one the head
  };
  // One entry per device. Empty if there is no solution.
  std::vector<HalfCounts> Share(const Question& question);
  // Rounds over `order`. Each device comes as near to its counts as whole units allow. Then single
  // units move until the counts are met.
  Assignment Arrange(const std::vector<HalfCounts>& counts, const std::vector<int32_t>& order, int rounds) const;

  // Work of the last Share, in units of SearchBudget.
  double work() const { return work_; }

 private:
  double HalfMb(int size) const { return sizes_[size].mb + sizes_[size].kv_mb; }
  const std::array<double, 2>& StreamableMb(double largest_mb);
  // By number of large units: the small units that device d can hold in addition. Negative: not
  // even the large ones fit.
  void CountSmall(const Question& question, int d);
  void RemoveFromSlowest(int surplus, std::vector<HalfCounts>& counts) const;
  void Settle(const std::vector<HalfCounts>& counts, std::vector<int>& device_of) const;

  const Instance& instance_;
  const std::vector<int32_t>& unit_begins_;
  // Scratch: by device and number of large units placed so far, how many are its own.
  std::vector<std::vector<int>> large_of_;
  std::vector<int> small_;        // scratch: CountSmall
  double streamable_of_mb_ = -1;  // scratch: the argument that streamable_mb_ belongs to
  std::array<double, 2> streamable_mb_ = {};
  double work_ = 0;
};

}  // namespace lime
