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

// Around the value of a parameter in kQwen3Coder.
std::string ParameterPrefix(std::string_view key);
inline constexpr std::string_view kParameterSuffix = "\n</parameter>\n";
// Whether that syntax can name the key: 1 to kMaxParameterKey bytes without line feeds, < and >.
inline constexpr size_t kMaxParameterKey = 256;
bool CanBeParameter(std::string_view key);

// The calls of an assistant's message: a list of {"function": {"name", "arguments"}}, in which the
// arguments are an object, or text. Calls without a name are left out.
std::string CallsAsText(const ToolFormat& format, const nlohmann::ordered_json& tool_calls);

}  // namespace lime
