// What HOST:PORT resolves to.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/host_port.h"
#include "planner/base/status.h"

namespace lime {

// What a socket connects or binds to.
struct SocketAddress {
  struct sockaddr_storage storage = {};
  socklen_t length = 0;

  const struct sockaddr* get() const { return reinterpret_cast<const struct sockaddr*>(&storage); }
  std::string Host() const;  // in digits
};

// All that the host resolves to. NotFound, with the resolver's words, where it is nothing; DeadlineExceeded where the resolver takes longer
// than `patience`.
absl::StatusOr<std::vector<SocketAddress>> Resolve(const HostPort& address, absl::Duration patience);

// Addresses of this machine's interfaces, in digits; those of loopback last.
std::vector<std::string> OwnAddresses();

}  // namespace lime
