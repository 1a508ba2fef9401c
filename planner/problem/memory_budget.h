// The default memory budget of a device, and the reserve for other programs. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "planner/base/bytes.h"
#include "planner/base/names.h"
#include "planner/base/status.h"
#include "planner/plan/device/backend_names.h"

namespace lime {

// The KV for which memory is reserved if the user gives no budget (Layer-Streaming, section 3.4).
enum class MemoryPriority {
  kMaxTps,      // KV of 512 tokens: as many resident blocks as possible
  kBalanced,    // KV of 1,024 tokens
  kMaxContext,  // KV of the full context: requests can grow and no block has to leave
};
inline constexpr Names<MemoryPriority, 3> kMemoryPriorityNames = {{{MemoryPriority::kMaxTps, kMemoryModeNames[0]},
                                                                   {MemoryPriority::kBalanced, kMemoryModeNames[1]},
                                                                   {MemoryPriority::kMaxContext, kMemoryModeNames[2]}}};
absl::StatusOr<MemoryPriority> ParseMemoryPriority(std::string_view name);

// The reserve for other programs: 3 % of the machine, at least 256 MiB, at most an eighth.
// `machine` is the physical memory within the limits of our cgroups.
Bytes MemoryReserve(Bytes machine);

// Blocks are evicted if less than this is free. A budget may leave less than MemoryReserve on
// purpose, for example up to a hard limit; then the limit is half of the memory that it leaves, at
// least 8 MiB.
Bytes PressureReserve(Bytes machine, Bytes budget);

struct BudgetRequest {
  Bytes available = 0;  // memory that the process can still take: AvailableMemory()
  Bytes machine = 0;    // MachineMemory()
  Bytes process = 0;    // memory that the process already has
  // Memory that it will need besides resident blocks and KV, if known: activations, the ring, the
  // states of sequences.
  Bytes fixed = 0;
  Bytes planned_kv = 0;  // KV reserved up front
  // KV of so many tokens of one sequence, for later KV.
  std::function<Bytes(int64_t tokens)> kv_bytes;
  int64_t context = 0;  // most tokens of a sequence
  MemoryPriority priority = MemoryPriority::kBalanced;
};

struct DerivedBudget {
  Bytes budget = 0;       // of the whole process
  Bytes reserve = 0;      // left to other programs
  int64_t kv_tokens = 0;  // tokens with reserved or planned KV
  Bytes kv = 0;
  Bytes resident = 0;  // for blocks, after the safety factor

  // "11.2 GiB: 166 MiB are in use by this process already; of 14.1 GiB available, 741 MiB stay free
  // for other programs, 128 MiB for the KV of 1024 tokens (balanced), and 10 % of the rest"
  std::string text;
};

// Eq. 2 of Layer-Streaming with our terms: resident = 0.9 (available - reserve - fixed - KV);
// budget = process + fixed + planned KV + resident. If no memory is left for blocks, the reserve
// shrinks so that the run gets the memory that it needs, as far as memory is available.
DerivedBudget DeriveBudget(const BudgetRequest& request);

}  // namespace lime
