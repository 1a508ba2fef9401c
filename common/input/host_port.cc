#include "common/input/host_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr size_t kShownBytes = 80;

absl::StatusOr<int> ParsePort(std::string_view text) {
  int port = 0;
  const bool digits = !text.empty() && std::ranges::all_of(text, [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); });
  if (!digits || (text.size() > 1 && text.front() == '0') || !absl::SimpleAtoi(Text(text), &port) || port > 65535)
    return Invalid("its port is not a number from 0 to 65535");
  return port;
}

// Converts an IPv4 address inside an IPv6 address to the IPv4 address.
absl::StatusOr<std::string> PlainIpv6(std::string_view host) {
  const std::string_view zone = host.substr(std::min(host.find('%'), host.size()));
  struct in6_addr address = {};
  if (inet_pton(AF_INET6, std::string(host.substr(0, host.size() - zone.size())).c_str(), &address) != 1)
    return Invalid("its brackets do not hold an IPv6 address");
  char text[INET6_ADDRSTRLEN] = {};
  if (IN6_IS_ADDR_V4MAPPED(&address)) return inet_ntop(AF_INET, &address.s6_addr[12], text, sizeof(text));
  return absl::StrCat(inet_ntop(AF_INET6, &address, text, sizeof(text)), Text(zone));
}

absl::StatusOr<std::string> PlainName(const std::string& host) {
  const bool letters =
      std::ranges::all_of(host, [](unsigned char c) { return absl::ascii_isalnum(c) || c >= 0x80 || c == '-' || c == '.' || c == '_'; });
  if (host.empty() || !letters) return Invalid(host.empty() ? "it has no host" : "its host is neither a name nor an address");
  struct in_addr address = {};
  if (inet_aton(host.c_str(), &address) == 0) return host;
  char text[INET_ADDRSTRLEN] = {};
  return inet_ntop(AF_INET, &address, text, sizeof(text));
}

}  // namespace

absl::StatusOr<HostPort> ParseAddress(std::string_view address) {
  const auto wrong = [&](const auto&... why) {
    return Invalid("\"", absl::CHexEscape(Text(address.substr(0, kShownBytes))), "\" is not an address: ", why..., "; ",
                   Text(kAddressRule));
  };
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return wrong("it has no port");
  const absl::StatusOr<int> port = ParsePort(address.substr(colon + 1));
  if (!port.ok()) return wrong(port.status().message());
  const std::string_view host = address.substr(0, colon);
  const bool brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const absl::StatusOr<std::string> plain = brackets ? PlainIpv6(host.substr(1, host.size() - 2)) : PlainName(std::string(host));
  if (!plain.ok()) return wrong(plain.status().message());
  return HostPort{.host = *plain, .port = *port};
}

std::string AddressText(const HostPort& address) {
  const bool brackets = address.host.find(':') != std::string::npos;
  return absl::StrCat(brackets ? "[" : "", address.host, brackets ? "]:" : ":", address.port);
}

std::string PlainHost(const std::string& host) {
  const std::string plain = absl::AsciiStrToLower(host);
  return plain == "localhost" ? "127.0.0.1" : plain;
}

bool IsLoopback(const HostPort& address) {
  const std::string host = PlainHost(address.host);
  return (host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos) || host == "::1";
}

absl::StatusOr<bool> IsLoopback(std::string_view address) {
  LIME_ASSIGN_OR_RETURN(const HostPort parsed, ParseAddress(address));
  return IsLoopback(parsed);
}

}  // namespace lime
