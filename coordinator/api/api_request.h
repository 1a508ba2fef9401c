// A request of a client, free of the spelling in which it came: OpenAI's three, Ollama's two, ours.
//
// Pure data. `requests/` makes it, `answers/` looks at what the answer depends on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "coordinator/text/tools/tool_request.h"
#include "nlohmann/json.hpp"

namespace lime {

// Keeps the order of keys, which templates show and schemas mean.
using Json = nlohmann::ordered_json;

struct ChatMessage {
  enum class Role {
    kSystem,     // also the role "developer"
    kUser,       // what is to be answered
    kAssistant,  // an earlier answer
    kTool,       // what a tool returned
  };
  struct Call {
    std::string id, name;
    std::string arguments;  // as they came: JSON, or not

    friend bool operator==(const Call&, const Call&) = default;
  };

  Role role = Role::kUser;
  std::optional<std::string> content;  // nullopt: only beside calls
  std::string reasoning;               // of an earlier answer
  std::string name;                    // of the speaker, or of the tool
  std::string tool_call_id;            // kTool: the call that it answers
  std::vector<Call> calls;             // kAssistant

  friend bool operator==(const ChatMessage&, const ChatMessage&) = default;
};

// For the model's template.
struct ChatPrompt {
  std::vector<ChatMessage> messages;
  Json tools = Json::array();  // {"type": "function", "function": {name, description, parameters}} each
  Json template_kwargs = Json::object();
  std::string reasoning_effort;  // empty: the template's own
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the last message stays open
};

// Text for the tokenizer, or ids.
using TextPrompt = std::variant<std::string, std::vector<int32_t>>;
using TextPrompts = std::vector<TextPrompt>;

// Values that are absent come from the model's generation_config.json.
struct RequestedSampling {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k;  // 0: off
  double frequency_penalty = 0, presence_penalty = 0;
  std::vector<std::pair<int32_t, double>> logit_bias;  // -100 forbids the id
  std::optional<uint64_t> seed;                        // nullopt: the server draws one
};

struct AnswerFormat {
  enum class Kind {
    kText,    // anything
    kObject,  // a JSON object
    kSchema,  // JSON that is valid by `schema`
  };
  Kind kind = Kind::kText;
  std::string schema;  // JSON in one line, keys in the client's order

  friend bool operator==(const AnswerFormat&, const AnswerFormat&) = default;
};

struct ApiRequest {
  std::string model;  // empty: the server's only one
  std::variant<ChatPrompt, TextPrompts> prompt;
  // A chat prompt comes from the template with its special tokens, and gets none.
  bool add_special = true;  // of a text prompt: BOS and the like are added

  RequestedSampling sampling;
  std::optional<int64_t> max_tokens;  // nullopt: what the context has left; 0: score the prompt
  std::vector<std::string> stop;
  int32_t n = 1;  // answers to each prompt
  ToolChoice tool_choice;
  bool parallel_tool_calls = true;
  AnswerFormat format;
  std::optional<int32_t> top_logprobs;  // nullopt: no log-probabilities
  bool echo = false;                    // the prompt stands before the answer

  bool stream = false;
  bool include_usage = false;  // a last chunk of the stream with the counts

  bool ignore_eos = false;
  bool hash_logits = false;
  // Of a scored prompt: the bytes of LogitsHash::State with which its hash begins, not checked; empty:
  // a new hash. The answer has the state behind it. nullopt: nobody asks for it.
  std::optional<std::string> hash_state;
  bool return_token_ids = false;
  bool cache_prompt = true;

  bool with_pieces = false;  // tokenize: the text of each token
  bool only_loads = false;   // Ollama's empty prompt: asks that the model is loaded

  std::vector<std::string> skipped_tools;  // types of tools that are not supported, for the log
  Json repeated = Json::object();          // Responses: fields that the answer repeats

  const ChatPrompt* chat() const { return std::get_if<ChatPrompt>(&prompt); }
  // Choices of the answer: prompts first, then `n`.
  int64_t choices() const { return chat() != nullptr ? n : n * static_cast<int64_t>(std::get<TextPrompts>(prompt).size()); }
};

}  // namespace lime
