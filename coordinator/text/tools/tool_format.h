// The syntax in which a model writes calls of functions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "planner/base/status.h"

namespace lime {

enum class ToolSyntax {
  kHermes,      // <tool_call>{"name": N, "arguments": {...}}</tool_call>
  kQwen3Coder,  // <tool_call><function=N><parameter=K>value</parameter></function></tool_call>
  kLlama3,      // {"name": N, "parameters": {...}} as the whole answer
  kMistral,     // [TOOL_CALLS][{"name": N, "arguments": {...}}] or [TOOL_CALLS]N[ARGS]{...}
  kGlm,         // <tool_call>N <arg_key>K</arg_key> <arg_value>value</arg_value> </tool_call>
  kMiniMax,     // <minimax:tool_call><invoke name="N"><parameter name="K">value</parameter></invoke>...
  kHarmony,     // <|channel|>commentary to=functions.N <|constrain|>json<|message|>{...}<|call|>
};

// The name that --tool-format has for it.
std::string_view ToolSyntaxName(ToolSyntax syntax);

// The value of --tool-format: nothing for "auto". Errors name the value and all that are possible.
absl::StatusOr<std::optional<ToolSyntax>> ParseToolFormat(std::string_view value);

struct ToolFormat {
  ToolSyntax syntax = ToolSyntax::kHermes;
  // The template shows no functions in a syntax known here. StateTools tells the model of them.
  bool stated = false;
  // Of kMistral: the template writes [TOOL_CALLS]N[ARGS]{...}.
  bool args_marker = false;

  bool operator==(const ToolFormat&) const = default;
};

// The format of a chat template, by its text; `wanted` replaces the syntax. An empty `source` is
// that of a model without a template.
// REQUIRES: `source` is the template for requests with tools, if the model has two.
ToolFormat FindToolFormat(std::string_view source, std::optional<ToolSyntax> wanted = std::nullopt);

// Whether a special token with this text belongs to calls of the syntax.
bool IsCallMarkup(ToolSyntax syntax, std::string_view text);

// A new id for a call, of the form that the syntax's templates accept: "call_" and 24 letters and
// digits, or for kMistral nine. `random` returns 64 random bits each time.
std::string NewCallId(ToolSyntax syntax, const std::function<uint64_t()>& random);

}  // namespace lime
