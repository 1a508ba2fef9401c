// The chat template of a model: messages become the text that the model was trained on.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/time/civil_time.h"
#include "coordinator/text/jinja/syntax/syntax.h"
#include "nlohmann/json_fwd.hpp"
#include "planner/base/status.h"

namespace lime {

// Thread: any.
class ChatTemplate {
 public:
  // Errors name the line of `source`.
  static absl::StatusOr<ChatTemplate> Parse(std::string_view source);

  // Renders with `variables`, an object, as transformers' apply_chat_template does. Nothing but the
  // arguments changes the text: `now` is the time that strftime_now tells. An error of the template
  // names its line; that of raise_exception is the text that the template gives it.
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& variables, absl::CivilSecond now) const;

 private:
  explicit ChatTemplate(std::unique_ptr<const jinja::Syntax> syntax) : syntax_(std::move(syntax)) {}

  std::unique_ptr<const jinja::Syntax> syntax_;
};

}  // namespace lime
