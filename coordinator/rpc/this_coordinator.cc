#include "coordinator/rpc/this_coordinator.h"

#include <unistd.h>

#include <random>

#include "daemon/weights/files.h"

namespace lime {
namespace {

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

uint64_t NewId() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;  // 0: not said
}

}  // namespace

Coordinator NewCoordinator() {
  return {.user = UserName(geteuid()), .host = HostName(), .id = NewId()};
}

}  // namespace lime
