// What looking at one thing of a machine or a cluster brought: a row of `lime doctor`.
#pragma once

#include <string>

namespace lime {

enum class Grade {
  kOk,    // nothing to do
  kWarn,  // works, but not as well or not for as long as it could
  kFail,  // does not work until something is done
};

struct Finding {
  std::string check;  // "memory": what was looked at
  Grade grade = Grade::kOk;
  std::string what;    // was found, with its numbers
  std::string remedy;  // what to do; empty: nothing

  friend bool operator==(const Finding&, const Finding&) = default;
};

}  // namespace lime
