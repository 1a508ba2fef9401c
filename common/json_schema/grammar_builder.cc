#include "common/json_schema/grammar_builder.h"

#include "common/json_schema/dfa/string_dfa.h"
#include "common/json_schema/value_compiler.h"
#include "planner/base/check.h"
#include "planner/base/json_text.h"

namespace lime::json_schema {
namespace {

absl::StatusOr<Json> ParseSchema(std::string_view schema) {
  absl::StatusOr<Json> json = ParseOrderedJsonObject(schema, "the schema", kMaxSchemaBytes);
  if (!json.ok()) return Invalid("#: ", std::string(json.status().message()));
  return json;
}

}  // namespace

GrammarOptions GrammarOptions::For(const Vocabulary& vocabulary) {
  return {.writable = vocabulary.single_bytes(), .is_token = [&vocabulary](std::string_view text) { return vocabulary.HasText(text); }};
}

absl::StatusOr<Framing> GrammarBuilder::AddSchema(std::string_view schema) {
  LIME_ASSIGN_OR_RETURN(const Json root, ParseSchema(schema));
  SchemaReader reader(root, work());
  LIME_ASSIGN_OR_RETURN(const int value, ValueCompiler(reader, options_.writable, grammar_, scalar_ids_).Compile({&root}));
  return Framing{.kind = Framing::Kind::kValue, .id = value};
}

absl::StatusOr<Framing> GrammarBuilder::AddAnyObject() {
  return AddSchema(R"({"type": "object", "additionalProperties": true})");
}

Framing GrammarBuilder::AddTextUntil(std::string_view stop) {
  LIME_CHECK(!stop.empty()) << "text without an end";
  const absl::StatusOr<ByteDfaPtr> dfa = TextUntil(stop, options_.is_token && options_.is_token(stop), options_.writable);
  LIME_CHECK(dfa.ok()) << std::string(dfa.status().message());
  grammar_.memory += (*dfa)->memory();
  grammar_.scalars.push_back({.dfa = *dfa});
  return {.kind = Framing::Kind::kScalar, .id = static_cast<int>(grammar_.scalars.size()) - 1};
}

absl::StatusOr<std::vector<Parameter>> GrammarBuilder::AddParameters(std::string_view schema, std::string_view stop) {
  LIME_CHECK(!stop.empty()) << "a value without an end";
  LIME_ASSIGN_OR_RETURN(const Json root, ParseSchema(schema));
  SchemaReader reader(root, work());
  LIME_ASSIGN_OR_RETURN(const std::vector<Form> forms, reader.FormsOf({&root}));
  if (forms.size() != 1 || forms[0].kind != Kind::kObject) return Invalid("#: is not of one kind of object");
  ValueCompiler compiler(reader, options_.writable, grammar_, scalar_ids_);
  std::vector<Parameter> parameters;
  for (const auto& [name, schemas] : forms[0].object.members) {
    Parameter& parameter = parameters.emplace_back(Parameter{.name = name, .is_required = forms[0].object.Requires(name)});
    LIME_ASSIGN_OR_RETURN(parameter.value, compiler.RawValue(schemas, stop));
  }
  for (const std::string& name : forms[0].object.required) {
    if (forms[0].object.Find(name) == nullptr) return Invalid("#/required: \"", name, "\" is no property; add it to properties");
  }
  return parameters;
}

absl::StatusOr<GrammarPtr> GrammarBuilder::Build(const Framing& answer) {
  const int end = AddStep({.kind = AnswerStep::Kind::kEnd});
  grammar_.start = AddSteps(answer, end);
  grammar_.writable = options_.writable;
  for (const AnswerStep& step : grammar_.steps)
    grammar_.memory += static_cast<Bytes>(sizeof(AnswerStep) + step.text.size() + step.next.size() * sizeof(int));
  auto grammar = std::make_shared<Grammar>(std::move(grammar_));
  grammar_ = Grammar();
  scalar_ids_.clear();
  own_work_ = {};
  if (grammar->memory > kMaxGrammarBytes)
    return Invalid("#: the answer needs more than ", kMaxGrammarBytes / kMiB, " MiB; make it smaller");
  Complete(*grammar);
  if (grammar->LeastBytes() < kEndless) return GrammarPtr(std::move(grammar));
  return Invalid("#: no answer of at most ", kMaxDepth, " levels has an end");
}

int GrammarBuilder::AddStep(AnswerStep step) {
  grammar_.steps.push_back(std::move(step));
  return static_cast<int>(grammar_.steps.size()) - 1;
}

// Adds the steps from the last to the first, and returns the first.
int GrammarBuilder::AddSteps(const Framing& framing, int next) {
  switch (framing.kind) {
    case Framing::Kind::kText:
      return framing.text.empty() ? next : AddStep({.kind = AnswerStep::Kind::kText, .text = framing.text, .next = {next}});
    case Framing::Kind::kValue:
      return AddStep({.kind = AnswerStep::Kind::kValue, .id = framing.id, .next = {next}});
    case Framing::Kind::kScalar:
      return AddStep({.kind = AnswerStep::Kind::kScalar, .id = framing.id, .next = {next}});
    case Framing::Kind::kSequence:
      for (size_t i = framing.parts.size(); i-- > 0;) next = AddSteps(framing.parts[i], next);
      return next;
    case Framing::Kind::kOneOf: {
      AnswerStep split{.kind = AnswerStep::Kind::kSplit};
      for (const Framing& part : framing.parts) split.next.push_back(AddSteps(part, next));
      return AddStep(std::move(split));
    }
    case Framing::Kind::kRepeat:
      return AddRepeat(framing, next);
  }
  return next;
}

int GrammarBuilder::AddRepeat(const Framing& framing, int next) {
  const int after = AddStep({.kind = AnswerStep::Kind::kSplit, .next = {next}});
  const int part = AddSteps(framing.parts[0], after);
  if (framing.repeats) {
    const int again = AddSteps(Framing::Text(framing.text), part);
    grammar_.steps[static_cast<size_t>(after)].next.push_back(again);
  }
  return framing.is_optional ? AddStep({.kind = AnswerStep::Kind::kSplit, .next = {next, part}}) : part;
}

absl::StatusOr<GrammarPtr> CompileAnswer(const std::optional<std::string>& schema, const GrammarOptions& options) {
  GrammarBuilder builder(options);
  LIME_ASSIGN_OR_RETURN(const Framing value, schema ? builder.AddSchema(*schema) : builder.AddAnyObject());
  return builder.Build(value);
}

}  // namespace lime::json_schema
