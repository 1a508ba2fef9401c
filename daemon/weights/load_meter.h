// What loads of weights say of themselves, and of the disk where it was the disk that took the time. Pure.
#pragma once

#include <string>

#include "planner/base/bytes.h"

namespace lime {

// What a disk delivered where it was the disk that took the time.
struct SteadyReads {
  Bytes bytes = 0;
  double seconds = 0;

  double bytes_per_second() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
};

// How a stage was set up: what computes, and how its weights came into memory.
struct LoadSummary {
  std::string backend;  // for people
  std::string loader;   // which one, and why; likewise
  Bytes bytes = 0;      // that were not in memory before
  double seconds = 0;
  SteadyReads steady;  // what the disk delivered meanwhile, where it was the disk that took the time
};

// Adds up loads into memory that is made present beside them. A load that takes more than twice as
// long as its memory does waits for its disk; else clearing pages may be what takes the time, and
// the disk could do more.
//
// Thread: the owner's.
class LoadMeter {
 public:
  // `bytes` came from the disk in `seconds`, in `present_seconds` of which all memory was there.
  void Add(Bytes bytes, double seconds, double present_seconds) {
    reads_.bytes += bytes;
    reads_.seconds += seconds;
    present_seconds_ += present_seconds;
  }

  // Of all loads together; nothing where it may not have been the disk.
  SteadyReads steady() const { return present_seconds_ >= reads_.seconds / 2 ? reads_ : SteadyReads{}; }

 private:
  SteadyReads reads_;
  double present_seconds_ = 0;
};

}  // namespace lime
