// Names of parts for messages.

#include "absl/strings/str_cat.h"
#include "planner/plan/plan.h"

namespace lime {
namespace {

// "1" or "1-3": indices of parts [lo, hi) in their block, counted from 1.
std::string Places(int lo, int hi, int begin) {
  return hi - lo == 1 ? absl::StrCat(lo - begin + 1) : absl::StrCat(lo - begin + 1, "-", hi - begin);
}

}  // namespace

std::string PartsName(const Plan& plan, int lo, int hi) {
  std::string block = BlockName(plan.parts[lo].block);
  const auto [begin, end] = PartsOf(plan, plan.parts[lo].block);
  if (lo == begin && hi == end) return block;
  if (plan.parts[lo].is_kv() && plan.parts[hi - 1].is_kv()) {
    return absl::StrCat("kv ", plan.parts[lo].block.layer, " ", plan.parts[lo].kv_begin, "..", plan.parts[hi - 1].kv_end - 1);
  }
  if (plan.parts[lo].block.kind == BlockKind::kHead) {
    return absl::StrCat(block, " ", plan.parts[lo].rows.front().begin, "..", plan.parts[hi - 1].rows.front().end - 1);
  }
  return absl::StrCat(block, " [", Places(lo, hi, begin), "/", end - begin, "]");
}

std::string PartName(const Plan& plan, int part) {
  return PartsName(plan, part, part + 1);
}

}  // namespace lime
