// A model for tests, whose bytes are tokens, and a source of its tokens.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/generation/answer_reader.h"
#include "coordinator/generation/generation.h"
#include "coordinator/generation/served_model.h"
#include "tests/coordinator/api/parse.h"
#include "tests/coordinator/byte_level_tokenizer.h"

namespace lime {

// Ids of the tokens that are no bytes; all of these are special.
inline constexpr int32_t kBos = 256, kEos = 257, kThinkId = 260, kThinkEndId = 261, kToolCallId = 262, kToolCallEndId = 263,
                         kMistralCallsId = 264, kPythonTagId = 265, kImStartId = 266, kImEndId = 267, kHarmonyEndId = 272,
                         kHarmonyCallId = 274;
inline constexpr int64_t kMadeVocab = 300;  // of the weights

inline std::shared_ptr<const Tokenizer> MadeTokenizer() {
  TokenizerJson json = ByteLevelJson();
  int32_t id = kThinkId;
  for (const char* text : {"<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<|im_start|>",
                           "<|im_end|>", "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>"}) {
    json["added_tokens"].push_back({{"id", id++}, {"content", text}, {"special", true}});
  }
  return FromJsonOrDie(json);
}

// "<|im_start|>ROLE\nCONTENT<|im_end|>\n" for each message, with calls as JSON. `marks`: texts that
// say which syntax it is and whether the model thinks.
inline std::string MadeTemplate(std::string_view marks, std::string_view opening = "") {
  return absl::StrCat(
      "{# ", std::string(marks),
      " #}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}{{ c.function | tojson }}"
      "{% endfor %}<|im_end|>\n{% endfor %}{% if tools %}{{ tools | length }} tools{% endif %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n",
      std::string(opening), "{% endif %}");
}

struct MadeModel {
  std::string source = MadeTemplate("");
  std::optional<ToolSyntax> syntax = std::nullopt;
  bool divides_thinking = true;
  SamplingDefaults defaults = {};
  int64_t context = 1000;
  int64_t short_positions = 0;

  std::unique_ptr<ServedModel> Make() const {
    auto model = ServedModel::Create({.listed = {.id = "tiny", .created = 1721986200, .digest = "00ff"},
                                      .aliases = {"small"},
                                      .tokenizer = MadeTokenizer(),
                                      .bos = kBos,
                                      .end_tokens = {kEos, kImEndId},
                                      .vocab_size = kMadeVocab,
                                      .short_positions = short_positions,
                                      .chat_template = {.source = source, .with_tools = "", .tokens = {}},
                                      .syntax = syntax,
                                      .divides_thinking = divides_thinking,
                                      .defaults = defaults});
    if (!model.ok()) ADD_FAILURE() << model.status();
    const std::vector<std::string> numerics = {"cpu-1"};
    (*model)->SetPlan(context, numerics);
    return *std::move(model);
  }
};

inline constexpr absl::CivilSecond kNow(2024, 7, 26, 9, 30, 0);

// 1, 2, 3, ... shifted, so that ids and seeds differ and can be read.
inline std::function<uint64_t()> CountedBits() {
  return [bits = uint64_t{0}]() mutable { return ++bits << 11; };
}

inline Generation Prepared(const ServedModel& model, Endpoint endpoint, const ApiRequest& request) {
  ApiResult<Generation> made = PrepareGeneration(model, endpoint, request, {.now = kNow, .random = CountedBits()});
  if (made.ok()) return *std::move(made);
  ADD_FAILURE() << made.error().message;
  return {};
}

inline ApiError RefusedBy(const ServedModel& model, Endpoint endpoint, const ApiRequest& request) {
  const ApiResult<Generation> made = PrepareGeneration(model, endpoint, request, {.now = kNow, .random = CountedBits()});
  if (!made.ok()) return made.error();
  ADD_FAILURE() << "accepted";
  return {};
}

// The request of a body by the model's own options.
inline ApiRequest RequestFor(const ServedModel& model, Endpoint endpoint, std::string_view body) {
  return Parsed(endpoint, body, model.parse_options());
}

// A chat of one message, with more fields of the body.
inline ApiRequest ChatFor(const ServedModel& model, std::string_view fields = "") {
  return RequestFor(model, Endpoint::kChat,
                    absl::StrCat(R"({"messages":[{"role":"user","content":"hi"}])", fields.empty() ? "" : ",", std::string(fields), "}"));
}

// ids of a text in which special tokens are written out.
inline std::vector<int32_t> IdsOf(const ServedModel& model, std::string_view text) {
  return *model.tokenizer().Encode(text, {.add_special = false});
}

// Gives one request's tokens to a reader of choices. Token number i comes at i milliseconds, the
// hash after it is i.
class MadeTokens {
 public:
  template <typename Reader>
  bool Give(Reader& reader, const std::vector<int32_t>& ids) {
    bool goes_on = true;
    for (const int32_t id : ids) goes_on = goes_on && reader(Next(id));
    return goes_on;
  }

  // `token` with scores: -1 for itself, then two others.
  ServedToken Next(int32_t token, bool known = false) {
    ++count_;
    score_ = {.logprob = -1, .log_sum = 2, .top = {{token, 1.0F}, {'z', 0.5F}}};
    return {.token = token,
            .known = known,
            .text = {},
            .logits_hash = count_,
            .score = &score_,
            .at = ServingClock::time_point() + std::chrono::milliseconds(100 + count_)};
  }

 private:
  uint64_t count_ = 0;
  cpu::RowScore score_;
};

}  // namespace lime
