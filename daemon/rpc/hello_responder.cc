#include "daemon/rpc/hello_responder.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "proto/address.h"

namespace lime {
namespace {

constexpr absl::Duration kHelloResolve = absl::Seconds(5);
constexpr int kMaxPerSecond = 100;

}  // namespace

absl::StatusOr<std::unique_ptr<HelloResponder>> HelloResponder::Start(const std::string& address, int port, std::function<Hello()> what,
                                                                      std::function<void(const std::string&)> asked) {
  LIME_ASSIGN_OR_RETURN(HostPort at, ParseAddress(address));
  at.port = port;
  LIME_ASSIGN_OR_RETURN(const std::vector<SocketAddress> resolved, Resolve(at, kHelloResolve));
  const SocketAddress& own = resolved.front();
  FileDescriptor socket(::socket(own.get()->sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), wake(eventfd(0, EFD_CLOEXEC));
  if (!socket.valid() || !wake.valid()) return ErrnoStatus(errno, address, "open a datagram socket");
  if (bind(socket.get(), own.get(), own.length) != 0) return ErrnoStatus(errno, address, "receive datagrams");
  return std::unique_ptr<HelloResponder>(new HelloResponder(std::move(socket), std::move(wake), std::move(what), std::move(asked)));
}

HelloResponder::HelloResponder(FileDescriptor socket, FileDescriptor wake, std::function<Hello()> what,
                               std::function<void(const std::string&)> asked)
    : socket_(std::move(socket)), wake_(std::move(wake)), what_(std::move(what)), asked_(std::move(asked)), thread_([this] { Serve(); }) {}

HelloResponder::~HelloResponder() {
  (void)eventfd_write(wake_.get(), 1);
  thread_.join();
}

void HelloResponder::Serve() {
  int answered = 0;
  absl::Time second = absl::Now();
  while (true) {
    struct pollfd events[] = {{.fd = socket_.get(), .events = POLLIN}, {.fd = wake_.get(), .events = POLLIN}};
    if (poll(events, 2, -1) < 0 && errno != EINTR) return;
    if (events[1].revents != 0) return;
    SocketAddress from;
    from.length = sizeof(from.storage);
    std::byte packet[kHelloBytes + 1];
    const ssize_t bytes =
        recvfrom(socket_.get(), packet, sizeof(packet), 0, reinterpret_cast<struct sockaddr*>(&from.storage), &from.length);
    if (bytes < 0) continue;
    if (absl::Now() - second > absl::Seconds(1) || absl::Now() < second) second = absl::Now(), answered = 0;
    const std::optional<HelloPacket> answer = AnswerHello(std::span(packet, static_cast<size_t>(bytes)), what_());
    if (!answer || ++answered > kMaxPerSecond) continue;
    if (asked_) asked_(from.Host());
    (void)sendto(socket_.get(), answer->data(), answer->size(), 0, from.get(), from.length);
  }
}

}  // namespace lime
