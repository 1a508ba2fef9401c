// HOST:PORT as people write it. One text for one place, as far as that can be told without asking a name server.
#pragma once

#include <string>
#include <string_view>

#include "planner/base/status.h"

namespace lime {

struct HostPort {
  std::string host;  // a name as it was written, or an address in its usual digits, without brackets
  int port = 0;
};

inline constexpr std::string_view kAddressRule = "write HOST:PORT, the port in plain digits, an IPv6 address in brackets";

// "host:port", "[::1]:7001". InvalidArgument where it is no address.
absl::StatusOr<HostPort> ParseAddress(std::string_view address);

// What ParseAddress reads: "127.0.0.1:7001" of "127.1:7001".
std::string AddressText(const HostPort& address);

// A name as it is compared: letters do not differ by case, and localhost is 127.0.0.1.
std::string PlainHost(const std::string& host);

// Whether the host is this machine alone.
bool IsLoopback(const HostPort& address);
absl::StatusOr<bool> IsLoopback(std::string_view address);

}  // namespace lime
