// Output files that a user names, --out, --trace and --routes. They are checked before the work and written
// after it. Only files that LIME wrote are replaced.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/input/command_line.h"
#include "planner/base/status.h"

namespace lime::cli {

// The content of a file that LIME writes, detected by its text, not by its name.
enum class OutputKind {
  kPlan,             // `lime plan --out`
  kTrace,            // `--trace`
  kProfile,          // of one device, `lime profile --out`
  kClusterProfiles,  // of a cluster's devices, stored beside its file
  kRoutes,           // `lime trace --routes`
  kCalibration,      // `lime calibrate`
};

struct OutputFlag {
  OutputKind kind = OutputKind::kPlan;
  std::string flag;  // "--out", in sentences
  std::string path;  // empty: nothing is written
  bool overwrite = false;
  // A flag of the call that may name the same file; the output then contains what that file holds.
  std::string adds_to;
  std::optional<CommandFlags> command = std::nullopt;  // its other flags name inputs

  // Adds the flag `flag` and `--overwrite`.
  void AddTo(const CommandFlags& flags, const std::string& names, const std::string& what);
  // WrongCall if the file cannot be written, or was not written by LIME.
  absl::Status Check() const;
  // Prints nothing. If interrupted, stops waiting for the reader of a pipe.
  absl::Status Write(std::string_view text) const;
};

}  // namespace lime::cli
