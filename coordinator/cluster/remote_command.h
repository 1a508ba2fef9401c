// Words of a command for a shell on another machine: nothing in them means anything to it. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/base/status.h"

namespace lime {

// `word` as one word of a POSIX shell, whatever is in it. REQUIRES: no NUL
std::string ShellWord(std::string_view word);

// Where ssh(1) connects to: "orin", "me@192.168.1.10", "me@[fe80::1]"; no option, no second word. Its own configuration says the rest.
bool IsSshTarget(std::string_view target);
inline constexpr const char* kSshTargetRule = "[USER@]HOST of letters, digits, '.', '_', '-', ':', '%' and brackets";

// The program and arguments that run `words` there without asking anything. REQUIRES: IsSshTarget(target)
std::vector<std::string> OverSsh(const std::string& target, const std::vector<std::string>& words);

}  // namespace lime
