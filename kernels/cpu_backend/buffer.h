// Memory that the backend allocates once, and that no later access faults in.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "planner/base/bytes.h"

namespace lime::cpu {

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<std::byte[], FreeMemory>;

// Zeros, written once, aligned to 64 bytes; large buffers lie on 2 MiB pages where the system has them.
// Throws std::bad_alloc: OpenCpuBackend makes a Status of it.
Buffer MakePrefaulted(Bytes bytes);

}  // namespace lime::cpu
