// Memory of this process, as the system reports it. Linux.
#pragma once

#include "planner/base/bytes.h"

namespace lime {

// Resident bytes now, and the highest so far.
Bytes ProcessResidentBytes();
Bytes ProcessPeakResidentBytes();

// Returns free heap pages of all threads to the system: until then they count as resident. Takes
// milliseconds.
void ReturnFreedMemory();

// Bytes that this process has caused to be read from disks.
Bytes ProcessDiskReadBytes();

// Cores this process may run on.
int UsableCores();

}  // namespace lime
