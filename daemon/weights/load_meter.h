// Tells from loads of weights what the disk delivers, where it was the disk that took the time. Pure.
#pragma once

#include "daemon/weights/steady_reads.h"

namespace lime {

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
