#include "planner/base/release.h"

namespace lime {

std::string_view Release() {
  return LIME_RELEASE;
}

}  // namespace lime
