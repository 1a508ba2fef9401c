// How many units every device takes, exactly: most models are many layers alike, so that units are of two sizes (attention and MLP halves;
// one where units are layers), and what a device can hold beside what its disk reads in a given time is a number of each. A dynamic program
// over the devices finds numbers that add up.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/assignment.h"
#include "planner/starts.h"

namespace lime {

// Units of the small and of the large size; the head's are not counted, they are the last device's.
using UnitCounts = std::array<int, 2>;

class CountProgram {
 public:
  CountProgram(const Instance& instance, const std::vector<int32_t>& unit_begins);

  struct Question {
    double limit_ms = 0;                        // what disks and computing may take in a step
    const std::vector<double>& usable;          // by device: the share of its memory that may be used
    const std::vector<StreamingStyle>& styles;  // by device: what streams there
    const std::vector<int32_t>& order;          // the first device has the embedding, the last one the head
  };
  // By device. Empty where not everything finds a place.
  std::vector<UnitCounts> Share(const Question& question);
  // Rounds over `order` in which every device comes as near to its counts as whole units allow, and then single units moved until they are
  // met.
  Assignment Arrange(const std::vector<UnitCounts>& counts, const std::vector<int32_t>& order, int rounds) const;

  // What the last Share took, in units of SearchBudget.
  double work() const { return work_; }

 private:
  // Means of the units of one size.
  struct Size {
    int count = 0;
    double mb = 0, kv_mb = 0;
    std::vector<double> comp_ms;  // by device
  };

  int NumUnits() const { return static_cast<int>(size_of_.size()); }
  double UnitMb(int size) const { return sizes_[size].mb + sizes_[size].kv_mb; }
  void Measure();
  const std::array<double, 2>& StreamableMb(double largest_mb);
  // By the number of large units: how many small ones device d can take beside them; negative: not even those.
  void CountSmall(const Question& question, int d);
  void TakeOffSlowest(int surplus, std::vector<UnitCounts>& counts) const;
  void Settle(const std::vector<UnitCounts>& counts, std::vector<int>& device_of) const;

  const Instance& instance_;
  const std::vector<int32_t>& unit_begins_;
  std::vector<int8_t> size_of_;  // by unit that is not of the head
  std::array<Size, 2> sizes_;
  double head_mb_ = 0;
  std::vector<std::vector<int>> large_of_;  // scratch: by device and large units placed so far, how many of them are its own
  std::vector<int> small_;                  // scratch: CountSmall
  double streamable_of_mb_ = -1;            // scratch: what streamable_mb_ was asked for
  std::array<double, 2> streamable_mb_ = {};
  double work_ = 0;
};

}  // namespace lime
