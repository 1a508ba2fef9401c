// What a call may ask of this machine, checked before work begins.
#pragma once

#include <string>
#include <string_view>

#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

inline constexpr int kMostThreads = 1024;  // on any machine

// Refuses more compute threads than four for each core that this process may use, or 16 where that
// is more: they would only wait for each other. `flag` opens the sentence. 0 is allowed.
absl::Status CheckThreads(std::string_view flag, int64_t threads);

// Refuses a budget that no process here can use: more than the machine or a control group of this
// process has. `said` opens the sentence: "--memory 8GiB".
absl::Status CheckBudget(std::string_view said, Bytes budget);

// Refuses a folder that cannot be written, or made in the one that is there. `said` opens the sentence.
absl::Status CheckWritable(const std::string& said, const std::string& folder);
// Makes the last part of its path, where it is not there.
absl::Status MakeFolder(const std::string& folder);

// A budget as a call takes it, in whole MiB: "300MiB". At least, and at most, `bytes`.
std::string BudgetAtLeast(Bytes bytes);
std::string BudgetAtMost(Bytes bytes);

}  // namespace lime
