#include "coordinator/cluster/remote_command.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lime {

std::string ShellWord(std::string_view word) {
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'')
      quoted += "'\\''";
    else
      quoted += c;
  }
  return quoted + "'";
}

bool IsSshTarget(std::string_view target) {
  constexpr size_t kMaxBytes = 255;
  const auto plain = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || std::string_view("._-:%[]").find(c) != std::string_view::npos;
  };
  const size_t at = target.find('@');
  const std::string_view user = at == std::string_view::npos ? std::string_view() : target.substr(0, at);
  const std::string_view host = at == std::string_view::npos ? target : target.substr(at + 1);
  if (target.size() > kMaxBytes || host.empty() || host.front() == '-' || target.front() == '-' || at == 0) return false;
  return std::ranges::all_of(user, plain) && std::ranges::all_of(host, plain);
}

std::vector<std::string> OverSsh(const std::string& target, const std::vector<std::string>& words) {
  std::vector<std::string> quoted;
  for (const std::string& word : words) quoted.push_back(ShellWord(word));
  return {"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5", "--", target, absl::StrJoin(quoted, " ")};
}

}  // namespace lime
