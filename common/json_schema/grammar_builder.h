// Compiles schemas, and puts text around their values.
//
//   GrammarBuilder builder;
//   LIME_ASSIGN_OR_RETURN(const Framing weather, builder.AddSchema(parameters));
//   const Framing call = Framing::Sequence(
//       {Framing::Text("<tool_call>{\"name\": \"weather\", \"arguments\": "), weather,
//        Framing::Text("}</tool_call>")});
//   LIME_ASSIGN_OR_RETURN(const GrammarPtr grammar, builder.Build(Framing::OneOf({call, other})));
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/json_schema/framing.h"
#include "common/json_schema/grammar.h"
#include "common/json_schema/schema_work.h"
#include "common/json_schema/vocabulary.h"
#include "planner/base/bytes.h"

namespace lime::json_schema {

inline constexpr Bytes kMaxSchemaBytes = 64 * kKiB;

// A property of an object whose values are written outside of JSON.
struct Parameter {
  std::string name;
  bool is_required = false;
  // Strings as they are, anything else as JSON; then the text that ends a value. A string that has
  // a pattern, a format or a bounded length does not have the first character of that text.
  Framing value;
};

struct GrammarOptions {
  // Bytes that are tokens by themselves (Vocabulary::single_bytes). Answers can be ended in time by
  // these bytes alone.
  ByteSet writable = ByteSet().set();
  // Whether a text is a token. What ends a text, such as "</think>", then counts as one byte.
  std::function<bool(std::string_view text)> is_token = nullptr;
  // Shared with other grammars. Null: the schemas of each grammar have their own.
  SchemaWork* work = nullptr;

  // REQUIRES: `vocabulary` outlives the result
  static GrammarOptions For(const Vocabulary& vocabulary);
};

// Owner: one thread. Errors are InvalidArgument, and begin with the place in the schema, as in
// "#/properties/a/format: ...".
class GrammarBuilder {
 public:
  explicit GrammarBuilder(const GrammarOptions& options = {}) : options_(options) {}

  // A value of the schema.
  absl::StatusOr<Framing> AddSchema(std::string_view schema);
  // Any JSON object.
  absl::StatusOr<Framing> AddAnyObject();
  // The properties of the schema, which has to be of one kind of object. `stop`: what ends a value.
  absl::StatusOr<std::vector<Parameter>> AddParameters(std::string_view schema, std::string_view stop);
  // Any text that ends with the first `stop`.
  Framing AddTextUntil(std::string_view stop);

  // Fails if there is no answer of finite length in writable bytes. The builder is empty
  // afterwards.
  absl::StatusOr<GrammarPtr> Build(const Framing& answer);

 private:
  int AddStep(AnswerStep step);
  int AddSteps(const Framing& framing, int next);
  int AddRepeat(const Framing& framing, int next);

  SchemaWork& work() { return options_.work != nullptr ? *options_.work : own_work_; }

  const GrammarOptions options_;
  SchemaWork own_work_;
  Grammar grammar_;
  std::map<std::string, int> scalar_ids_;
};

// The grammar of a whole answer: of a schema, or any object without one.
absl::StatusOr<GrammarPtr> CompileAnswer(const std::optional<std::string>& schema, const GrammarOptions& options = {});

}  // namespace lime::json_schema
