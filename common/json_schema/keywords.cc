#include "common/json_schema/keywords.h"

#include <algorithm>
#include <array>
#include <set>

#include "common/json_schema/dfa/regex.h"

namespace lime::json_schema {
namespace {

constexpr int64_t kMaxCount = 1 << 20;
constexpr int64_t kMaxMultiple = 1'000;

struct KindKeyword {
  std::string_view name;
  Kind kind;
};
constexpr KindKeyword kOfKinds[] = {
    {"minLength", Kind::kString},        {"maxLength", Kind::kString},
    {"pattern", Kind::kString},          {"format", Kind::kString},
    {"minimum", Kind::kNumber},          {"maximum", Kind::kNumber},
    {"exclusiveMinimum", Kind::kNumber}, {"exclusiveMaximum", Kind::kNumber},
    {"multipleOf", Kind::kNumber},       {"items", Kind::kArray},
    {"prefixItems", Kind::kArray},       {"minItems", Kind::kArray},
    {"maxItems", Kind::kArray},          {"properties", Kind::kObject},
    {"required", Kind::kObject},         {"additionalProperties", Kind::kObject},
};
constexpr std::string_view kOfAll[] = {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"};
constexpr std::string_view kAnnotations[] = {"title",   "description", "default",         "examples",        "$comment",
                                             "$schema", "$id",         "deprecated",      "readOnly",        "writeOnly",
                                             "$defs",   "definitions", "contentEncoding", "contentMediaType"};

struct TypeName {
  std::string_view name;
  Kind kind;
};
constexpr TypeName kTypes[] = {{"null", Kind::kNull},      {"boolean", Kind::kBoolean}, {"number", Kind::kNumber},
                               {"integer", Kind::kNumber}, {"string", Kind::kString},   {"array", Kind::kArray},
                               {"object", Kind::kObject}};

absl::Status AddType(const Json& name, const std::string& path, std::vector<Form>& forms) {
  const auto type = std::ranges::find(kTypes, name.is_string() ? name.get<std::string>() : "", &TypeName::name);
  if (type == std::end(kTypes)) return Invalid(path, ": ", name.dump(-1, ' ', false, Json::error_handler_t::replace), " is no type");
  const bool is_integer = type->name == "integer";
  const auto same = std::ranges::find(forms, type->kind, &Form::kind);
  if (same != forms.end()) {
    same->number.is_integer &= is_integer;
    return absl::OkStatus();
  }
  Form& form = forms.emplace_back(Form{.kind = type->kind});
  form.number.is_integer = is_integer;
  return absl::OkStatus();
}

}  // namespace

std::string PathTo(const std::string& path, std::string_view name) {
  std::string to = path + "/";
  for (const char c : name) {
    if (c == '~') to += "~0";
    if (c == '/') to += "~1";
    if (c != '~' && c != '/') to += c;
  }
  return to;
}

bool IsAnnotation(std::string_view name) {
  return std::ranges::find(kAnnotations, name) != std::end(kAnnotations);
}

bool IsKeyword(std::string_view name) {
  return std::ranges::find(kOfAll, name) != std::end(kOfAll) || IsAnnotation(name) ||
         std::ranges::find(kOfKinds, name, &KindKeyword::name) != std::end(kOfKinds);
}

bool HasKeywordOf(Kind kind, const Json& schema) {
  return std::ranges::any_of(
      kOfKinds, [&](const KindKeyword& keyword) { return keyword.kind == kind && schema.contains(std::string(keyword.name)); });
}

std::vector<Form> AnyValue() {
  std::vector<Form> forms;
  for (const Kind kind : {Kind::kNull, Kind::kBoolean, Kind::kNumber, Kind::kString, Kind::kArray, Kind::kObject})
    forms.push_back({.kind = kind});
  return forms;
}

absl::StatusOr<std::vector<Form>> TypesOf(const Json& schema, const std::string& path) {
  const auto type = schema.find("type");
  if (type == schema.end()) return AnyValue();
  const std::string at = PathTo(path, "type");
  std::vector<Form> forms;
  if (!type->is_array()) {
    LIME_RETURN_IF_ERROR(AddType(*type, at, forms));
    return forms;
  }
  if (type->empty()) return Invalid(at, ": is an empty list");
  for (const Json& name : *type) LIME_RETURN_IF_ERROR(AddType(name, at, forms));
  return forms;
}

absl::Status ReadCount(const Json& schema, const char* name, const std::string& path, int64_t& count) {
  const auto value = schema.find(name);
  if (value == schema.end()) return absl::OkStatus();
  const bool is_count = value->is_number_integer() && (value->is_number_unsigned() || value->get<int64_t>() >= 0);
  if (!is_count) return Invalid(PathTo(path, name), ": is not a whole number of 0 or more");
  const auto number = static_cast<int64_t>(std::min<uint64_t>(value->get<uint64_t>(), INT64_MAX - 1));
  const bool is_least = std::string_view(name).starts_with("min");
  if (is_least && number > kMaxCount) return Invalid(PathTo(path, name), ": is above ", kMaxCount);
  count = number > kMaxCount ? INT64_MAX : number;  // no answer is so long
  return absl::OkStatus();
}

absl::Status ReadBound(const Json& schema, const char* name, const std::string& path, int sign, std::optional<NumberBound>& bound) {
  const auto value = schema.find(name);
  if (value == schema.end()) return absl::OkStatus();
  if (!value->is_number()) return Invalid(PathTo(path, name), ": is not a number");
  const NumberBound read = {Decimal::Parse(value->dump()), std::string_view(name).starts_with("exclusive")};
  const int order = bound ? sign * Compare(read.value, bound->value) : 1;
  if (order > 0 || (order == 0 && read.is_exclusive)) bound = read;
  return absl::OkStatus();
}

absl::Status ReadMultiple(const Json& schema, const std::string& path, int64_t& multiple) {
  const auto value = schema.find("multipleOf");
  if (value == schema.end()) return absl::OkStatus();
  const bool is_supported = value->is_number_integer() && value->get<int64_t>() >= 1 && value->get<int64_t>() <= kMaxMultiple;
  if (!is_supported) return Invalid(PathTo(path, "multipleOf"), ": only whole numbers from 1 to ", kMaxMultiple, " are supported");
  multiple = value->get<int64_t>();
  return absl::OkStatus();
}

absl::Status ReadRequired(const Json& schema, const std::string& path, std::vector<std::string>& required) {
  const auto names = schema.find("required");
  if (names == schema.end()) return absl::OkStatus();
  const bool is_list = names->is_array() && std::ranges::all_of(*names, [](const Json& name) { return name.is_string(); });
  if (!is_list) return Invalid(PathTo(path, "required"), ": is not a list of names");
  std::set<std::string> seen;
  for (const Json& name : *names) {
    if (seen.insert(name).second) required.push_back(name);
  }
  return absl::OkStatus();
}

absl::Status ReadRule(const Json& schema, const char* name, const std::string& path, int64_t& work_left,
                      std::vector<StringForm::Rule>& rules) {
  const auto value = schema.find(name);
  if (value == schema.end()) return absl::OkStatus();
  const std::string at = PathTo(path, name);
  if (!value->is_string()) return Invalid(at, ": is not a string");
  StringForm::Rule rule = {.text = *value, .is_format = std::string_view(name) == "format", .path = at};
  if (rule.is_format) {
    rule.dfa = FormatDfa(rule.text);
    if (rule.dfa == nullptr)
      return Invalid(at, ": the format \"", rule.text,
                     "\" is not supported (date, time, date-time and uuid are); use pattern, or remove it");
  } else {
    absl::StatusOr<CharDfa> pattern = CompilePattern(rule.text, work_left);
    if (!pattern.ok()) return Invalid(at, ": the pattern ", std::string(pattern.status().message()));
    rule.dfa = std::make_shared<const CharDfa>(*std::move(pattern));
  }
  rules.push_back(std::move(rule));
  return absl::OkStatus();
}

}  // namespace lime::json_schema
