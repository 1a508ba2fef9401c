#include "coordinator/generation/served_model.h"

#include <xxhash.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/json_schema/grammar_builder.h"
#include "coordinator/text/encode_prompt.h"
#include "coordinator/text/tools/call_text.h"
#include "coordinator/text/tools/harmony_header.h"
#include "coordinator/text/tools/thinking.h"
#include "coordinator/text/tools/tool_request.h"
#include "planner/base/json_text.h"

namespace lime {
namespace {

using json_schema::TokenText;
using json_schema::TokenUse;

// The text before </think>, <|end|> and </arg_value> is free in a mask, so they have to be text.
bool EndsFreeText(const ServedModel& model, std::string_view piece) {
  if (model.is_harmony() && piece == kHarmonyEnd) return true;
  const ParameterTags* const tags = ParameterTagsOf(model.tool_format().syntax);
  return IsThinkTag(piece) || (tags != nullptr && piece == tags->value_end);
}

json_schema::VocabularyPtr MakeVocabulary(const ServedModel& model) {
  const Tokenizer& tokenizer = model.tokenizer();
  std::vector<TokenText> tokens(static_cast<size_t>(model.vocab_size()));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string_view piece = tokenizer.IdToText(id);
    if (model.IsEnd(id)) {
      tokens[i].use = TokenUse::kEnd;
    } else if (piece.empty()) {
      tokens[i].use = TokenUse::kNever;
    } else if (tokenizer.IsSpecial(id)) {
      tokens[i] = {std::string(piece), EndsFreeText(model, piece) ? TokenUse::kText : TokenUse::kSpecial};
    } else {
      tokens[i].bytes = tokenizer.TokenBytes(id, /*first=*/false);
    }
  }
  return std::make_shared<const json_schema::Vocabulary>(tokens);
}

absl::StatusOr<std::optional<ChatTemplate>> ParseTemplate(const std::string& source) {
  if (source.empty()) return std::optional<ChatTemplate>();
  LIME_ASSIGN_OR_RETURN(ChatTemplate parsed, ChatTemplate::Parse(source));
  return std::optional(std::move(parsed));
}

// Whether calls of a function can be held to its parameters.
absl::Status CheckParameters(const Json& parameters, const ToolFormat& format, const json_schema::GrammarOptions& options) {
  const std::string schema = JsonText(parameters);
  LIME_RETURN_IF_ERROR(json_schema::CompileAnswer(schema, options).status());
  const ParameterTags* const tags = ParameterTagsOf(format.syntax);
  if (tags == nullptr) return absl::OkStatus();
  return json_schema::GrammarBuilder(options).AddParameters(schema, ParameterSuffix(*tags)).status();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServedModel>> ServedModel::Create(Options options) {
  for (const int32_t token : options.end_tokens) {
    if (token < 0 || token >= options.vocab_size)
      return Invalid("the end token ", token, " is not one of the model's ", options.vocab_size, " ids");
  }
  std::unique_ptr<ServedModel> model(new ServedModel(std::move(options)));
  LIME_RETURN_IF_ERROR(model->ReadTemplate());
  model->vocabulary_ = MakeVocabulary(*model);
  return model;
}

absl::Status ServedModel::ReadTemplate() {
  const ModelTemplate& files = options_.chat_template;
  LIME_ASSIGN_OR_RETURN(template_, ParseTemplate(files.source));
  LIME_ASSIGN_OR_RETURN(template_with_tools_, ParseTemplate(files.with_tools));
  tool_format_ = FindToolFormat(files.with_tools.empty() ? files.source : files.with_tools, options_.syntax);
  has_harmony_template_ = IsHarmonyTemplate(files.source) || IsHarmonyTemplate(files.with_tools);
  if (is_harmony()) AddHarmonyEnds();
  const bool knows_thinking =
      is_harmony() || HasThinkEnd(files.source) || HasThinkEnd(files.with_tools) || tokenizer().TokenToId(kThinkEndTag).has_value();
  thinks_ = options_.divides_thinking && knows_thinking;
  options_.listed.chat_template = files.source;
  options_.listed.has_tools = !is_plain();
  options_.listed.has_thinking = thinks_;
  return absl::OkStatus();
}

void ServedModel::AddHarmonyEnds() {
  for (const std::string_view mark : {kHarmonyCall, kHarmonyReturn}) {
    const std::optional<int32_t> id = tokenizer().TokenToId(mark);
    if (id && *id < options_.vocab_size && !IsEnd(*id)) options_.end_tokens.push_back(*id);
  }
}

int64_t ServedModel::MostTokensAfter(int64_t prompt) const {
  const int64_t positions = prompt < options_.short_positions ? std::min(options_.short_positions, context()) : context();
  return positions - prompt;
}

void ServedModel::SetPlan(int64_t context, std::span<const std::string> numerics_ids) {
  options_.listed.context = context;
  const std::set<std::string> numerics(numerics_ids.begin(), numerics_ids.end());
  const std::string text = absl::StrCat(options_.listed.digest, "\n", absl::StrJoin(numerics, "\n"));
  fingerprint_ = absl::StrFormat("fp_%016x", XXH3_64bits(text.data(), text.size()));
}

std::vector<ListedModel> ServedModel::listed() const {
  std::vector<ListedModel> all = {options_.listed};
  for (const std::string& alias : options_.aliases) {
    all.push_back(options_.listed);
    all.back().id = alias;
  }
  return all;
}

const std::string* ServedModel::FindName(std::string_view name) const {
  if (name.empty() || name == id()) return &options_.listed.id;
  const auto alias = std::ranges::find(options_.aliases, name);
  return alias == options_.aliases.end() ? nullptr : &*alias;
}

ParseOptions ServedModel::parse_options() const {
  ParseOptions options = {.models = {id()}, .vocab_size = vocab_size()};
  options.models.insert(options.models.end(), options_.aliases.begin(), options_.aliases.end());
  const auto grammar = json_schema::GrammarOptions::For(*vocabulary_);
  options.check_tools = [this, grammar](const Json& tools) {
    ToolFunctions functions;
    // All functions together: agents send dozens.
    json_schema::SchemaWork work{.patterns_left = 4 * json_schema::kMaxPatternWork, .parts_left = 10 * json_schema::kMaxParts};
    json_schema::GrammarOptions together = grammar;
    together.work = &work;
    return ReadFunctions(
        tools, [&](const Json& parameters) { return CheckParameters(parameters, tool_format_, together); }, functions);
  };
  options.check_schema = [grammar](std::string_view schema) { return json_schema::CompileAnswer(std::string(schema), grammar).status(); };
  return options;
}

bool ServedModel::IsEnd(int32_t token) const {
  return std::ranges::find(options_.end_tokens, token) != options_.end_tokens.end();
}

absl::StatusOr<std::string> ServedModel::Render(Json variables, absl::CivilSecond now) const {
  options_.chat_template.Complete(variables);
  const bool with_tools = template_with_tools_ && &options_.chat_template.For(variables) == &options_.chat_template.with_tools;
  return (with_tools ? template_with_tools_ : template_)->Render(variables, now);
}

absl::StatusOr<std::vector<int32_t>> ServedModel::Encode(std::string_view text, bool add_special) const {
  if (add_special) return EncodePrompt(tokenizer(), text, options_.bos, vocab_size());
  LIME_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer().Encode(text, {.add_special = false}));
  LIME_RETURN_IF_ERROR(CheckIdsOfModel(ids, vocab_size()));
  return ids;
}

}  // namespace lime
