// Computes how many units each device gets, and how many of them stream, if a unit is one block.
// Exact. Each device streams the sizes that suit it: a disk that reads only small blocks needs a
// small pool, and a disk that reads large blocks uses the remaining time for small ones. A dynamic
// program over the devices finds the division, as in half_counts.h.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/evaluation/assignment.h"
#include "planner/search/half_counts.h"

namespace lime {

class MixedCountProgram : UnitSizes {
 public:
  struct Share {
    HalfCounts units = {};
    HalfCounts streamed = {};
  };

  struct Question {
    double limit_ms = 0;  // limit for disks and for computing in a step
    // By device: its pool, in large blocks if it streams any, else in pairs of small blocks.
    const std::vector<double>& pools;
    const std::vector<int32_t>& order;  // the first device has the embedding, the last one the head
  };

  // REQUIRES: both outlive this.
  MixedCountProgram(const Instance& instance, const std::vector<int32_t>& unit_begins);

  // Whether there are units besides the head, and each is one block.
  bool applies() const { return applies_; }

  // Each device's share; together all units. Empty if there is no solution.  REQUIRES: applies()
  std::vector<Share> Shares(const Question& question);
  // Arranges the result of Shares. Spreads every device's units and streamed units over the model
  // as evenly as `rounds` rounds would, with visits at least as long as the shares need.
  Assignment Arrange(const std::vector<Share>& shares, const std::vector<int32_t>& order, int rounds, uint64_t seed) const;

  // Units without the head, with means of their size and of their time on a device.
  using UnitSizes::NumHalves;
  int SizeOf(int unit) const { return size_of_[unit]; }
  double WeightsMb(int size) const { return sizes_[size].mb; }
  double KvMb(int size) const { return sizes_[size].kv_mb; }
  double CompMs(int device, int size) const { return sizes_[size].comp_ms[device]; }
  double LoadMs(int device, int size) const {
    return sizes_[size].mb / instance_.devices[device].disk_mb_per_ms + instance_.devices[device].disk_lat_ms;
  }
  double head_mb() const { return head_mb_; }

  // Work of the last Shares, in units of SearchBudget.
  double work() const { return work_; }

 private:
  // The limits of one device for a question.
  struct Room {
    int device = 0;
    double mb = 0, large_pool_mb = 0, small_pool_mb = 0;
    // small_ms, large_ms: of one load.
    double limit_ms = 0, comp_ms = 0, small_ms = 0, large_ms = 0;
    double disk_mb = 0;  // limit for reads

    // Small blocks that can be read in addition to `large` large ones.
    int SmallStreams(int large, int most) const {
      const double left_ms = limit_ms - (large > 0 ? large * large_ms : 0);
      return left_ms < small_ms ? 0 : small_ms * most <= left_ms ? most : static_cast<int>(left_ms / small_ms);
    }
    friend bool operator==(const Room&, const Room&) = default;
  };

  void CountSmall(const Question& question, int d);
  Room RoomOf(const Question& question, int d) const;
  Share MostSmall(const Room& room, int large);
  void RemoveFromSlowest(int surplus, std::vector<Share>& shares) const;

  const Instance& instance_;
  bool applies_ = false;
  std::vector<Room> room_of_;  // scratch: by device, the limits that best_of_ belongs to
  // Scratch: by device and number of its large units, its share with the most small ones.
  std::vector<std::vector<Share>> best_of_;
  // Scratch: by device and number of large units placed so far, how many are its own.
  std::vector<std::vector<int>> large_of_;
  double work_ = 0;
};

}  // namespace lime
