#include "coordinator/api/answers/server_answers.h"

#include "absl/strings/str_cat.h"
#include "coordinator/api/answers/answer_json.h"
#include "coordinator/api/api_request.h"
#include "coordinator/text/unicode/utf8.h"
#include "planner/base/json_text.h"

namespace lime {
namespace {

// The first release with all that is answered here: `capabilities` came with 0.6.4, which VS Code
// needs, and `think` with 0.9.0.
constexpr std::string_view kOllamaRelease = "0.9.0";

Json ModelCard(const ListedModel& model) {
  return {{"id", model.id}, {"object", "model"}, {"created", model.created}, {"owned_by", "lime"}, {"max_model_len", model.context}};
}

Json Details(const ListedModel& model) {
  return {{"parent_model", ""},
          {"format", "safetensors"},
          {"family", model.architecture},
          {"families", Json::array({model.architecture})},
          {"parameter_size", model.parameter_size},
          {"quantization_level", model.quantization}};
}

Json OllamaCard(const ListedModel& model) {
  return {{"name", model.id}, {"model", model.id}, {"size", model.bytes}, {"digest", model.digest}, {"details", Details(model)}};
}

Json Lossy(std::string_view text) {
  std::string utf8;
  AppendLossyUtf8(text, utf8);
  return utf8;
}

Json PieceJson(const std::string& piece) {
  if (IsUtf8(piece)) return piece;
  Json bytes = Json::array();
  for (const char c : piece) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

}  // namespace

std::string ModelsJson(std::span<const ListedModel> models) {
  Json data = Json::array();
  for (const ListedModel& model : models) data.push_back(ModelCard(model));
  return JsonText(Json{{"object", "list"}, {"data", std::move(data)}});
}

std::string ModelJson(const ListedModel& model) {
  return JsonText(ModelCard(model));
}

std::string HealthJson(std::string_view status, std::optional<double> progress) {
  Json health = {{"status", status}};
  if (progress) health["progress"] = *progress;
  return JsonText(health);
}

std::string TokensJson(std::span<const int32_t> tokens, std::optional<std::span<const std::string>> pieces, int64_t max_model_len) {
  Json written = Json::array();
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (pieces) {
      written.push_back({{"id", tokens[i]}, {"piece", PieceJson((*pieces)[i])}});
    } else {
      written.push_back(tokens[i]);
    }
  }
  return JsonText(Json{{"tokens", std::move(written)}, {"count", tokens.size()}, {"max_model_len", max_model_len}});
}

std::string DetokenizedJson(std::string_view text) {
  const Json lossy = Lossy(text);
  return JsonText(Json{{"content", lossy}, {"prompt", lossy}});
}

std::string PromptJson(std::string_view prompt) {
  return JsonText(Json{{"prompt", Lossy(prompt)}});
}

std::string OllamaVersionJson() {
  return JsonText(Json{{"version", kOllamaRelease}});
}

std::string OllamaTagsJson(std::span<const ListedModel> models) {
  Json list = Json::array();
  for (const ListedModel& model : models) {
    list.push_back(OllamaCard(model));
    list.back()["modified_at"] = IsoTime(model.created);
  }
  return JsonText(Json{{"models", std::move(list)}});
}

std::string OllamaPsJson(std::span<const ListedModel> models) {
  Json list = Json::array();
  for (const ListedModel& model : models) {
    list.push_back(OllamaCard(model));
    list.back().update({{"expires_at", "2318-01-01T00:00:00Z"}, {"size_vram", 0}, {"context_length", model.context}});  // it stays
  }
  return JsonText(Json{{"models", std::move(list)}});
}

std::string OllamaShowJson(const ListedModel& model) {
  Json capabilities = Json::array({"completion"});
  if (model.has_tools) capabilities.push_back("tools");
  if (model.has_thinking) capabilities.push_back("thinking");
  const Json info = {{"general.architecture", model.architecture},
                     {"general.basename", model.id},  // VS Code takes the model's name from here
                     {"general.parameter_count", model.parameters},
                     {absl::StrCat(model.architecture, ".context_length"), model.context}};
  return JsonText(Json{{"modelfile", ""},
                       {"parameters", ""},
                       {"template", model.chat_template},
                       {"details", Details(model)},
                       {"model_info", info},
                       {"capabilities", std::move(capabilities)},
                       {"modified_at", IsoTime(model.created)}});
}

}  // namespace lime
