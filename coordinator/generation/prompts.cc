#include "coordinator/generation/prompts.h"

#include <utility>

#include "coordinator/api/requests/parse_request.h"
#include "coordinator/text/tools/harmony_messages.h"
#include "coordinator/text/tools/tool_messages.h"

namespace lime {
namespace {

// A text with fewer bytes for each position is encoded at once: it may well fit.
constexpr size_t kManyBytesPerId = 8;

constexpr std::string_view kBlanks = " \t\n\v\f\r";

std::string JoinContents(const Json& messages) {
  std::string text;
  bool is_first = true;
  for (const Json& message : messages) {
    const Json& content = message.at("content");
    if (!std::exchange(is_first, false)) text += '\n';
    if (content.is_string()) text += content.get_ref<const std::string&>();
  }
  return text;
}

// Cuts the text behind the content of the last message, as transformers does: without the blanks at
// its end if the template has removed them.
ApiResult<std::string> CutBehindLast(std::string text, const ChatPrompt& prompt, std::string_view param) {
  const std::string content = prompt.messages.back().content.value_or("");
  const size_t first = content.find_first_not_of(kBlanks);
  if (first == std::string::npos) return InvalidValue(param, "the last message is to be continued, but it has no text");
  const std::string_view whole = std::string_view(content).substr(first);
  const std::string_view trimmed = whole.substr(0, whole.find_last_not_of(kBlanks) + 1);
  const size_t found = text.rfind(trimmed);
  if (found == std::string::npos) {
    return InvalidValue(param, "the last message is to be continued, but the model's chat template does not show its text as it is");
  }
  const bool has_all = std::string_view(text).substr(found).starts_with(whole);
  text.resize(found + (has_all ? whole : trimmed).size());
  return text;
}

ApiError ErrorOf(const absl::Status& status, std::string_view param) {
  return InvalidValue(param, std::string(status.message()));
}

}  // namespace

ApiResult<std::string> ChatText(const ServedModel& model, const ChatPrompt& prompt, std::string_view param, absl::CivilSecond now) {
  Json variables = TemplateVariables(prompt);
  if (model.tool_format().stated) {
    StateTools(model.tool_format(), prompt.tools, variables["messages"]);
    variables.erase("tools");
  }
  if (model.has_harmony_template()) AdaptToHarmony(variables);
  if (model.is_plain()) return JoinContents(variables["messages"]);
  absl::StatusOr<std::string> text = model.Render(std::move(variables), now);
  if (!text.ok()) {
    ApiError error = TemplateError(std::string(text.status().message()));
    error.param = param;
    return error;
  }
  if (!prompt.continue_final_message) return *std::move(text);
  return CutBehindLast(*std::move(text), prompt, param);
}

ApiResult<std::vector<int32_t>> TextIds(const ServedModel& model, std::string_view text, bool add_special, std::string_view param,
                                        int64_t most) {
  if (text.size() / kManyBytesPerId > static_cast<size_t>(most)) {
    const absl::StatusOr<int64_t> least = model.tokenizer().LeastIds(text, {.add_special = add_special});
    if (!least.ok()) return ErrorOf(least.status(), param);
    if (*least > most) return PromptTooLong(param, *least, model.context());
  }
  absl::StatusOr<std::vector<int32_t>> ids = model.Encode(text, add_special);
  if (!ids.ok()) return ErrorOf(ids.status(), param);
  if (ids->empty()) return InvalidValue(param, "the prompt is empty");
  if (std::ssize(*ids) > most) return ContextLengthExceeded(param, std::ssize(*ids), model.context());
  return *std::move(ids);
}

}  // namespace lime
