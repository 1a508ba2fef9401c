// Why a daemon cannot listen: tries what gRPC has tried, one step at a time, and says which fails and what to do.
#pragma once

#include <string>

#include "planner/base/status.h"

namespace lime {

// The sentence for an `address` (HOST:PORT) on which gRPC could not listen. Never OK. Waits for the resolver, 5 s at most.
absl::Status WhyNotListening(const std::string& address);

}  // namespace lime
