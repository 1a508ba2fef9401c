// Renders a template in one call.
#pragma once

#include <string>
#include <string_view>

#include "coordinator/text/jinja/chat_template.h"
#include "nlohmann/json.hpp"

namespace lime {

inline const absl::CivilSecond kNow(2024, 7, 6, 9, 30, 5);  // a Saturday

// The text, or "error: " and the sentence.
inline std::string RenderJson(std::string_view source, const nlohmann::ordered_json& variables, absl::CivilSecond now = kNow) {
  const auto parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return "error: " + std::string(parsed.status().message());
  const auto text = parsed->Render(variables, now);
  return text.ok() ? *text : "error: " + std::string(text.status().message());
}

// `variables` is JSON.
inline std::string Render(std::string_view source, std::string_view variables = "{}") {
  return RenderJson(source, nlohmann::ordered_json::parse(variables));
}

}  // namespace lime
