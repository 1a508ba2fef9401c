// Listeners on ports of loopback that are no limed.
#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "planner/base/check.h"
#include "tests/integration/programs/free_port.h"

namespace lime {

// A socket that listens but never accepts by itself: connections succeed, but no data comes.
class SilentPort {
 public:
  // `port`: the port of a daemon that has ended; 0: a free port.
  explicit SilentPort(int backlog = 16, int port = 0) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    struct sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port == 0 ? FreePort() : port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    LIME_CHECK(bind(fd_, reinterpret_cast<struct sockaddr*>(&address), sizeof(address)) == 0);
    LIME_CHECK(listen(fd_, backlog) == 0);
    socklen_t length = sizeof(address);
    getsockname(fd_, reinterpret_cast<struct sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
  }
  ~SilentPort() {
    for (const int each : waiting_) close(each);
    close(fd_);
  }
  SilentPort(const SilentPort&) = delete;

  // Fills the queue, so that new connections do not even succeed.
  void FillUp() {
    for (int i = 0; i < 4; ++i) {
      struct sockaddr_in address = {};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      address.sin_port = htons(static_cast<uint16_t>(port_));
      waiting_.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      (void)connect(waiting_.back(), reinterpret_cast<struct sockaddr*>(&address), sizeof(address));
    }
  }
  int port() const { return port_; }
  int fd() const { return fd_; }

 private:
  const int fd_;
  int port_ = 0;
  std::vector<int> waiting_;
};

// The next connection; -1: none comes within 10 s.
inline int Accept(const SilentPort& port) {
  struct pollfd event = {.fd = port.fd(), .events = POLLIN, .revents = 0};
  return poll(&event, 1, 10'000) > 0 ? accept4(port.fd(), nullptr, nullptr, SOCK_CLOEXEC) : -1;
}

// Closes the next `count` connections without sending data, like a daemon that is ending. Returns
// the number of connections that came.
inline int CloseNext(const SilentPort& port, int count) {
  for (int closed = 0; closed < count; ++closed) {
    const int connection = Accept(port);
    if (connection < 0) return closed;
    close(connection);
  }
  return count;
}

// Waits for the first bytes of each connection, sends the same text on all of them, and closes.
class Babbler {
 public:
  explicit Babbler(std::string says) : says_(std::move(says)), thread_([this] { Serve(); }) {}
  ~Babbler() {
    stop_ = true;
    thread_.join();
  }
  int port() const { return port_.port(); }

 private:
  void Serve() {
    while (!stop_) {
      struct pollfd event = {.fd = port_.fd(), .events = POLLIN, .revents = 0};
      if (poll(&event, 1, 20) <= 0) continue;
      const int connection = accept4(port_.fd(), nullptr, nullptr, SOCK_CLOEXEC);
      char received[4096];
      struct pollfd said = {.fd = connection, .events = POLLIN, .revents = 0};
      if (poll(&said, 1, 1000) > 0) (void)recv(connection, received, sizeof(received), 0);
      (void)send(connection, says_.data(), says_.size(), MSG_NOSIGNAL);
      close(connection);
    }
  }

  const std::string says_;
  SilentPort port_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace lime
