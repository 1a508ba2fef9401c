// What a daemon measures itself with: the kernels and the disk, or in tests something that knows the answer.
#pragma once

#include <atomic>
#include <functional>

#include "planner/base/status.h"
#include "proto/convert.h"

namespace lime {

// Takes seconds; returns kCancelled within moments after `cancelled` is set. No plan is installed meanwhile.
using Profiler = std::function<absl::StatusOr<MeasuredDevice>(
    const ProfileCall& call, const std::function<void(const ProfileProgress&)>& say, const std::atomic<bool>& cancelled)>;

}  // namespace lime
