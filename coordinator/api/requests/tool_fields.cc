#include "coordinator/api/requests/tool_fields.h"

#include <algorithm>

#include "absl/strings/strip.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

using Mode = ToolChoice::Mode;

constexpr std::string_view kTools = "tools", kChoice = "tool_choice";
constexpr Names<Mode, 3> kModes = {{{Mode::kNone, "none"}, {Mode::kAuto, "auto"}, {Mode::kRequired, "required"}}};

// The spelling of an endpoint.
struct Spelling {
  bool is_flat = false;           // no "function" around a tool's name and schema
  std::vector<size_t> positions;  // of the tools that are not skipped
};

// A chat tool as it is, with the checks that every reader of it relies on.
void AddChatTool(const Json& tool, const std::string& path, FirstError& errors, Json& tools) {
  RequestFields fields(tool, path, errors);
  const std::string type = fields.NeededString("type");
  if (errors.ok() && type != "function") {
    return errors.Add(InvalidValue(fields.PathOf("type"), absl::StrCat("expected 'function', but got ", QuotedInput(type))));
  }
  const Json* function = fields.NeededObject("function");
  if (function == nullptr) return;
  RequestFields inner(*function, fields.PathOf("function"), errors);
  inner.NeededString("name");
  inner.String("description");
  inner.Object("parameters");
  inner.Bool("strict");
  tools.push_back(tool);
}

Json CustomParameters() {
  return {{"type", "object"},
          {"properties", {{"input", {{"type", "string"}}}}},
          {"required", Json::array({"input"})},
          {"additionalProperties", false}};
}

// In the form of chat. False if it is skipped.
bool AddFlatTool(const Json& tool, const std::string& path, FirstError& errors, ApiRequest& request, Json& tools) {
  RequestFields fields(tool, path, errors);
  const std::string type = fields.NeededString("type");
  if (type != "function" && type != "custom") {
    if (errors.ok()) request.skipped_tools.push_back(type);
    return false;
  }
  Json function = {{"name", fields.NeededString("name")}};
  if (const std::optional<std::string> description = fields.String("description")) function["description"] = *description;
  fields.Bool("strict");
  if (type == "custom") {
    function["parameters"] = CustomParameters();
  } else if (const Json* parameters = fields.Object("parameters")) {
    function["parameters"] = *parameters;
  } else {
    function["parameters"] = {{"type", "object"}, {"properties", Json::object()}};
  }
  tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  return true;
}

void Check(const Spelling& spelling, const ParseOptions& options, const Json& tools, FirstError& errors) {
  if (!options.check_tools || !errors.ok() || tools.empty()) return;
  const std::optional<ToolFault> fault = options.check_tools(tools);
  if (!fault) return;
  const size_t position = fault->tool < spelling.positions.size() ? spelling.positions[fault->tool] : fault->tool;
  std::string param = absl::StrCat(Text(kTools), "[", position, "]");
  const std::string field = spelling.is_flat ? std::string(absl::StripPrefix(fault->field, "function.")) : fault->field;
  if (!field.empty()) absl::StrAppend(&param, ".", field);
  ApiError error = fault->code == "invalid_json_schema" ? InvalidJsonSchema(param, fault->message) : InvalidValue(param, fault->message);
  error.code = fault->code;
  errors.Add(std::move(error));
}

bool HasTool(const Json& tools, std::string_view name) {
  return std::ranges::any_of(tools, [&](const Json& tool) { return tool.at("function").at("name").get_ref<const std::string&>() == name; });
}

// The function that an object as tool_choice names.
std::string NamedFunction(RequestFields& fields, const Json& choice, bool is_flat) {
  RequestFields inner(choice, fields.PathOf(kChoice), fields.errors());
  const std::string type = inner.NeededString("type");
  const bool is_known = type == "function" || (is_flat && type == "custom");
  if (!is_known && fields.ok()) {
    fields.errors().Add(InvalidValue(inner.PathOf("type"), absl::StrCat("expected 'function', but got ", QuotedInput(type))));
  }
  if (is_flat || !fields.ok()) return inner.NeededString("name");
  const Json* function = inner.NeededObject("function");
  if (function == nullptr) return {};
  return RequestFields(*function, inner.PathOf("function"), fields.errors()).NeededString("name");
}

void ReadChoice(RequestFields& fields, bool is_flat, const Json& tools, ToolChoice& choice) {
  choice.mode = tools.empty() ? Mode::kNone : Mode::kAuto;
  const Json* value = fields.Find(kChoice);
  if (value == nullptr) return;
  ToolChoice chosen;
  if (value->is_string()) {
    const std::optional<Mode> mode = fields.OneOf(kChoice, kModes);
    if (!mode) return;
    chosen.mode = *mode;
  } else if (value->is_object()) {
    chosen = {.mode = Mode::kFunction, .function = NamedFunction(fields, *value, is_flat)};
  } else {
    return static_cast<void>(fields.Wrong(kChoice, "a string or an object", *value));
  }
  if (!fields.ok() || (chosen.mode == Mode::kAuto && tools.empty())) return;
  if (chosen.Forces() && tools.empty())
    return fields.errors().Add(InvalidValue(kChoice, "a call is asked for, but 'tools' has no function"));
  if (chosen.mode == Mode::kFunction && !HasTool(tools, chosen.function)) {
    return fields.errors().Add(InvalidValue(kChoice, absl::StrCat("the function ", QuotedInput(chosen.function), " is not in 'tools'")));
  }
  choice = std::move(chosen);
}

void ReadTools(RequestFields& fields, const ParseOptions& options, bool is_flat, ApiRequest& request) {
  Json& tools = std::get<ChatPrompt>(request.prompt).tools;
  Spelling spelling = {.is_flat = is_flat};
  if (const Json* given = fields.Array(kTools, kMaxTools)) {
    for (size_t i = 0; i < given->size() && fields.ok(); ++i) {
      const std::string path = fields.PathOf(kTools, i);
      const Json& tool = (*given)[i];
      if (!IsObject(tool, path, fields.errors())) return;
      if (is_flat && !AddFlatTool(tool, path, fields.errors(), request, tools)) continue;
      if (!is_flat) AddChatTool(tool, path, fields.errors(), tools);
      spelling.positions.push_back(i);
    }
  }
  if (!fields.ok()) return;
  Check(spelling, options, tools, fields.errors());
  ReadChoice(fields, is_flat, tools, request.tool_choice);
  request.parallel_tool_calls = fields.BoolOr("parallel_tool_calls", true);
}

}  // namespace

void ReadChatTools(RequestFields& fields, const ParseOptions& options, ApiRequest& request) {
  ReadTools(fields, options, /*is_flat=*/false, request);
}

void ReadResponsesTools(RequestFields& fields, const ParseOptions& options, ApiRequest& request) {
  ReadTools(fields, options, /*is_flat=*/true, request);
}

}  // namespace lime
