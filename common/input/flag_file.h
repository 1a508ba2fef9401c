// Reads flags of a command from TOML. Its fields are the flags without the leading dashes.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "common/input/command_line.h"
#include "planner/base/status.h"

namespace lime {

// A field whose value is a path, or one of a few words.
struct PathField {
  std::string_view name;
  std::array<std::string_view, 2> words = {};
};

// Sets the flags of the command that the call does not give. `file` is the name of the text, for
// errors. The values of `paths` are relative to the folder of the file.
//
// A field is a text, a number, true or false, or a list for a flag that may be given several times.
// InvalidArgument, with file, line and field, for a field that is no flag of the command, or has a
// value that the flag does not take. A switch that is false counts as not given.
// REQUIRES: the words of the call were read
absl::Status ReadFlagText(const CommandFlags& command, std::string_view text, const std::string& file, std::span<const PathField> paths);

}  // namespace lime
