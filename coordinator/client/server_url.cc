#include "coordinator/client/server_url.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/http/access.h"
#include "coordinator/api/api_error.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr char kExample[] = "write it like http://127.0.0.1:5463";

int UsualPort(bool tls) {
  return tls ? 443 : 80;
}

// Visible ASCII that may stand in a path.
bool IsOfPath(char c) {
  return absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != '?' && c != '#' && c != '\\' && c != '"' && c != '<' && c != '>';
}

absl::Status Wrong(std::string_view url, std::string_view why) {
  return Invalid("--url ", QuotedInput(url), " ", Text(why), "; ", kExample);
}

}  // namespace

std::string ServerUrl::HostHeader() const {
  const std::string name = host.find(':') == std::string::npos ? host : absl::StrCat("[", host, "]");
  return port == UsualPort(tls) ? name : absl::StrCat(name, ":", port);
}

std::string ServerUrl::Text() const {
  return absl::StrCat(tls ? "https://" : "http://", HostHeader(), base);
}

absl::StatusOr<ServerUrl> ParseServerUrl(std::string_view url) {
  const size_t scheme_end = url.find("://");
  const std::string scheme = absl::AsciiStrToLower(Text(url.substr(0, scheme_end == std::string_view::npos ? 0 : scheme_end)));
  if (scheme != "http" && scheme != "https") return Wrong(url, "does not begin with http:// or https://");
  const std::string_view rest = url.substr(scheme_end + 3);
  const size_t slash = std::min(rest.find('/'), rest.size());
  if (rest.substr(0, slash).find('@') != std::string_view::npos)
    return Invalid("--url has a user before the host; leave it out, and give a key by --api-key or LIME_API_KEY");
  const std::optional<Authority> authority = ParseAuthority(rest.substr(0, slash));
  if (!authority || authority->host.empty()) return Wrong(url, "names no host");
  ServerUrl parsed{.tls = scheme == "https", .host = authority->host, .port = UsualPort(scheme == "https"), .base = ""};
  if (!authority->port.empty() && (!absl::SimpleAtoi(Text(authority->port), &parsed.port) || parsed.port < 1 || parsed.port > 65535))
    return Wrong(url, "has a port outside 1 to 65535");
  std::string_view path = rest.substr(slash);
  if (!std::ranges::all_of(path, IsOfPath)) return Wrong(url, "has characters that a path cannot have, or a query");
  while (path.ends_with('/')) path.remove_suffix(1);
  if (path.ends_with("/v1")) path.remove_suffix(3);
  while (path.ends_with('/')) path.remove_suffix(1);
  parsed.base = std::string(path);
  return parsed;
}

}  // namespace lime
