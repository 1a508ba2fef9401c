// Resolves HOST:PORT.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/input/host_port.h"
#include "planner/base/status.h"

namespace lime {

// An address for a socket to connect or bind to.
struct SocketAddress {
  struct sockaddr_storage storage = {};
  socklen_t length = 0;

  const struct sockaddr* get() const { return reinterpret_cast<const struct sockaddr*>(&storage); }
  std::string Host() const;  // in digits
};

// All addresses of the host. NotFound with the resolver's message if there is none.
// DeadlineExceeded if the resolver takes longer than `patience`.
absl::StatusOr<std::vector<SocketAddress>> Resolve(const HostPort& address, absl::Duration patience);

// Addresses of this machine's interfaces, in digits, loopback last.
std::vector<std::string> OwnAddresses();

}  // namespace lime
