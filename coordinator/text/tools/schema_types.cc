#include "coordinator/text/tools/schema_types.h"

#include <array>
#include <string>
#include <utility>

namespace lime {
namespace {

using Json = nlohmann::ordered_json;

// A schema may refer to itself.
constexpr int kMaxDepth = 16;
// Of all keywords that are read for one schema: references may double at each level.
constexpr int kMaxSchemas = 1000;

class Reader {
 public:
  explicit Reader(const Json& root) : root_(root) {}

  JsonTypes Types(const Json& schema, int depth) {
    if (!schema.is_object() || depth > kMaxDepth || ++schemas_ > kMaxSchemas) return kAllTypes;
    JsonTypes types = kAllTypes;
    for (const auto& [key, value] : schema.items()) types &= OfKeyword(key, value, depth);
    return types != 0 ? types : kAllTypes;
  }

 private:
  JsonTypes OfKeyword(const std::string& key, const Json& value, int depth) {
    if (key == "type") return Named(value);
    if (key == "const") return TypeOf(value.type());
    if (key == "$ref") return Referred(value, depth);
    if (!value.is_array()) return kAllTypes;
    if (key == "enum") return Union(value, [](const Json& one) { return TypeOf(one.type()); });
    if (key == "anyOf" || key == "oneOf") return Union(value, [&](const Json& one) { return Types(one, depth + 1); });
    JsonTypes types = kAllTypes;
    if (key == "allOf") {
      for (const Json& one : value) types &= Types(one, depth + 1);
    }
    return types;
  }

  template <typename Function>
  static JsonTypes Union(const Json& list, Function types_of) {
    JsonTypes types = 0;
    for (const Json& one : list) types |= types_of(one);
    return types;
  }

  static JsonTypes Named(const Json& name) {
    static constexpr std::array<std::pair<std::string_view, JsonTypes>, 7> kNames = {{
        {"null", kNullType},
        {"boolean", kBooleanType},
        {"integer", kIntegerType},
        {"number", kIntegerType | kNumberType},
        {"string", kStringType},
        {"array", kArrayType},
        {"object", kObjectType},
    }};
    if (name.is_array()) return Union(name, [](const Json& one) { return one.is_string() ? Named(one) : kAllTypes; });
    for (const auto& [known, types] : kNames) {
      if (name == known) return types;
    }
    return kAllTypes;
  }

  JsonTypes Referred(const Json& reference, int depth) {
    const std::string text = reference.is_string() ? reference.get<std::string>() : "";
    if (!text.starts_with("#")) return kAllTypes;
    try {
      const Json::json_pointer pointer(text.substr(1));
      return root_.contains(pointer) ? Types(root_.at(pointer), depth + 1) : kAllTypes;
    } catch (const Json::exception&) {  // no pointer, or into a list at a word
      return kAllTypes;
    }
  }

  const Json& root_;
  int schemas_ = 0;
};

}  // namespace

JsonTypes TypeOf(Json::value_t type) {
  switch (type) {
    case Json::value_t::null:
      return kNullType;
    case Json::value_t::boolean:
      return kBooleanType;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return kIntegerType | kNumberType;
    case Json::value_t::number_float:
      return kNumberType;
    case Json::value_t::array:
      return kArrayType;
    case Json::value_t::object:
      return kObjectType;
    default:
      return kStringType;
  }
}

JsonTypes TypesOf(const Json& schema, const Json& root) {
  return Reader(root).Types(schema, 0);
}

JsonTypes TypesOfArgument(const Json& parameters, std::string_view key) {
  if (!parameters.is_object()) return kAllTypes;
  const auto properties = parameters.find("properties");
  if (properties != parameters.end() && properties->is_object()) {
    const auto found = properties->find(std::string(key));
    if (found != properties->end()) return TypesOf(*found, parameters);
  }
  const auto others = parameters.find("additionalProperties");
  return others != parameters.end() ? TypesOf(*others, parameters) : kAllTypes;
}

}  // namespace lime
