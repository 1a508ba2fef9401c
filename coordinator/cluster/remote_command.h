// Quotes commands for a shell on another machine, so that no character has a special meaning there.
// Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/base/status.h"

namespace lime {

// `word` quoted as one word of a POSIX shell, for any content. REQUIRES: no NUL
std::string ShellWord(std::string_view word);

// Whether `target` is a destination of ssh(1): "orin", "me@192.168.1.10", "me@[fe80::1]"; not an
// option, and one word. The user's ssh configuration applies.
bool IsSshTarget(std::string_view target);

// How ssh(1) reaches a machine, as written by a person: "me@192.168.1.10", "me@orin -p 2222 -i
// keys/id -F ssh_config".
struct SshWay {
  std::string target;
  std::string port, identity, config;  // -p, -i, -F; empty: ssh's own choice
};
inline constexpr const char* kSshWayRule =
    "[USER@]HOST of letters, digits, '.', '_', '-', ':', '%' and brackets, then at most -p PORT, -i KEY and -F CONFIG";
// InvalidArgument, without a file or line, for anything else. No other option of ssh is passed on.
absl::StatusOr<SshWay> ParseSshWay(std::string_view text);

// The program and arguments that run `words` there without asking for input.
std::vector<std::string> OverSsh(const SshWay& way, const std::vector<std::string>& words);

}  // namespace lime
