// The metrics that every program has: process_cpu_seconds_total, process_resident_memory_bytes,
// process_open_fds, process_start_time_seconds.
#pragma once

#include "common/exposition/exposition.h"

namespace lime {

// As they are now. What the system does not tell is 0.  Thread: any
MetricFamilies ProcessMetrics();

}  // namespace lime
