// What a call may ask of this machine, checked before work begins.
#pragma once

#include <string>
#include <string_view>

#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

inline constexpr int kMostThreads = 1024;  // for any machine

// Refuses more than four compute threads for each core that this process may use, or more than 16
// if that is larger: more threads would only wait for each other. `flag` opens the sentence. 0 is
// allowed.
absl::Status CheckThreads(std::string_view flag, int64_t threads);

// Refuses a budget that no process here can use: more than the machine has, or a control group of
// this process allows. `said` opens the sentence: "--memory 8GiB".
absl::Status CheckBudget(std::string_view said, Bytes budget);

// `bytes` as a value for a flag, such as "300MiB": rounded up to whole MiB, or down (in bytes below
// 1 MiB).
std::string BudgetAtLeast(Bytes bytes);
std::string BudgetAtMost(Bytes bytes);

}  // namespace lime
