#include "coordinator/cluster/remote_command.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "planner/base/strings.h"

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

absl::StatusOr<SshWay> ParseSshWay(std::string_view text) {
  const absl::Status wrong = Invalid("is not ", kSshWayRule);
  SshWay way;
  const std::vector<std::string> words = absl::StrSplit(Text(text), ' ', absl::SkipEmpty());
  for (size_t i = 0; i < words.size(); ++i) {
    if (IsSshTarget(words[i]) && way.target.empty()) {
      way.target = words[i];
      continue;
    }
    std::string* const value = words[i] == "-p" ? &way.port : words[i] == "-i" ? &way.identity : words[i] == "-F" ? &way.config : nullptr;
    if (value == nullptr || !value->empty() || ++i == words.size() || words[i].front() == '-') return wrong;
    *value = words[i];
  }
  int port = 1;
  if (!way.port.empty() && (!absl::SimpleAtoi(way.port, &port) || port < 1 || port > 65535)) return wrong;
  return way.target.empty() ? absl::StatusOr<SshWay>(wrong) : way;
}

std::vector<std::string> OverSsh(const SshWay& way, const std::vector<std::string>& words) {
  std::vector<std::string> quoted(words.size());
  std::ranges::transform(words, quoted.begin(), ShellWord);
  std::vector<std::string> call = {"ssh"};
  const auto add = [&](const char* flag, const std::string& value) {
    if (!value.empty()) call.insert(call.end(), {flag, value});
  };
  add("-F", way.config);
  add("-p", way.port);
  add("-i", way.identity);
  call.insert(call.end(), {"-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5", "--", way.target});
  call.push_back(absl::StrJoin(quoted, " "));
  return call;
}

}  // namespace lime
