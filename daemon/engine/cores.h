// Which cores threads keep to. Threads that are made inherit it.
#pragma once

#include <string_view>
#include <vector>

#include "planner/base/status.h"

namespace lime {

// Of this machine; ascending, each once. Empty: any.
using Cores = std::vector<int>;

// "0-3,5". InvalidArgument for what is none, and for cores that this process may not use.
absl::StatusOr<Cores> ParseCores(std::string_view text);

// All others that this process may use; empty where there are none.
Cores OtherCores(const Cores& cores);

// The calling thread keeps to these cores, to all it may where there are none.
void KeepTo(const Cores& cores);

// While this lives the calling thread keeps to some cores, and with it for good the threads that it makes.
class KeptTo {
 public:
  explicit KeptTo(const Cores& cores);
  ~KeptTo();
  KeptTo(const KeptTo&) = delete;
  KeptTo& operator=(const KeptTo&) = delete;

 private:
  const Cores before_;
};

}  // namespace lime
