#include "daemon/machine/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace lime {

void NotifyManager(std::string_view state) {
  const char* const path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr) return;
  struct sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const size_t length = std::strlen(path);
  if (length < 2 || length >= sizeof(address.sun_path)) return;
  std::memcpy(address.sun_path, path, length);
  if (address.sun_path[0] == '@') address.sun_path[0] = 0;  // an abstract name
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return;
  const auto bytes = static_cast<socklen_t>(offsetof(struct sockaddr_un, sun_path) + length);
  (void)sendto(socket, state.data(), state.size(), MSG_NOSIGNAL, reinterpret_cast<const struct sockaddr*>(&address), bytes);
  close(socket);
}

}  // namespace lime
