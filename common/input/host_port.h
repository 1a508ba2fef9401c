// Reads HOST:PORT as people write it. Equal places get equal texts, as far as possible without a
// name server.
#pragma once

#include <string>
#include <string_view>

#include "planner/base/status.h"

namespace lime {

struct HostPort {
  // A name as it was written, or an address in its usual digits without brackets.
  std::string host;
  int port = 0;
};

inline constexpr std::string_view kAddressRule = "write HOST:PORT, with the port in digits and an IPv6 address in brackets";

// "host:port", "[::1]:7001". InvalidArgument for anything else.
absl::StatusOr<HostPort> ParseAddress(std::string_view address);

// The normal form of an address: "127.0.0.1:7001" for "127.1:7001".
std::string AddressText(const HostPort& address);

// A host name for comparison: in lower case, and localhost as 127.0.0.1.
std::string PlainHost(const std::string& host);

// True if the host is always this machine.
bool IsLoopback(const HostPort& address);
absl::StatusOr<bool> IsLoopback(std::string_view address);

}  // namespace lime
