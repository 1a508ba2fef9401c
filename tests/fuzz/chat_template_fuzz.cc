// Hostile chat templates and variables: a template, a byte 1, and variables in JSON. Texts are
// UTF-8, and the same each time.
#include <cstdlib>

#include "coordinator/text/jinja/chat_template.h"
#include "coordinator/text/unicode/utf8.h"
#include "planner/base/json_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view source = input.substr(0, input.find('\1'));
  const auto parsed = lime::ChatTemplate::Parse(source);
  if (!parsed.ok()) return 0;
  const std::string_view rest = input.substr(std::min(source.size() + 1, input.size()));
  const auto given = lime::ParseOrderedJsonObject(rest, "fuzz");
  const nlohmann::ordered_json variables = given.value_or(nlohmann::ordered_json::object());
  const absl::CivilSecond now(2024, 7, 26, 9, 30);
  const auto text = parsed->Render(variables, now);
  if (text.ok() && (!lime::IsUtf8(*text) || parsed->Render(variables, now).value_or("") != *text)) std::abort();
  return 0;
}
