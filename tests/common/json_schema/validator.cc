#include "tests/common/json_schema/validator.h"

#include <algorithm>
#include <regex>
#include <string>

namespace lime::json_schema {
namespace {

using Json = nlohmann::ordered_json;

bool IsOfType(const Json& value, const std::string& type) {
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  return value.type_name() == type;
}

size_t Characters(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

class Validator {
 public:
  explicit Validator(const Json& root) : root_(root) {}

  // `closes`: objects have no properties without a name by default. Not below allOf, whose branches
  // may each name some.
  bool Check(const Json& value, const Json& schema, bool closes) const {
    if (schema.is_boolean()) return schema.get<bool>();
    if (schema.contains("$ref")) {
      if (!Check(value, root_.at(Json::json_pointer(schema["$ref"].get<std::string>().substr(1))), closes)) return false;
    }
    return CheckType(value, schema) && CheckConstants(value, schema) && CheckNumber(value, schema) && CheckString(value, schema) &&
           CheckArray(value, schema, closes) && CheckObject(value, schema, closes) && CheckBranches(value, schema, closes);
  }

 private:
  static bool CheckType(const Json& value, const Json& schema) {
    if (!schema.contains("type")) return true;
    const Json& type = schema["type"];
    if (type.is_string()) return IsOfType(value, type);
    return std::ranges::any_of(type, [&](const Json& name) { return IsOfType(value, name); });
  }

  static bool CheckConstants(const Json& value, const Json& schema) {
    if (schema.contains("const") && value != schema["const"]) return false;
    return !schema.contains("enum") || std::ranges::find(schema["enum"], value) != schema["enum"].end();
  }

  static bool CheckNumber(const Json& value, const Json& schema) {
    if (!value.is_number()) return true;
    if (schema.contains("minimum") && value < schema["minimum"]) return false;
    if (schema.contains("maximum") && value > schema["maximum"]) return false;
    if (schema.contains("exclusiveMinimum") && value <= schema["exclusiveMinimum"]) return false;
    if (schema.contains("exclusiveMaximum") && value >= schema["exclusiveMaximum"]) return false;
    return !schema.contains("multipleOf") || value.get<int64_t>() % schema["multipleOf"].get<int64_t>() == 0;
  }

  static bool CheckString(const Json& value, const Json& schema) {
    if (!value.is_string()) return true;
    const auto& text = value.get_ref<const std::string&>();
    if (schema.contains("minLength") && Characters(text) < schema["minLength"].get<size_t>()) return false;
    if (schema.contains("maxLength") && Characters(text) > schema["maxLength"].get<size_t>()) return false;
    return !schema.contains("pattern") || std::regex_search(text, std::regex(schema["pattern"].get<std::string>()));
  }

  bool CheckArray(const Json& value, const Json& schema, bool closes) const {
    if (!value.is_array()) return true;
    if (schema.contains("minItems") && value.size() < schema["minItems"].get<size_t>()) return false;
    if (schema.contains("maxItems") && value.size() > schema["maxItems"].get<size_t>()) return false;
    const size_t prefix = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
    for (size_t i = 0; i < value.size(); ++i) {
      if (i < prefix && !Check(value[i], schema["prefixItems"][i], closes)) return false;
      if (i >= prefix && schema.contains("items") && !Check(value[i], schema["items"], closes)) return false;
    }
    return true;
  }

  bool CheckObject(const Json& value, const Json& schema, bool closes) const {
    if (!value.is_object()) return true;
    for (const Json& name : schema.value("required", Json::array())) {
      if (!value.contains(name.get<std::string>())) return false;
    }
    const Json properties = schema.value("properties", Json::object());
    const bool has_rule = schema.contains("additionalProperties");
    for (const auto& [name, member] : value.items()) {
      if (properties.contains(name)) {
        if (!Check(member, properties[name], closes)) return false;
      } else if (has_rule ? !Check(member, schema["additionalProperties"], closes) : closes && schema.contains("properties")) {
        return false;
      }
    }
    return true;
  }

  bool CheckBranches(const Json& value, const Json& schema, bool closes) const {
    const auto holds = [&](const Json& branch) { return Check(value, branch, closes); };
    if (schema.contains("allOf") && !std::ranges::all_of(schema["allOf"], [&](const Json& branch) { return Check(value, branch, false); }))
      return false;
    if (schema.contains("anyOf") && !std::ranges::any_of(schema["anyOf"], holds)) return false;
    return !schema.contains("oneOf") || std::ranges::count_if(schema["oneOf"], holds) == 1;
  }

  const Json& root_;
};

}  // namespace

bool IsValid(const Json& value, const Json& schema, const Json& root) {
  return Validator(root).Check(value, schema, true);
}

}  // namespace lime::json_schema
