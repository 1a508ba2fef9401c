// The memory that a device may use where nobody says, and the room that it leaves to others. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "planner/base/bytes.h"
#include "planner/base/names.h"
#include "planner/base/status.h"

namespace lime {

// For what memory is kept free where the user gives no budget (Layer-Streaming, section 3.4).
enum class MemoryPriority {
  kMaxTps,      // the KV of 512 tokens: as many resident blocks as possible
  kBalanced,    // of 1,024 tokens
  kMaxContext,  // of the full context: requests may grow to it and no block has to leave
};
inline constexpr Names<MemoryPriority, 3> kMemoryPriorityNames = {
    {{MemoryPriority::kMaxTps, "max-tps"}, {MemoryPriority::kBalanced, "balanced"}, {MemoryPriority::kMaxContext, "max-context"}}};
absl::StatusOr<MemoryPriority> ParseMemoryPriority(std::string_view name);

// Room for everybody else: 3 % of the machine, at least 256 MiB, at most an eighth of it. `machine`: physical memory within the limits of
// our cgroups.
Bytes MemoryReserve(Bytes machine);

// The room below which blocks are given back. A budget that leaves less than the reserve on purpose (up to a hard limit, say) is no
// pressure: half of what it leaves is, and 8 MiB at least.
Bytes PressureReserve(Bytes machine, Bytes budget);

struct BudgetRequest {
  Bytes available = 0;           // what the process could still take: AvailableMemory()
  Bytes machine = 0;             // MachineMemory()
  Bytes process = 0;             // what the process has already
  Bytes fixed = 0;               // what it will take besides resident blocks and KV, as far as that is known: activations, the ring
  Bytes planned_kv = 0;          // KV that is reserved up front
  Bytes kv_bytes_per_token = 0;  // for what may come later
  int64_t context = 0;           // tokens; the longest that a sequence can become
  MemoryPriority priority = MemoryPriority::kBalanced;
};

struct DerivedBudget {
  Bytes budget = 0;       // of the whole process
  Bytes reserve = 0;      // left to others
  int64_t kv_tokens = 0;  // whose KV is kept free, or planned
  Bytes kv = 0;
  Bytes resident = 0;  // for blocks, after the safety factor

  // "11.2 GiB: 166 MiB that this process has, and more; of 14.1 GiB available 741 MiB are left to others and 128 MiB kept for the KV of
  // 1024 tokens (balanced), and 10 % of the rest"
  std::string text;
};

// Eq. 2 of Layer-Streaming, with our terms: resident = 0.9 (available - reserve - fixed - KV); budget = process + fixed + planned KV +
// resident. Where that leaves nothing to blocks, the reserve gives way to what a run needs at least, as far as there is memory.
DerivedBudget DeriveBudget(const BudgetRequest& request);

}  // namespace lime
