// POST /v1/completions.
#include "absl/strings/escaping.h"
#include "coordinator/api/requests/endpoint_parsers.h"
#include "coordinator/api/requests/generation_fields.h"

namespace lime {
namespace {

constexpr std::string_view kPrompt = "prompt";
constexpr int64_t kDefaultMaxTokens = 16;
constexpr int32_t kMaxLogprobs = 5;

// A string or a list of ids.
TextPrompt ReadOne(RequestFields& fields, const Json& prompt, const std::string& path, const ParseOptions& options) {
  if (prompt.is_string()) return prompt.get<std::string>();
  if (!prompt.is_array()) {
    fields.errors().Add(InvalidType(path, "a string or an array of token ids", KindOf(prompt)));
  } else if (prompt.empty()) {
    fields.errors().Add(InvalidValue(path, "expected at least one token id, but got an empty array"));
  } else {
    return ReadIds(prompt, path, options.vocab_size, fields.errors());
  }
  return {};
}

TextPrompts ReadPrompts(RequestFields& fields, const ParseOptions& options) {
  TextPrompts prompts;
  const Json* prompt = fields.Needed(kPrompt);
  if (prompt == nullptr) return prompts;
  const bool is_several = prompt->is_array() && !prompt->empty() && (prompt->front().is_string() || prompt->front().is_array());
  if (!is_several) return {ReadOne(fields, *prompt, std::string(kPrompt), options)};
  prompts.reserve(std::min<size_t>(prompt->size(), kMaxAllChoices));
  for (size_t i = 0; i < prompt->size() && i <= kMaxAllChoices && fields.ok(); ++i) {
    prompts.push_back(ReadOne(fields, (*prompt)[i], fields.PathOf(kPrompt, i), options));
  }
  return prompts;
}

void ReadMaxTokensOrDefault(RequestFields& fields, ApiRequest& request) {
  request.max_tokens = fields.Int("max_tokens", 0, std::numeric_limits<int64_t>::max()).value_or(kDefaultMaxTokens);
  if (request.max_tokens == 0 && !request.echo) {
    fields.errors().Add(InvalidValue("max_tokens", "expected at least 1, since without 'echo' an answer of no tokens is empty"));
  }
}

// Fields of other servers that would change the answer.
void RefuseUnsupported(RequestFields& fields, const ApiRequest& request) {
  if (!fields.String("suffix").value_or("").empty()) {
    fields.errors().Add(UnsupportedParameter("suffix", "the model continues a prompt and cannot fill a gap, so leave it out"));
  }
  const std::optional<int64_t> best_of = fields.Int("best_of", 1, std::numeric_limits<int64_t>::max());
  if (best_of && *best_of > request.n) {
    fields.errors().Add(UnsupportedParameter("best_of", "every answer is returned, so leave it out or make it as large as 'n'"));
  } else if (best_of && *best_of < request.n) {
    fields.errors().Add(InvalidValue("best_of", absl::StrCat("it is below 'n', which is ", request.n)));
  }
}

void ReadHashState(RequestFields& fields, ApiRequest& request) {
  constexpr std::string_view kLime = "lime", kState = "hash_state";
  const Json* lime = fields.Object(kLime);
  if (lime == nullptr) return;
  RequestFields inner(*lime, fields.PathOf(kLime), fields.errors());
  const std::optional<std::string> state = inner.String(kState);
  if (!state) return;
  request.hash_state.emplace();
  if (!absl::Base64Unescape(*state, &*request.hash_state))
    return fields.errors().Add(InvalidValue(inner.PathOf(kState), "expected base64, as in the 'lime' of an answer"));
  if (request.choices() != 1 || request.max_tokens != 0 || !request.hash_logits)
    fields.errors().Add(InvalidValue(inner.PathOf(kState), "it needs one prompt, 'max_tokens' 0, 'n' 1 and 'hash_logits' true"));
}

}  // namespace

void ParseCompletions(RequestFields& fields, const ParseOptions& options, ApiRequest& request) {
  ReadModel(fields, options, request);
  request.prompt = ReadPrompts(fields, options);
  request.echo = fields.BoolOr("echo", false);
  ReadMaxTokensOrDefault(fields, request);
  ReadSampling(fields, options, request.sampling);
  ReadN(fields, request);
  RefuseUnsupported(fields, request);
  request.stop = ReadStop(fields, kMaxStops);
  if (const std::optional<int64_t> top = fields.Int("logprobs", 0, kMaxLogprobs)) request.top_logprobs = static_cast<int32_t>(*top);
  ReadStream(fields, request);
  ReadOurFields(fields, request);
  ReadHashState(fields, request);
  if (fields.ok() && request.choices() > kMaxAllChoices) {
    fields.errors().Add(
        InvalidValue(kPrompt, absl::StrCat("expected at most ", kMaxAllChoices, " answers in all, but the prompts ask for more")));
  }
}

}  // namespace lime
