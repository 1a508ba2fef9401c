// Reads flags of a command from TOML. Its fields are the flags without the leading dashes.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "common/input/command_line.h"
#include "planner/base/status.h"

namespace lime {

// Sets the flags of the command that the call does not give. `file` is the name of the text, for
// errors. Fields named in `paths` (such as "model") are relative to the folder of the file.
//
// A field is a text, a number, true or false, or a list for a flag that may be given several times.
// InvalidArgument, with file, line and field, for a field that is no flag of the command, or has a
// value that the flag does not take. A switch that is false counts as not given.
// REQUIRES: the words of the call were read
absl::Status ReadFlagText(const CommandFlags& command, std::string_view text, const std::string& file,
                          std::span<const std::string_view> paths);

}  // namespace lime
