// Checks, before work begins, that a call asks for no more than this machine has.
#pragma once

#include <string>
#include <string_view>

#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

inline constexpr int kMostThreads = 1024;  // for any machine

// Refuses more compute threads than four for each usable core, or 16 if that is more: they would
// only wait for each other. `flag` opens the sentence. 0 is allowed.
absl::Status CheckThreads(std::string_view flag, int64_t threads);

// Refuses a budget that no process here can use: more than the machine has, or a control group of
// this process allows. `said` opens the sentence: "--memory 8GiB".
absl::Status CheckBudget(std::string_view said, Bytes budget);

// Refuses a folder that can neither be written nor made in its existing parent. `said` opens the
// sentence.
absl::Status CheckWritable(const std::string& said, const std::string& folder);
// Makes the last part of the path if it is missing.
absl::Status MakeFolder(const std::string& folder);

// `bytes` as a flag's value, "300MiB". BudgetAtLeast rounds up to whole MiB. BudgetAtMost rounds
// down, and gives bytes below 1 MiB.
std::string BudgetAtLeast(Bytes bytes);
std::string BudgetAtMost(Bytes bytes);

}  // namespace lime
