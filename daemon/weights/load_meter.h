// Measures loads of weights, and the disk's rate in loads that waited for the disk. Pure.
#pragma once

#include <string>

#include "planner/base/bytes.h"

namespace lime {

// Bytes that a disk delivered while loads waited for it (and not for memory), and the time.
struct SteadyReads {
  Bytes bytes = 0;
  double seconds = 0;

  double bytes_per_second() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
};

// Says how a stage was set up: what computes, and how its weights came into memory.
struct LoadSummary {
  std::string backend;  // for people
  std::string loader;   // which loader, and why; for people
  Bytes bytes = 0;      // bytes that were not in memory before
  double seconds = 0;
  // Reads during which the disk was the bottleneck.
  SteadyReads steady;
};

// Adds up loads into memory whose pages are made present during the load. A load that takes more
// than twice as long as it takes to make its pages present waits for the disk. Otherwise clearing
// pages may be the bottleneck, and the disk may be faster than measured.
//
// Thread: the owner's.
class LoadMeter {
 public:
  // A load read `bytes` from the disk in `seconds`. All its memory was present during its last
  // `present_seconds`.
  void Add(Bytes bytes, double seconds, double present_seconds) {
    reads_.bytes += bytes;
    reads_.seconds += seconds;
    present_seconds_ += present_seconds;
  }

  // Sum over all loads. Nothing if the disk may not have been the bottleneck.
  SteadyReads steady() const { return present_seconds_ >= reads_.seconds / 2 ? reads_ : SteadyReads{}; }

 private:
  SteadyReads reads_;
  double present_seconds_ = 0;
};

}  // namespace lime
