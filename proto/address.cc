#include "proto/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lime {
namespace {

struct Resolved {
  int error = 0;
  std::vector<SocketAddress> addresses;
};

Resolved ResolveNow(const HostPort& address) {
  struct addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  struct addrinfo* list = nullptr;
  Resolved resolved{.error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list)};
  if (resolved.error != 0) return resolved;
  for (const struct addrinfo* each = list; each != nullptr; each = each->ai_next) {
    SocketAddress one{.length = each->ai_addrlen};
    std::memcpy(&one.storage, each->ai_addr, std::min<size_t>(each->ai_addrlen, sizeof(one.storage)));
    resolved.addresses.push_back(one);
  }
  freeaddrinfo(list);
  return resolved;
}

}  // namespace

std::string SocketAddress::Host() const {
  char text[NI_MAXHOST] = {};
  if (getnameinfo(get(), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return "?";
  return text;
}

absl::StatusOr<std::vector<SocketAddress>> Resolve(const HostPort& address, absl::Duration patience) {
  // The resolver cannot be interrupted. A late thread ends by itself, and its result is ignored.
  const auto promise = std::make_shared<std::promise<Resolved>>();
  std::future<Resolved> future = promise->get_future();
  std::thread([promise, address] { promise->set_value(ResolveNow(address)); }).detach();
  if (future.wait_for(absl::ToChronoMilliseconds(patience)) != std::future_status::ready)
    return absl::DeadlineExceededError(absl::StrCat("no name server answered within ", absl::FormatDuration(patience)));
  Resolved resolved = future.get();
  if (resolved.error != 0) return absl::NotFoundError(gai_strerror(resolved.error));
  return std::move(resolved.addresses);
}

std::vector<std::string> OwnAddresses() {
  std::vector<std::string> own, loopback;
  struct ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return own;
  for (const struct ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_addr->sa_family != AF_INET && each->ifa_addr->sa_family != AF_INET6)) continue;
    SocketAddress one{.length = each->ifa_addr->sa_family == AF_INET ? static_cast<socklen_t>(sizeof(struct sockaddr_in))
                                                                     : static_cast<socklen_t>(sizeof(struct sockaddr_in6))};
    std::memcpy(&one.storage, each->ifa_addr, one.length);
    const std::string host = one.Host();
    (host.starts_with("127.") || host == "::1" ? loopback : own).push_back(host);
  }
  freeifaddrs(list);
  own.insert(own.end(), loopback.begin(), loopback.end());
  return own;
}

}  // namespace lime
