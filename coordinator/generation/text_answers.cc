#include "coordinator/generation/text_answers.h"

#include <limits>
#include <optional>
#include <vector>

#include "coordinator/api/answers/server_answers.h"
#include "coordinator/generation/prompts.h"

namespace lime {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// Ids of the request's text or messages. Texts of any length have ids.
ApiResult<std::vector<int32_t>> IdsOf(const ServedModel& model, const ApiRequest& request, absl::CivilSecond now) {
  if (const ChatPrompt* chat = request.chat()) {
    const ApiResult<std::string> text = ChatText(model, *chat, "messages", now);
    if (!text.ok()) return text.error();
    return TextIds(model, *text, AddsSpecialToChat(model), "messages", kNoLimit);
  }
  const std::string& text = std::get<std::string>(std::get<TextPrompts>(request.prompt).front());
  absl::StatusOr<std::vector<int32_t>> ids = model.tokenizer().Encode(text, {.add_special = request.add_special});
  if (!ids.ok()) return InvalidValue("content", std::string(ids.status().message()));
  return *std::move(ids);
}

// The bytes of each token; the names of special ones.
std::vector<std::string> PiecesOf(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::vector<std::string> pieces;
  pieces.reserve(ids.size());
  for (const int32_t id : ids) {
    pieces.emplace_back(tokenizer.IsSpecial(id) ? tokenizer.IdToText(id) : tokenizer.TokenBytes(id, pieces.empty()));
  }
  return pieces;
}

}  // namespace

ApiResult<std::string> TokenizeAnswer(const ServedModel& model, const ApiRequest& request, absl::CivilSecond now) {
  const ApiResult<std::vector<int32_t>> ids = IdsOf(model, request, now);
  if (!ids.ok()) return ids.error();
  if (!request.with_pieces) return TokensJson(*ids, std::nullopt, model.context());
  return TokensJson(*ids, PiecesOf(model.tokenizer(), *ids), model.context());
}

ApiResult<std::string> DetokenizeAnswer(const ServedModel& model, const ApiRequest& request) {
  const auto& ids = std::get<std::vector<int32_t>>(std::get<TextPrompts>(request.prompt).front());
  return DetokenizedJson(model.tokenizer().Decode(ids, {.skip_special = false}));
}

ApiResult<std::string> ApplyTemplateAnswer(const ServedModel& model, const ApiRequest& request, absl::CivilSecond now) {
  const ApiResult<std::string> text = ChatText(model, *request.chat(), "messages", now);
  if (!text.ok()) return text.error();
  return PromptJson(*text);
}

std::string ModelsAnswer(const ServedModel& model) {
  return ModelsJson(model.listed());
}

ApiResult<std::string> ModelAnswer(const ServedModel& model, std::string_view id) {
  for (const ListedModel& listed : model.listed()) {
    if (listed.id == id) return ModelJson(listed);
  }
  return ModelNotFound(id);
}

}  // namespace lime
