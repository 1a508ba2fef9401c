// Answers that generate nothing, each as the JSON of its body.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/api/answers/answer_events.h"
#include "coordinator/api/endpoint.h"

namespace lime {

// A name that is served, with what clients ask about the model behind it.
struct ListedModel {
  std::string id;
  int64_t created = 0;  // seconds of Unix time
  int64_t context = 0;  // positions of a request
  // For Ollama's clients.
  std::string architecture;    // llama
  std::string parameter_size;  // 1.2B
  std::string quantization;    // BF16
  std::string digest;          // of the weights, 64 hexadecimal digits
  int64_t bytes = 0;           // of the weights
  int64_t parameters = 0;
  std::string chat_template;
  bool has_tools = false, has_thinking = false;
};

std::string ModelsJson(std::span<const ListedModel> models);
std::string ModelJson(const ListedModel& model);

// {"status": "ok"}; "loading" with the share that is loaded; "draining".
std::string HealthJson(std::string_view status, std::optional<double> progress);

// `pieces`: the bytes of each token, or none. Bytes that are not UTF-8 are an array.
std::string TokensJson(std::span<const int32_t> tokens, std::optional<std::span<const std::string>> pieces, int64_t max_model_len);
std::string DetokenizedJson(std::string_view text);
std::string PromptJson(std::string_view prompt);

// The version of Ollama whose API this is, not that of LIME: clients refuse older ones than they need.
std::string OllamaVersionJson();
std::string OllamaTagsJson(std::span<const ListedModel> models);
std::string OllamaPsJson(std::span<const ListedModel> models);
std::string OllamaShowJson(const ListedModel& model);
// To a request that only loads the model.
std::string OllamaLoadedJson(Endpoint endpoint, const AnswerHead& head);

}  // namespace lime
