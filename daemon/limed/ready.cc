#include "daemon/limed/ready.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

namespace lime {
namespace {

void NotifyManager(const char* path) {
  struct sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const size_t length = std::strlen(path);
  if (length < 2 || length >= sizeof(address.sun_path)) return;
  std::memcpy(address.sun_path, path, length);
  if (address.sun_path[0] == '@') address.sun_path[0] = 0;  // an abstract name
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return;
  constexpr char kReady[] = "READY=1";
  const auto bytes = static_cast<socklen_t>(offsetof(struct sockaddr_un, sun_path) + length);
  (void)sendto(socket, kReady, sizeof(kReady) - 1, MSG_NOSIGNAL, reinterpret_cast<const struct sockaddr*>(&address), bytes);
  close(socket);
}

}  // namespace

void TellReady(int port, int fd) {
  if (fd >= 0) {
    const std::string line = std::to_string(port) + "\n";
    [[maybe_unused]] const ssize_t written = write(fd, line.data(), line.size());
    close(fd);
  }
  if (const char* const manager = std::getenv("NOTIFY_SOCKET"); manager != nullptr) NotifyManager(manager);
}

}  // namespace lime
