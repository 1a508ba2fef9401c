// What the system says of this process. Linux.
#pragma once

#include "planner/base/bytes.h"

namespace lime {

// Resident bytes now, and the highest so far.
Bytes ProcessResidentBytes();
Bytes ProcessPeakResidentBytes();

// Bytes that this process has caused to be read from disks.
Bytes ProcessDiskReadBytes();

// Cores this process may run on.
int UsableCores();

}  // namespace lime
