// The result of one check of a machine or a cluster: a row of `lime doctor`.
#pragma once

#include <string>

namespace lime {

enum class Grade {
  kOk,    // nothing to do
  kWarn,  // works, but could work better or longer
  kFail,  // does not work
};

struct Finding {
  std::string check;  // what was checked, such as "memory"
  Grade grade = Grade::kOk;
  std::string what;    // the result with its numbers
  std::string remedy;  // what to do; empty: nothing

  friend bool operator==(const Finding&, const Finding&) = default;
};

}  // namespace lime
