#include "daemon/engine/call_limits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/engine/process_memory.h"
#include "daemon/machine/system_memory.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr int64_t kThreadsPerCore = 4;
constexpr int64_t kThreadsAnywhere = 16;  // on small machines too: tests of sharing need them

}  // namespace

absl::Status CheckThreads(std::string_view flag, int64_t threads) {
  const int64_t cores = UsableCores(), most = std::min<int64_t>(kMostThreads, std::max(kThreadsAnywhere, kThreadsPerCore * cores));
  if (threads >= 0 && threads <= most) return absl::OkStatus();
  return Invalid(Text(flag), " ", threads, " is outside 0 to ", most, ": this process may use ", cores, cores == 1 ? " core" : " cores",
                 ", and more threads only wait for each other; leave it out to use one for each core");
}

absl::Status CheckBudget(std::string_view said, Bytes budget) {
  const MemoryLimit limit = LowestMemoryLimit();
  if (budget <= limit.bytes) return absl::OkStatus();
  const std::string who = limit.group.empty() ? "this machine has" : absl::StrCat("the control group ", limit.group, " allows");
  return Invalid(Text(said), ": ", who, " ", FormatBytes(limit.bytes), "; give ", BudgetAtMost(limit.bytes), " or less",
                 limit.group.empty() ? "" : ", or raise the group's limit");
}

std::string BudgetAtLeast(Bytes bytes) {
  return absl::StrCat(RoundUp(std::max<Bytes>(0, bytes), kMiB) / kMiB, "MiB");
}

std::string BudgetAtMost(Bytes bytes) {
  return bytes < kMiB ? absl::StrCat(bytes, "B") : absl::StrCat(bytes / kMiB, "MiB");
}

}  // namespace lime
