// The functions of a request, and which of them the model has to call.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"
#include "planner/base/status.h"

namespace lime {

struct ToolFunction {
  std::string name;
  nlohmann::ordered_json parameters;  // a schema of objects
};

// In the order of the request; names are unique.
using ToolFunctions = std::vector<ToolFunction>;

// Null if there is none.
const ToolFunction* FindFunction(const ToolFunctions& functions, std::string_view name);

struct ToolChoice {
  enum class Mode {
    kNone,      // no calls
    kAuto,      // the model decides
    kRequired,  // at least one call
    kFunction,  // a call of `function`
  };
  Mode mode = Mode::kNone;
  std::string function;

  bool Forces() const { return mode == Mode::kRequired || mode == Mode::kFunction; }

  friend bool operator==(const ToolChoice&, const ToolChoice&) = default;
};

struct ToolRequest {
  ToolFunctions functions;
  ToolChoice choice;
  bool parallel = true;  // false: at most one call
};

// What is wrong with a tool.
struct ToolFault {
  size_t tool = 0;                     // its index in the list
  std::string field;                   // below the tool, as in function.name; empty: the tool itself
  std::string code = "invalid_value";  // or invalid_json_schema
  std::string message;                 // the end of a sentence, without its full stop
};

// Whether calls can be held to the parameters of a function. An error's message is the end of a
// sentence.
using SchemaCheck = std::function<absl::Status(const nlohmann::ordered_json& parameters)>;

// The functions of `tools` as chat completions have them. Returns the first fault: a name that is
// none or that another function has, or a schema that is none of objects or that `check` refuses.
// `check` may be empty.
// REQUIRES: each tool is an object {"function": {"name": string, "parameters": object or absent}}
std::optional<ToolFault> ReadFunctions(const nlohmann::ordered_json& tools, const SchemaCheck& check, ToolFunctions& functions);

}  // namespace lime
