// What the system says of this process. Linux.
#pragma once

#include "planner/base/bytes.h"

namespace lime {

// Resident bytes now, and the highest so far.
Bytes ProcessResidentBytes();
Bytes ProcessPeakResidentBytes();

// Pages of the heap that hold nothing any longer go back to the system: of each thread's own heap, which keeps them otherwise, and counts
// as resident. Takes milliseconds.
void ReturnFreedMemory();

// Bytes that this process has caused to be read from disks.
Bytes ProcessDiskReadBytes();

// Cores this process may run on.
int UsableCores();

}  // namespace lime
