// What the system says of this process and of the memory around it. Linux.
#pragma once

#include "planner/base/bytes.h"

namespace lime {

// Resident bytes now, and the highest so far.
Bytes ProcessResidentBytes();
Bytes ProcessPeakResidentBytes();

// Memory that can still be taken: MemAvailable, or less where a cgroup (v1 or v2) limits the process.
Bytes AvailableMemory();

// Bytes that this process has caused to be read from disks.
Bytes ProcessDiskReadBytes();

// Cores this process may run on.
int UsableCores();

}  // namespace lime
