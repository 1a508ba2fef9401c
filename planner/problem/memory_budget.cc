#include "planner/problem/memory_budget.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr Bytes kLeastReserve = 256 * kMiB;
constexpr Bytes kLeastPressureReserve = 8 * kMiB;
constexpr int64_t kMaxTpsTokens = 512;
constexpr int64_t kBalancedTokens = 1024;

int64_t TokensToKeep(const BudgetRequest& request) {
  switch (request.priority) {
    case MemoryPriority::kMaxTps:
      return std::min(request.context, kMaxTpsTokens);
    case MemoryPriority::kBalanced:
      return std::min(request.context, kBalancedTokens);
    case MemoryPriority::kMaxContext:
      return request.context;
  }
  return request.context;
}

}  // namespace

absl::StatusOr<MemoryPriority> ParseMemoryPriority(std::string_view name) {
  if (const std::optional<MemoryPriority> priority = kMemoryPriorityNames.Find(name)) return *priority;
  return Invalid("\"", Text(name), "\" is not a memory priority; give max-tps, balanced or max-context");
}

Bytes MemoryReserve(Bytes machine) {
  return std::min(std::max(kLeastReserve, machine / 100 * 3), machine / 8);
}

Bytes PressureReserve(Bytes machine, Bytes budget) {
  return std::min(MemoryReserve(machine), std::max(kLeastPressureReserve, (machine - budget) / 2));
}

DerivedBudget DeriveBudget(const BudgetRequest& request) {
  DerivedBudget derived{.reserve = MemoryReserve(request.machine), .kv_tokens = TokensToKeep(request)};
  derived.kv = std::max(request.planned_kv, request.kv_bytes(derived.kv_tokens));
  const Bytes needed = request.fixed + request.planned_kv;
  const Bytes rest = request.available - derived.reserve - request.fixed - derived.kv;
  derived.resident = std::max<Bytes>(0, rest) / 10 * 9;
  derived.budget = request.process + std::min(request.available, needed + derived.resident);
  derived.text = absl::StrCat(FormatBytes(derived.budget), ": ", FormatBytes(request.process), " are in use by this process already; of ",
                              FormatBytes(request.available), " available, ", FormatBytes(derived.reserve),
                              " stay free for other programs, ", FormatBytes(derived.kv), " for the KV of ", derived.kv_tokens, " tokens (",
                              Text(kMemoryPriorityNames.Of(request.priority)), "), and 10 % of the rest");
  return derived;
}

}  // namespace lime
