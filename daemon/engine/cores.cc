#include "daemon/engine/cores.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace lime {
namespace {

// The cores of the calling thread.
Cores CoresNow() {
  Cores cores;
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
#endif
  return cores;
}

absl::Status NoCores(std::string_view text) {
  return Invalid("\"", absl::string_view(text.data(), std::min<size_t>(text.size(), 80)),
                 "\" is not a list of cores; give numbers and ranges, such as 0-3,5");
}

}  // namespace

absl::StatusOr<Cores> ParseCores(std::string_view text) {
  const Cores usable = CoresNow();
  Cores cores;
  for (const absl::string_view range : absl::StrSplit(absl::string_view(text.data(), text.size()), ',')) {
    const std::pair<absl::string_view, absl::string_view> ends = absl::StrSplit(range, absl::MaxSplits('-', 1));
    int first = 0, last = 0;
    if (!absl::SimpleAtoi(ends.first, &first) || first < 0) return NoCores(text);
    last = first;
    if (range.find('-') != absl::string_view::npos && (!absl::SimpleAtoi(ends.second, &last) || last < first)) return NoCores(text);
    for (int core = first; core <= last; ++core) {
      if (!std::ranges::binary_search(usable, core)) {
        return Invalid("core ", core, " is not available to this process; it may use ", usable.size(),
                       usable.size() == 1 ? " core" : " cores",
                       usable.empty() ? "" : absl::StrCat(", from ", usable.front(), " to ", usable.back()));
      }
      cores.push_back(core);
    }
  }
  std::ranges::sort(cores);
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
  return cores;
}

Cores OtherCores(const Cores& cores) {
  Cores others = CoresNow();
  std::erase_if(others, [&](int core) { return std::ranges::binary_search(cores, core); });
  return others;
}

void BindToCores(const Cores& cores) {
#ifdef __linux__
  if (cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  (void)sched_setaffinity(0, sizeof(set), &set);
#else
  (void)cores;
#endif
}

ScopedCoreBinding::ScopedCoreBinding(const Cores& cores) : before_(cores.empty() ? Cores() : CoresNow()) {
  BindToCores(cores);
}

ScopedCoreBinding::~ScopedCoreBinding() {
  BindToCores(before_);
}

}  // namespace lime
