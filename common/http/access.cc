#include "common/http/access.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/input/host_port.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

// "host" or "host:port" as common/input reads it; there, a port is required.
std::optional<Authority> Parsed(std::string_view text, std::string_view port) {
  const absl::StatusOr<HostPort> address = ParseAddress(port.empty() ? absl::StrCat(Text(text), ":0") : std::string(text));
  if (!address.ok()) return std::nullopt;
  std::string host = absl::AsciiStrToLower(address->host);
  if (host.size() > 1 && host.ends_with('.')) host.pop_back();  // the root of DNS
  return Authority{.host = std::move(host), .port = port};
}

// The part behind "://", if the text is the origin of a page on the web.
std::optional<std::string_view> AuthorityOfOrigin(std::string_view origin) {
  for (const std::string_view scheme : {"http://", "https://"})
    if (EqualsIgnoringCase(origin.substr(0, scheme.size()), scheme)) return origin.substr(scheme.size());
  return std::nullopt;
}

bool IsHeaderName(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == ',' || c == ' ';
}

}  // namespace

bool IsRequestId(std::string_view text) {
  const auto allowed = [](char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-'; };
  return !text.empty() && text.size() <= 128 && std::ranges::all_of(text, allowed);
}

std::optional<std::string_view> BearerToken(const HttpRequest& request) {
  constexpr std::string_view kScheme = "Bearer ";
  std::string_view value = request.header("authorization");
  if (!EqualsIgnoringCase(value.substr(0, kScheme.size()), kScheme)) return std::nullopt;
  value.remove_prefix(kScheme.size());
  while (value.starts_with(' ')) value.remove_prefix(1);
  while (value.ends_with(' ')) value.remove_suffix(1);
  return value.empty() ? std::nullopt : std::optional(value);
}

std::optional<size_t> ApiKeys::Find(std::string_view presented) const {
  std::optional<size_t> found;
  for (size_t i = 0; i < keys_.size(); ++i) {
    const std::string& key = keys_[i];
    // volatile: the compiler must not leave the loop early.
    volatile unsigned different = key.size() == presented.size() && !key.empty() ? 0 : 1;
    for (size_t at = 0; at < presented.size(); ++at) {
      const char expected = key.empty() ? '\0' : key[at % key.size()];
      different = different | static_cast<unsigned char>(presented[at] ^ expected);
    }
    if (different == 0) found = i;
  }
  return found;
}

std::vector<std::string> ParseApiKeys(std::string_view text) {
  std::vector<std::string> keys;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const absl::string_view key = absl::StripAsciiWhitespace(Text(line));
    if (!key.empty()) keys.emplace_back(key);
  }
  return keys;
}

std::optional<Authority> ParseAuthority(std::string_view text) {
  const size_t bracket = text.find(']'), colon = text.find(':', bracket == std::string_view::npos ? 0 : bracket);
  if (colon == std::string_view::npos) return Parsed(text, "");
  const std::string_view port = text.substr(colon + 1);
  return port.empty() ? Parsed(text.substr(0, colon), "") : Parsed(text, port);  // "host:" means the usual port
}

bool IsLoopbackHost(const Authority& authority) {
  return IsLoopback(HostPort{.host = authority.host, .port = 0});
}

AllowedPlaces::AllowedPlaces(const Options& options) {
  const auto add = [this](const std::string& name) {
    const bool bare_v6 = name.find(':') != std::string::npos && !name.starts_with('[');
    if (const auto authority = ParseAuthority(bare_v6 ? absl::StrCat("[", name, "]") : name)) hosts_.push_back(authority->host);
  };
  add(options.bound_host);
  for (const std::string& name : options.hostnames) add(name);
  for (std::string origin : options.origins) {
    while (origin.ends_with('/')) origin.pop_back();
    origins_.push_back(absl::AsciiStrToLower(origin));
  }
}

bool AllowedPlaces::AllowsHost(const HttpRequest& request) const {
  const std::optional<Authority> asked = ParseAuthority(request.host);
  if (!asked) return false;
  return IsLoopbackHost(*asked) || (!request.local_address.empty() && asked->host == request.local_address) ||
         std::ranges::find(hosts_, asked->host) != hosts_.end();
}

bool AllowedPlaces::AllowsOrigin(const HttpRequest& request) const {
  const std::string* const origin = FindHeader(request.headers, "origin");
  if (origin == nullptr) return true;
  const std::string plain = absl::AsciiStrToLower(*origin);
  if (std::ranges::any_of(origins_, [&](const std::string& allowed) { return allowed == "*" || allowed == plain; })) return true;
  const std::optional<std::string_view> authority = AuthorityOfOrigin(plain);
  if (!authority) return false;
  if (EqualsIgnoringCase(*authority, request.host)) return true;
  const std::optional<Authority> page = ParseAuthority(*authority);
  return page && IsLoopbackHost(*page);
}

HttpHeaders CorsHeaders(const HttpRequest& request) {
  const std::string* const origin = FindHeader(request.headers, "origin");
  if (origin == nullptr) return {};
  return {{"Access-Control-Allow-Origin", *origin}, {"Vary", "Origin"}, {"Access-Control-Expose-Headers", "x-request-id, Retry-After"}};
}

bool IsPreflight(const HttpRequest& request) {
  return request.method == "OPTIONS" && FindHeader(request.headers, "origin") != nullptr &&
         FindHeader(request.headers, "access-control-request-method") != nullptr;
}

HttpHeaders PreflightHeaders(const HttpRequest& request) {
  HttpHeaders headers = CorsHeaders(request);
  headers.push_back({"Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS"});
  const std::string_view asked = request.header("access-control-request-headers");
  if (!asked.empty() && std::ranges::all_of(asked, IsHeaderName)) headers.push_back({"Access-Control-Allow-Headers", std::string(asked)});
  headers.push_back({"Access-Control-Max-Age", "600"});
  return headers;
}

}  // namespace lime
