// How many units every device takes and how many of them stream, exactly, where a unit is one block: each device streams what is best for
// it. One whose disk reads small blocks alone needs a small pool; one that reads large blocks fills the time left with small ones. Which
// of them does which is found by a dynamic program over the devices, as in unit_counts.h.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/assignment.h"

namespace lime {

class MixedCountProgram {
 public:
  // Of the small and of the large size; the head's are not counted, they are the last device's.
  using Counts = std::array<int, 2>;

  struct Share {
    Counts units = {};
    Counts streamed = {};
  };

  struct Question {
    double limit_ms = 0;                // what disks and computing may take in a step
    const std::vector<double>& pools;   // by device: its pool in large blocks where it streams any, else in pairs of small ones
    const std::vector<int32_t>& order;  // the first device has the embedding, the last one the head
  };

  // REQUIRES: both outlive this.
  MixedCountProgram(const Instance& instance, const std::vector<int32_t>& unit_begins);

  // Whether every unit but the head's is one block, and there are some.
  bool applies() const { return applies_; }

  // By device, all units in all. Empty where not everything finds a place.  REQUIRES: applies()
  std::vector<Share> Shares(const Question& question);
  // `shares` is an answer of Shares. Every device's units and streamed units spread as evenly over the model as `rounds` rounds would,
  // visits no shorter than these need.
  Assignment Arrange(const std::vector<Share>& shares, const std::vector<int32_t>& order, int rounds, uint64_t seed) const;

  // Of units, the head's left out; means of their size, and of what a device takes for one.
  int NumUnits() const { return static_cast<int>(size_of_.size()); }
  int SizeOf(int unit) const { return size_of_[unit]; }
  double WeightsMb(int size) const { return sizes_[size].mb; }
  double KvMb(int size) const { return sizes_[size].kv_mb; }
  double CompMs(int device, int size) const { return sizes_[size].comp_ms[device]; }
  double LoadMs(int device, int size) const {
    return sizes_[size].mb / instance_.devices[device].disk_mb_per_ms + instance_.devices[device].disk_lat_ms;
  }
  double head_mb() const { return head_mb_; }

  // What the last Shares took, in units of SearchBudget.
  double work() const { return work_; }

 private:
  struct Size {
    int count = 0;
    double mb = 0, kv_mb = 0;     // means
    std::vector<double> comp_ms;  // by device
  };

  // Of one device for a question.
  struct Room {
    int device = 0;
    double mb = 0, large_pool_mb = 0, small_pool_mb = 0;
    double limit_ms = 0, comp_ms = 0, small_ms = 0, large_ms = 0;  // loads of one
    double disk_mb = 0;                                            // no more than that is read

    // Small ones that can be read beside so many large ones.
    int SmallStreams(int large, int most) const {
      const double left_ms = limit_ms - (large > 0 ? large * large_ms : 0);
      return left_ms < small_ms ? 0 : small_ms * most <= left_ms ? most : static_cast<int>(left_ms / small_ms);
    }
    friend bool operator==(const Room&, const Room&) = default;
  };

  void CountSmall(const Question& question, int d);
  Room RoomOf(const Question& question, int d) const;
  Share MostSmall(const Room& room, int large);
  void TakeOffSlowest(int surplus, std::vector<Share>& shares) const;

  const Instance& instance_;
  bool applies_ = false;
  std::vector<int8_t> size_of_;  // by unit that is not of the head
  std::array<Size, 2> sizes_;
  double head_mb_ = 0;
  std::vector<Room> room_of_;                // scratch: by device, what best_of_ is of
  std::vector<std::vector<Share>> best_of_;  // scratch: by device and its large units, what it takes with most small ones
  std::vector<std::vector<int>> large_of_;   // scratch: by device and large units placed so far, how many of them are its own
  double work_ = 0;
};

}  // namespace lime
