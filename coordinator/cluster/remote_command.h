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

// How ssh(1) gets to a machine, as a person writes it: "me@192.168.1.10", "me@orin -p 2222 -i keys/id -F ssh_config".
struct SshWay {
  std::string target;
  std::string port, identity, config;  // -p, -i, -F; empty: ssh's own choice
};
inline constexpr const char* kSshWayRule =
    "[USER@]HOST of letters, digits, '.', '_', '-', ':', '%' and brackets, then at most -p PORT, -i KEY and -F CONFIG";
// InvalidArgument, without a place, for anything else: no other option of ssh is passed on.
absl::StatusOr<SshWay> ParseSshWay(std::string_view text);

// The program and arguments that run `words` there without asking anything.
std::vector<std::string> OverSsh(const SshWay& way, const std::vector<std::string>& words);

}  // namespace lime
