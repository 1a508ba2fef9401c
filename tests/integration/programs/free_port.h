// A port for a daemon that a test starts.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

namespace lime {

// Returns a port that nobody listens on. The system never hands out this port by itself, and tests
// that run at the same time rarely get the same one. So it stays free until a daemon of this test
// uses it.
inline int FreePort() {
  constexpr int kFirst = 20000, kPorts = 12000, kPortsOfATest = 64;
  static int next = ::getpid() * kPortsOfATest % kPorts;
  while (true) {
    const int port = kFirst + next++ % kPorts;
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    const bool free = ::bind(fd, reinterpret_cast<struct sockaddr*>(&address), sizeof(address)) == 0;
    ::close(fd);
    if (free) return port;
  }
}

}  // namespace lime
