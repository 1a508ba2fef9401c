// Calls as text: how the syntaxes write them.
#pragma once

#include <string>
#include <string_view>

#include "coordinator/text/tools/tool_format.h"
#include "nlohmann/json_fwd.hpp"

namespace lime {

// opening call separator call ... closing
struct CallsText {
  std::string_view opening, separator, closing;
};
CallsText CallsTextOf(const ToolFormat& format);

// Around the arguments of a call.
std::string CallPrefix(const ToolFormat& format, std::string_view name);
std::string_view CallSuffix(const ToolFormat& format);

// The tags of a syntax that writes arguments one by one, as plain text:
//
//   outer name N name_end (key K key_end value V value_end)... function_end outer_end
struct ParameterTags {
  std::string_view outer, name, name_end;  // an empty name_end: a blank or the next tag ends the name
  std::string_view key, key_end, value, value_end;
  std::string_view function_end, outer_end;
  bool has_lines = false;  // one line feed on each side of a value belongs to the tags
};

// Null: the syntax writes arguments as JSON.
const ParameterTags* ParameterTagsOf(ToolSyntax syntax);

// Around the value of a parameter in a syntax with such tags.
std::string ParameterPrefix(const ParameterTags& tags, std::string_view key);
std::string ParameterSuffix(const ParameterTags& tags);
// Whether the tags can name the key: 1 to kMaxParameterKey bytes without line feeds, <, > and the
// first byte of key_end.
inline constexpr size_t kMaxParameterKey = 256;
bool CanBeParameter(const ParameterTags& tags, std::string_view key);

// The calls of an assistant's message: a list of {"function": {"name", "arguments"}}, in which the
// arguments are an object, or text. Calls without a name are left out.
std::string CallsAsText(const ToolFormat& format, const nlohmann::ordered_json& tool_calls);

}  // namespace lime
