// The values that a schema allows, as a list of forms: each is one JSON type with what is said
// about it. A value of any of the forms is valid.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/json_schema/dfa/char_dfa.h"
#include "common/json_schema/dfa/number_dfa.h"
#include "nlohmann/json.hpp"

namespace lime::json_schema {

using Json = nlohmann::ordered_json;

// Schemas that hold together, each once, in the order in which they are said. None: any value.
using Schemas = std::vector<const Json*>;

Schemas Union(const Schemas& a, const Schemas& b);

enum class Kind : uint8_t { kNull, kBoolean, kNumber, kString, kArray, kObject };

struct StringForm {
  int64_t min = 0, max = INT64_MAX;  // characters
  // Texts of `pattern` and names of `format`, each with the place of the keyword.
  struct Rule {
    std::string text;
    bool is_format = false;
    std::string path;
    std::shared_ptr<const CharDfa> dfa;
  };
  std::vector<Rule> rules;
};

struct ArrayForm {
  std::vector<Schemas> prefix;
  Schemas items;  // behind the prefix
  bool has_items = true;
  int64_t min = 0, max = INT64_MAX;
};

struct ObjectForm {
  // What is said about properties without a name.
  enum class Others : uint8_t {
    kFree,    // nothing is said about objects at all: anything
    kUnsaid,  // something is said about objects, but not this: none
    kNone,    // additionalProperties is false
    kSchema,  // `others`
  };

  std::vector<std::pair<std::string, Schemas>> members;  // in their order
  std::vector<std::string> required;
  Others others_kind = Others::kFree;
  Schemas others;

  const Schemas* Find(const std::string& name) const;
  bool Requires(const std::string& name) const;
};

struct Form {
  Kind kind = Kind::kNull;
  // The schema has no `type`, and its keywords are about other types. It allows the value, but what
  // is written should be of the other types.
  bool is_hidden = false;
  std::optional<Json> literal;  // of kBoolean, kNumber, kString
  StringForm string;
  NumberRange number;
  ArrayForm array;
  ObjectForm object;
};

// What `a` and `b` both allow; none if there is no such value.
absl::StatusOr<std::optional<Form>> Intersect(const Form& a, const Form& b);

// Whether a string or number has the form.
bool Matches(const Json& literal, const Form& form);

// The strings that have the form. An error begins with the place of the rule.
absl::StatusOr<CharDfa> StringDfa(const StringForm& form);

}  // namespace lime::json_schema
