#include "daemon/rpc/listen_error.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/weights/files.h"
#include "proto/address.h"

namespace lime {
namespace {

constexpr absl::Duration kListenResolve = absl::Seconds(5);

// errno of listening there; 0: it can be done now.
int TryToListen(const SocketAddress& at) {
  const FileDescriptor socket(::socket(at.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return errno;
  const int yes = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(socket.get(), at.get(), at.length) != 0 || listen(socket.get(), 1) != 0) return errno;
  return 0;
}

std::string Sentence(int error, const HostPort& address, const SocketAddress& at) {
  switch (error) {
    case EADDRINUSE:
      return absl::StrCat("another program listens on port ", address.port,
                          " already, perhaps another limed; `ss -ltnp 'sport = :", address.port,
                          "'` shows which: end it, or choose another port");
    case EADDRNOTAVAIL:
      return absl::StrCat("this machine has no address ", at.Host(), ", but ", absl::StrJoin(OwnAddresses(), ", "),
                          "; start limed on the machine that has it (for `lime up`, give the device ssh = \"USER@HOST\"), or correct the "
                          "address");
    case EACCES:
    case EPERM:
      return absl::StrCat("this user may not use port ", address.port, "; choose one from 1024 on");
    case EAFNOSUPPORT:
      return absl::StrCat("this machine has no ", at.get()->sa_family == AF_INET6 ? "IPv6" : "IPv4", "; choose another address");
    case 0:
      return "it was in use a moment ago; try again";
    default:
      return absl::StrCat(std::strerror(error), "; choose another address");
  }
}

}  // namespace

absl::Status WhyNotListening(const std::string& address) {
  const std::string begin = absl::StrCat("cannot listen on ", address, ": ");
  const absl::StatusOr<HostPort> parsed = ParseAddress(address);
  if (!parsed.ok()) return Invalid(begin, parsed.status().message());
  const absl::StatusOr<std::vector<SocketAddress>> resolved = Resolve(*parsed, kListenResolve);
  if (!resolved.ok()) {
    return Invalid(begin, "the name ", parsed->host, " does not resolve (", resolved.status().message(),
                   "); give an address of this machine, or 0.0.0.0 for all of them");
  }
  int error = 0;
  SocketAddress at = resolved->front();
  for (const SocketAddress& each : *resolved) {
    if (error != 0) break;
    at = each, error = TryToListen(each);
  }
  return absl::UnavailableError(absl::StrCat(begin, Sentence(error, *parsed, at)));
}

}  // namespace lime
