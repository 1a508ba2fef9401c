// Any text as a planner problem: an error in one sentence, or an answer that is JSON without a
// number that is not finite.
#include <string_view>

#include "nlohmann/json.hpp"
#include "planner/base/check.h"
#include "planner/solve.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::StatusOr<std::string> answer = lime::Solve({reinterpret_cast<const char*>(data), size}, {.max_work = 1e6});
  if (!answer.ok()) {
    LIME_CHECK(!answer.status().message().empty());
    return 0;
  }
  const nlohmann::json object = nlohmann::json::parse(*answer, nullptr, /*allow_exceptions=*/false);
  LIME_CHECK(object.is_object()) << *answer;
  // JSON has no infinity: a number that was not finite is printed as null.
  for (const auto& field : object) LIME_CHECK(!field.is_null()) << *answer;
  return 0;
}
