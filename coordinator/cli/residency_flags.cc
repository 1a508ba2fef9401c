#include "coordinator/cli/residency_flags.h"

#include <cmath>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/command_line.h"
#include "coordinator/cli/command.h"
#include "daemon/engine/call_limits.h"
#include "planner/base/strings.h"

namespace lime::cli {
namespace {

constexpr int64_t kMaxPieces = 1024;  // more than that is meant as bytes

// "0.5" or "50%", 0 to 1.
absl::StatusOr<double> ParseShare(const std::string& said) {
  std::string text = said;
  const bool percent = !text.empty() && text.back() == '%';
  if (percent) text.pop_back();
  double value = 0;
  if (text.find_first_not_of("0123456789.+-eE") != std::string::npos || !absl::SimpleAtod(text, &value) || !std::isfinite(value))
    return WrongCall(absl::StrCat("--resident ", AsTyped(said), " is no share, such as 0.5 or 50%"));
  if (percent) value /= 100;
  if (value < 0 || value > 1) return WrongCall(absl::StrCat("--resident ", said, " is outside 0 to 1"));
  return value;
}

}  // namespace

absl::Status ResidencyFlags::Apply(LocalPlanRequest& request) const {
  if (!memory.empty()) {
    const absl::StatusOr<Bytes> bytes = ParseBytes(memory);
    if (!bytes.ok()) return WrongCall(absl::StrCat("--memory: ", bytes.status().message()));
    if (*bytes < 1) return WrongCall(absl::StrCat("--memory ", memory, " is nothing; give a size such as 2GiB"));
    LIME_RETURN_IF_ERROR(OfUser(CheckBudget(absl::StrCat("--memory ", memory), *bytes)));
    request.budget = *bytes;
  }
  const absl::StatusOr<MemoryPriority> mode = ParseMemoryPriority(priority);
  if (!mode.ok()) return WrongCall(absl::StrCat("--memory-mode: ", mode.status().message()));
  request.priority = *mode;
  const absl::StatusOr<Placement> parsed = ParsePlacement(placement);
  if (!parsed.ok()) return WrongCall(absl::StrCat("--placement: ", parsed.status().message()));
  request.placement = *parsed;
  if (!resident.empty()) {
    LIME_ASSIGN_OR_RETURN(request.resident_share, ParseShare(resident));
  }
  int64_t pieces = 0;
  if (pool.empty()) return absl::OkStatus();
  if (absl::SimpleAtoi(pool, &pieces) && pieces <= kMaxPieces) {
    if (pieces < 2) return WrongCall(absl::StrCat("--pool ", pool, " is too few; the ring holds two pieces at least"));
    request.ring_pieces = pieces;
    return absl::OkStatus();
  }
  const absl::StatusOr<Bytes> bytes = ParseBytes(pool);
  if (!bytes.ok()) return WrongCall(absl::StrCat("--pool: ", bytes.status().message()));
  request.ring = *bytes;
  return absl::OkStatus();
}

}  // namespace lime::cli
