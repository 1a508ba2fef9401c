// Files that a user names to be written, --out and --trace: checked before the work, written after it, replaced only where LIME wrote them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/command_line.h"
#include "planner/base/status.h"

namespace lime::cli {

// What a file has that LIME writes: by its text, whatever its name.
enum class OutputKind {
  kPlan,             // `lime plan --out`
  kTrace,            // `--trace`
  kProfile,          // of one device, `lime profile --out`
  kClusterProfiles,  // of a cluster's devices, beside its file
};

struct OutputFlag {
  OutputKind kind = OutputKind::kPlan;
  std::string flag;  // "--out", in sentences
  std::string path;  // empty: nothing is written
  bool overwrite = false;
  std::string adds_to;                                 // a flag of the call whose file may be the same: what that holds is written again
  std::optional<CommandFlags> command = std::nullopt;  // whose other flags name what the call reads

  // The flag `flag`, and `--overwrite`.
  void AddTo(const CommandFlags& flags, const std::string& names, const std::string& what);
  // WrongCall where the file may not be written, or is somebody else's.
  absl::Status Check() const;
  // Prints nothing. Ends the wait for who reads a pipe when interrupted.
  absl::Status Write(std::string_view text) const;
};

}  // namespace lime::cli
