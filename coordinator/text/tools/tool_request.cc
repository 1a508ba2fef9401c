#include "coordinator/text/tools/tool_request.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "coordinator/text/tools/json_call_reader.h"

namespace lime {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kName = "function.name";
constexpr const char* kParameters = "function.parameters";

bool IsName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxFunctionName && std::ranges::all_of(name, IsNameCharacter);
}

// Those of a function that says nothing of them have no properties; those without a type are an
// object.
Json ParametersOf(const Json& function) {
  const auto given = function.find("parameters");
  if (given == function.end() || given->is_null()) return {{"type", "object"}, {"properties", Json::object()}};
  Json parameters = *given;
  if (!parameters.contains("type")) parameters["type"] = "object";
  return parameters;
}

std::optional<ToolFault> CheckParameters(size_t tool, const Json& parameters, const SchemaCheck& check) {
  constexpr const char* kSchema = "invalid_json_schema";
  if (parameters.at("type") != "object")
    return ToolFault{tool, kParameters, kSchema, "the arguments of a function have the type 'object', so set this type"};
  if (!check) return std::nullopt;
  const absl::Status status = check(parameters);
  if (status.ok()) return std::nullopt;
  return ToolFault{tool, kParameters, kSchema, std::string(status.message())};
}

}  // namespace

const ToolFunction* FindFunction(const ToolFunctions& functions, std::string_view name) {
  const auto found = std::ranges::find(functions, name, &ToolFunction::name);
  return found == functions.end() ? nullptr : &*found;
}

std::optional<ToolFault> ReadFunctions(const Json& tools, const SchemaCheck& check, ToolFunctions& functions) {
  absl::flat_hash_set<std::string> names;
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& function = tools[i].at("function");
    ToolFunction& read = functions.emplace_back(ToolFunction{function.at("name").get<std::string>(), ParametersOf(function)});
    if (!IsName(read.name)) return ToolFault{i, kName, "invalid_value", "a name has 1 to 64 letters, digits and _ . -"};
    if (!names.insert(read.name).second)
      return ToolFault{i, kName, "invalid_value", "an earlier function has this name, so give each its own"};
    if (std::optional<ToolFault> fault = CheckParameters(i, read.parameters, check)) return fault;
  }
  return std::nullopt;
}

}  // namespace lime
