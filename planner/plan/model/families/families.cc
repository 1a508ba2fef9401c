#include "planner/plan/model/families/families.h"

#include <algorithm>

#include "planner/base/check.h"

namespace lime {

std::span<const Family* const> Families() {
  return kFamilies;
}

const Family& FamilyOf(std::string_view model_type) {
  const auto* const found = std::ranges::find(kFamilies, model_type, &Family::name);
  LIME_CHECK(found != std::end(kFamilies)) << "no family \"" << model_type << '"';
  return **found;
}

}  // namespace lime
