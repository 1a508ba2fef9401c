// Binds threads to cores. A new thread inherits the cores of the thread that makes it.
#pragma once

#include <string_view>
#include <vector>

#include "planner/base/status.h"

namespace lime {

// Cores of this machine, ascending, without duplicates. Empty: any core.
using Cores = std::vector<int>;

// Parses a list such as "0-3,5". InvalidArgument if it is malformed, or a core is not usable.
absl::StatusOr<Cores> ParseCores(std::string_view text);

// All cores that the calling thread may use, without `cores`. May be empty.
Cores OtherCores(const Cores& cores);

// Binds the calling thread to these cores. Does nothing if `cores` is empty. Ignores errors.
void BindToCores(const Cores& cores);

// Binds the calling thread to cores while this object lives. Threads made meanwhile stay bound.
class ScopedCoreBinding {
 public:
  explicit ScopedCoreBinding(const Cores& cores);
  ~ScopedCoreBinding();
  ScopedCoreBinding(const ScopedCoreBinding&) = delete;
  ScopedCoreBinding& operator=(const ScopedCoreBinding&) = delete;

 private:
  const Cores before_;
};

}  // namespace lime
