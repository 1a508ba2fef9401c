// Fields of a body that several endpoints share.
#pragma once

#include "coordinator/api/requests/parse_request.h"
#include "coordinator/api/requests/request_fields.h"

namespace lime {

// Of chat/completions and of responses.
inline constexpr int32_t kMaxTopLogprobs = 20;

// The model, which has to be served if it is given. Ollama's names may end with ":latest".
void ReadModel(RequestFields& fields, const ParseOptions& options, ApiRequest& request, std::string_view key = "model");

// temperature to logit_bias and seed.
void ReadSampling(RequestFields& fields, const ParseOptions& options, RequestedSampling& sampling);
// temperature, top_p, top_k and min_p alone, which Ollama's options share.
void ReadBasicSampling(RequestFields& fields, RequestedSampling& sampling);
std::vector<std::string> ReadStop(RequestFields& fields, size_t max_stops);
void ReadN(RequestFields& fields, ApiRequest& request);

// stream, stream_options.
void ReadStream(RequestFields& fields, ApiRequest& request);
// ignore_eos, hash_logits, return_token_ids, cache_prompt.
void ReadOurFields(RequestFields& fields, ApiRequest& request);
// chat_template_kwargs, add_generation_prompt, continue_final_message.
void ReadTemplateFields(RequestFields& fields, ChatPrompt& prompt);

// How much the model thinks: the field `key`.
void ReadReasoningEffort(RequestFields& fields, std::string_view key, ChatPrompt& prompt);

// Sets `schema` as the form of the answer. `param`: where it stands.
void SetSchema(const Json& schema, const std::string& param, const ParseOptions& options, FirstError& errors, AnswerFormat& format);
// {"type": "text" | "json_object" | "json_schema"}. The schema is in the object `below`, or beside the
// type if `below` is empty.
void ReadFormat(RequestFields& format_fields, std::string_view below, const ParseOptions& options, AnswerFormat& format);

}  // namespace lime
