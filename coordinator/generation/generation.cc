#include "coordinator/generation/generation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/sampling/logits_hash.h"
#include "coordinator/generation/mask_format.h"
#include "coordinator/generation/prompts.h"
#include "coordinator/text/tools/harmony_header.h"
#include "coordinator/text/unicode/utf8.h"

namespace lime {
namespace {

using Start = ThinkingSplitter::Start;

// JavaScript reads numbers up to here exactly.
constexpr int kSeedBits = 53;

struct Prompt {
  std::string text;  // of a chat, or of a prompt whose text the answer needs
  std::vector<int32_t> ids;
};

// The field of a response's format.
std::string_view FormatField(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kResponses:
      return "text.format";
    case Endpoint::kOllamaChat:
    case Endpoint::kOllamaGenerate:
      return "format";
    default:
      return "response_format";
  }
}

int64_t CharactersOf(std::string_view text) {
  int64_t characters = 0;
  for (; !text.empty(); text.remove_prefix(DecodeUtf8(text).length)) ++characters;
  return characters;
}

// Where the thinking of a chat's answer begins.
Start ThinkingOf(const ServedModel& model, const ChatPrompt& chat, std::string_view prompt) {
  if (model.is_harmony())
    return chat.continue_final_message || prompt.ends_with(kHarmonyMessage) ? Start::kHarmonyContent : Start::kHarmony;
  if (!model.thinks()) return Start::kOff;
  if (!chat.continue_final_message) return OpensThinking(prompt) ? Start::kInside : EndsThinking(prompt) ? Start::kOff : Start::kOpen;
  const std::string content = chat.messages.back().content.value_or("");
  const size_t opened = content.rfind(kThinkTag), closed = content.rfind(kThinkEndTag);
  const bool is_open = opened != std::string::npos && (closed == std::string::npos || closed < opened);
  return is_open ? Start::kInside : Start::kOff;
}

class Preparation {
 public:
  Preparation(const ServedModel& model, Endpoint endpoint, const ApiRequest& request, const GenerationInput& input)
      : model_(model), endpoint_(endpoint), request_(request), input_(input), param_(PromptField(endpoint)) {}

  ApiResult<Generation> Run() {
    if (std::optional<ApiError> error = CheckHashState()) return *std::move(error);
    if (std::optional<ApiError> error = ReadPrompts()) return *std::move(error);
    FillReading();
    if (std::optional<ApiError> error = ReadTools()) return *std::move(error);
    for (const Prompt& prompt : prompts_) {
      for (int32_t i = 0; i < request_.n; ++i) made_.requests.push_back(RequestOf(prompt.ids));
    }
    return std::move(made_);
  }

 private:
  bool scores_prompt() const { return request_.max_tokens == 0 || (request_.echo && request_.top_logprobs); }
  // A device gives the plan up at a state with which it cannot continue.
  std::optional<ApiError> CheckHashState() const {
    if (request_.hash_state.value_or("").empty()) return std::nullopt;
    const absl::Status status = LogitsHash::Continue(*request_.hash_state).status();
    if (status.ok()) return std::nullopt;
    return InvalidValue("lime.hash_state", absl::StrCat(status.message(), "; send the one of the last answer, or an empty text"));
  }

  // A prompt of so many ids leaves room for an answer.
  int64_t MostIds() const { return model_.context() - (request_.max_tokens == 0 ? 0 : 1); }

  std::optional<ApiError> ReadPrompts() {
    if (const ChatPrompt* chat = request_.chat()) {
      ApiResult<std::string> text = ChatText(model_, *chat, param_, input_.now);
      if (!text.ok()) return text.error();
      made_.thinking = ThinkingOf(model_, *chat, *text);
      made_.divides_harmony = model_.thinks();
      made_.shows_think_tags = true;
      return AddText(*std::move(text), AddsSpecialToChat(model_));
    }
    for (const TextPrompt& prompt : std::get<TextPrompts>(request_.prompt)) {
      const auto* text = std::get_if<std::string>(&prompt);
      std::optional<ApiError> error =
          text != nullptr ? AddText(*text, request_.add_special) : AddIds(std::get<std::vector<int32_t>>(prompt));
      if (error) return error;
    }
    return std::nullopt;
  }

  std::optional<ApiError> AddText(std::string text, bool add_special) {
    ApiResult<std::vector<int32_t>> ids = TextIds(model_, text, add_special, param_, MostIds());
    if (!ids.ok()) return ids.error();
    prompts_.push_back({std::move(text), *std::move(ids)});
    return std::nullopt;
  }

  std::optional<ApiError> AddIds(const std::vector<int32_t>& ids) {
    if (std::ssize(ids) > MostIds()) return ContextLengthExceeded(param_, std::ssize(ids), model_.context());
    const bool needs_text = request_.echo || request_.top_logprobs;
    prompts_.push_back({needs_text ? model_.tokenizer().Decode(ids) : std::string(), ids});
    return std::nullopt;
  }

  void FillReading() {
    made_.prompts = std::ssize(prompts_);
    made_.seed = request_.sampling.seed ? *request_.sampling.seed : input_.random() >> (64 - kSeedBits);
    made_.stop = request_.stop;
    made_.return_token_ids = request_.return_token_ids;
    made_.has_scores = request_.top_logprobs.has_value();
    made_.has_hash_state = request_.hash_state.has_value();
    made_.scores_ends = endpoint_ == Endpoint::kCompletions;
    for (const Prompt& prompt : prompts_) {
      if (request_.echo) made_.echoed.push_back(prompt.text);
      const int64_t offset = made_.has_scores && !request_.echo ? CharactersOf(prompt.text) : 0;
      if (endpoint_ == Endpoint::kCompletions)
        made_.first_offsets.insert(made_.first_offsets.end(), static_cast<size_t>(request_.n), offset);
    }
  }

  std::optional<ApiError> ReadTools() {
    ToolRequest tools = {.choice = request_.tool_choice, .parallel = request_.parallel_tool_calls};
    if (const ChatPrompt* chat = request_.chat()) {
      if (const std::optional<ToolFault> fault = ReadFunctions(chat->tools, nullptr, tools.functions)) {
        return InvalidValue(absl::StrCat("tools[", fault->tool, "]"), fault->message);
      }
    }
    ApiResult<std::string> format = MaskFormat(
        tools, request_.format, {.tool_format = model_.tool_format(), .thinking = made_.thinking, .format_param = FormatField(endpoint_)});
    if (!format.ok()) return format.error();
    format_ = *std::move(format);
    made_.divides_late = made_.thinking == Start::kOpen && !request_.stream && !IsHeld();
    made_.format_param = tools.choice.mode != ToolChoice::Mode::kNone ? "tools" : FormatField(endpoint_);
    made_.calls = {.reads = tools.choice.mode != ToolChoice::Mode::kNone,
                   .format = model_.tool_format(),
                   .functions = std::move(tools.functions),
                   .parallel = request_.parallel_tool_calls,
                   .unmasked = tools.choice.mode != ToolChoice::Mode::kNone && format_.empty()};
    return std::nullopt;
  }

  // The answer is held to calls or a schema.
  bool IsHeld() const { return request_.tool_choice.Forces() || request_.format.kind != AnswerFormat::Kind::kText; }

  ServingRequest RequestOf(const std::vector<int32_t>& prompt) const {
    ServingRequest request = {.prompt = prompt};
    const int64_t left = model_.context() - std::ssize(prompt);
    request.max_new_tokens = std::min(request_.max_tokens.value_or(model_.MostTokensAfter(std::ssize(prompt))), left);
    // Its mask allows an end token only where it is over.
    if (!request_.ignore_eos || IsHeld()) request.end_tokens = model_.end_tokens();
    request.sampling = {.params = ParamsOf(request_.sampling, model_.defaults(), made_.seed),
                        .choice = made_.requests.size(),
                        .hash_logits = request_.hash_logits,
                        .hash_state = request_.hash_state.value_or("")};
    request.cache_prompt = request_.cache_prompt;
    if (scores_prompt()) request.sampling.score_top = request_.top_logprobs.value_or(0);
    if (request.max_new_tokens > 0) {
      request.sampling.logprobs = request_.top_logprobs;
      request.sampling.format = format_;
    }
    return request;
  }

  const ServedModel& model_;
  const Endpoint endpoint_;
  const ApiRequest& request_;
  const GenerationInput& input_;
  const std::string_view param_;
  std::vector<Prompt> prompts_;
  std::string format_;
  Generation made_;
};

std::string_view IdPrefix(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kCompletions:
      return "cmpl-";
    case Endpoint::kResponses:
      return "resp_";
    default:
      return "chatcmpl-";
  }
}

}  // namespace

int64_t Generation::prompt_tokens() const {
  const auto n = static_cast<size_t>(std::ssize(requests) / std::max<int64_t>(prompts, 1));
  int64_t tokens = 0;
  for (size_t i = 0; i < requests.size(); i += n) tokens += std::ssize(requests[i].prompt);
  return tokens;
}

ApiResult<Generation> PrepareGeneration(const ServedModel& model, Endpoint endpoint, const ApiRequest& request,
                                        const GenerationInput& input) {
  return Preparation(model, endpoint, request, input).Run();
}

AnswerHead HeadOf(const ServedModel& model, Endpoint endpoint, const ApiRequest& request, const Generation& generation, int64_t created,
                  const std::function<uint64_t()>& random) {
  const std::string* const name = model.FindName(request.model);
  const uint64_t first = random(), second = random();
  return {.id = absl::StrFormat("%s%016x%016x", IdPrefix(endpoint), first, second),
          .created = created,
          .model = name != nullptr ? *name : model.id(),
          .fingerprint = model.fingerprint(),
          .first_offsets = generation.first_offsets};
}

}  // namespace lime
