#include "coordinator/api/requests/generation_fields.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "planner/base/json_text.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr std::string_view kLatest = ":latest";
constexpr NumberRange kTemperature = {.low = 0, .high = 2};
constexpr NumberRange kTopP = {.low = 0, .high = 1, .without_low = true};
constexpr NumberRange kMinP = {.low = 0, .high = 1};
constexpr NumberRange kPenalty = {.low = -2, .high = 2};
constexpr NumberRange kBias = {.low = -100, .high = 100};
// Above 0, as the manual says; beyond these bounds floats make no sense of it.
constexpr NumberRange kRepetitionPenalty = {.low = 1e-6, .high = 1e6};

enum class Effort { kNone, kMinimal, kLow, kMedium, kHigh, kXhigh, kMax };
constexpr Names<Effort, 7> kEfforts = {{{Effort::kNone, "none"},
                                        {Effort::kMinimal, "minimal"},
                                        {Effort::kLow, "low"},
                                        {Effort::kMedium, "medium"},
                                        {Effort::kHigh, "high"},
                                        {Effort::kXhigh, "xhigh"},
                                        {Effort::kMax, "max"}}};

constexpr Names<AnswerFormat::Kind, 3> kFormats = {
    {{AnswerFormat::Kind::kText, "text"}, {AnswerFormat::Kind::kObject, "json_object"}, {AnswerFormat::Kind::kSchema, "json_schema"}}};

bool IsServed(std::string_view model, const ParseOptions& options) {
  return options.models.empty() || std::ranges::find(options.models, model) != options.models.end();
}

// An id in its only spelling, below 2^31. -1: it is none.
int64_t IdOf(const std::string& key) {
  int32_t id = 0;
  return absl::SimpleAtoi(key, &id) && id >= 0 && absl::StrCat(id) == key ? id : -1;
}

void ReadLogitBias(RequestFields& fields, int64_t vocab_size, RequestedSampling& sampling) {
  constexpr std::string_view kKey = "logit_bias";
  const Json* biases = fields.Object(kKey);
  if (biases == nullptr) return;
  const auto wrong = [&](std::string_view what) { fields.errors().Add(InvalidValue(fields.PathOf(kKey), what)); };
  if (biases->size() > kMaxLogitBiases) return wrong(absl::StrCat("expected at most ", kMaxLogitBiases, " ids, but got ", biases->size()));
  for (const auto& [key, bias] : biases->items()) {
    const int64_t id = IdOf(key);
    if (id < 0) return wrong(absl::StrCat("expected token ids as keys, but got ", QuotedInput(key)));
    if (vocab_size > 0 && id >= vocab_size)
      return wrong(absl::StrCat("the id ", id, " is not in the vocabulary, whose last id is ", vocab_size - 1));
    if (!bias.is_number()) return static_cast<void>(fields.Wrong(kKey, "numbers", bias));
    if (!kBias.Has(bias.get<double>())) return wrong(absl::StrCat("expected numbers ", kBias.Words(), ", but got ", bias.dump()));
    sampling.logit_bias.emplace_back(static_cast<int32_t>(id), bias.get<double>());
  }
}

}  // namespace

void ReadModel(RequestFields& fields, const ParseOptions& options, ApiRequest& request, std::string_view key) {
  request.model = fields.String(key).value_or("");
  if (request.model.empty() || IsServed(request.model, options)) return;
  std::string_view name = request.model;
  if (absl::EndsWith(request.model, Text(kLatest))) name.remove_suffix(kLatest.size());
  if (!IsServed(name, options)) return fields.errors().Add(ModelNotFound(request.model));
  request.model = std::string(name);
}

void ReadBasicSampling(RequestFields& fields, RequestedSampling& sampling) {
  sampling.temperature = fields.Number("temperature", kTemperature);
  sampling.top_p = fields.Number("top_p", kTopP);
  sampling.min_p = fields.Number("min_p", kMinP);
  if (const std::optional<int64_t> top_k = fields.Int("top_k", -1, std::numeric_limits<int32_t>::max())) {
    sampling.top_k = static_cast<int32_t>(std::max<int64_t>(*top_k, 0));
  }
}

void ReadSampling(RequestFields& fields, const ParseOptions& options, RequestedSampling& sampling) {
  ReadBasicSampling(fields, sampling);
  sampling.repetition_penalty = fields.Number("repetition_penalty", kRepetitionPenalty);
  sampling.frequency_penalty = fields.Number("frequency_penalty", kPenalty).value_or(0);
  sampling.presence_penalty = fields.Number("presence_penalty", kPenalty).value_or(0);
  ReadLogitBias(fields, options.vocab_size, sampling);
  sampling.seed = fields.Unsigned("seed");
}

std::vector<std::string> ReadStop(RequestFields& fields, size_t max_stops) {
  constexpr std::string_view kKey = "stop";
  const Json* value = fields.Find(kKey);
  if (value == nullptr) return {};
  if (!value->is_string() && !value->is_array())
    return fields.Wrong(kKey, "a string or an array of strings", *value), std::vector<std::string>();
  const Json one = value->is_string() ? Json::array({*value}) : Json();
  const Json* all = value->is_string() ? &one : fields.Array(kKey, max_stops);
  std::vector<std::string> stops;
  for (size_t i = 0; all != nullptr && i < all->size(); ++i) {
    const std::string path = value->is_string() ? fields.PathOf(kKey) : fields.PathOf(kKey, i);
    const Json& stop = (*all)[i];
    if (!stop.is_string()) return fields.errors().Add(InvalidType(path, "a string", KindOf(stop))), std::vector<std::string>();
    stops.push_back(stop.get<std::string>());
    if (stops.back().empty()) fields.errors().Add(InvalidValue(path, "an empty string would end every answer at once; leave it out"));
    if (stops.back().size() > kMaxStopBytes) {
      fields.errors().Add(InvalidValue(path, absl::StrCat("expected at most ", kMaxStopBytes, " bytes, but got ", stops.back().size())));
    }
  }
  return stops;
}

void ReadN(RequestFields& fields, ApiRequest& request) {
  request.n = static_cast<int32_t>(fields.Int("n", 1, kMaxChoices).value_or(1));
}

void ReadStream(RequestFields& fields, ApiRequest& request) {
  constexpr std::string_view kOptions = "stream_options";
  request.stream = fields.BoolOr("stream", false);
  const Json* options = fields.Object(kOptions);
  if (options == nullptr) return;
  RequestFields inner(*options, fields.PathOf(kOptions), fields.errors());
  request.include_usage = inner.BoolOr("include_usage", false);
  if (!request.stream) fields.errors().Add(InvalidValue(kOptions, "it is allowed only where 'stream' is true"));
}

void ReadOurFields(RequestFields& fields, ApiRequest& request) {
  request.ignore_eos = fields.BoolOr("ignore_eos", false);
  request.hash_logits = fields.BoolOr("hash_logits", false);
  request.return_token_ids = fields.BoolOr("return_token_ids", false);
  request.cache_prompt = fields.BoolOr("cache_prompt", true);
}

void ReadTemplateFields(RequestFields& fields, ChatPrompt& prompt) {
  if (const Json* kwargs = fields.Object("chat_template_kwargs")) prompt.template_kwargs = *kwargs;
  const std::optional<bool> add = fields.Bool("add_generation_prompt");
  prompt.continue_final_message = fields.BoolOr("continue_final_message", false);
  prompt.add_generation_prompt = add.value_or(!prompt.continue_final_message);
  if (prompt.continue_final_message && prompt.add_generation_prompt) {
    fields.errors().Add(InvalidValue("continue_final_message", "the last message stays open only where 'add_generation_prompt' is false"));
  }
}

void ReadReasoningEffort(RequestFields& fields, std::string_view key, ChatPrompt& prompt) {
  if (const std::optional<Effort> effort = fields.OneOf(key, kEfforts)) prompt.reasoning_effort = std::string(kEfforts.Of(*effort));
}

void SetSchema(const Json& schema, const std::string& param, const ParseOptions& options, FirstError& errors, AnswerFormat& format) {
  if (!schema.is_object()) return errors.Add(InvalidType(param, "a JSON schema", KindOf(schema)));
  format = {.kind = AnswerFormat::Kind::kSchema, .schema = JsonText(schema)};
  if (format.schema.size() > kMaxSchemaBytes) {
    return errors.Add(InvalidJsonSchema(param, absl::StrCat("it has ", format.schema.size(), " bytes, more than ", kMaxSchemaBytes)));
  }
  if (!options.check_schema || !errors.ok()) return;
  const absl::Status status = options.check_schema(format.schema);
  if (!status.ok()) errors.Add(InvalidJsonSchema(param, std::string(status.message())));
}

void ReadFormat(RequestFields& format_fields, std::string_view below, const ParseOptions& options, AnswerFormat& format) {
  format_fields.Needed("type");
  const std::optional<AnswerFormat::Kind> kind = format_fields.OneOf("type", kFormats);
  if (!kind) return;
  format.kind = *kind;
  if (*kind != AnswerFormat::Kind::kSchema) return;
  const Json* holder = below.empty() ? nullptr : format_fields.NeededObject(below);
  if (!below.empty() && holder == nullptr) return;
  std::optional<RequestFields> inner;
  if (holder != nullptr) inner.emplace(*holder, format_fields.PathOf(below), format_fields.errors());
  RequestFields& fields = inner ? *inner : format_fields;
  fields.String("name");
  fields.Bool("strict");
  if (const Json* schema = fields.Needed("schema")) SetSchema(*schema, fields.PathOf("schema"), options, fields.errors(), format);
}

}  // namespace lime
