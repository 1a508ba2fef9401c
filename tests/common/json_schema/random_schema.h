// Schemas by a seed.
#pragma once

#include <random>
#include <string>

#include "nlohmann/json.hpp"

namespace lime::json_schema {

class RandomSchema {
 public:
  using Json = nlohmann::ordered_json;

  explicit RandomSchema(uint64_t seed) : random_(seed) {}

  // With references between its definitions, some of which have no end.
  Json Make() {
    Json schema = Value(0);
    if (!schema.is_object()) schema = Json::object();
    schema["$defs"] = Json{{"d0", Value(1)}, {"d1", Value(1)}};
    return schema;
  }

  int Below(int count) { return static_cast<int>(random_() % static_cast<uint64_t>(count)); }

 private:
  Json Value(int depth) {
    switch (Below(depth > 3 ? 6 : 13)) {
      case 0:
        return {{"type", Pick({"null", "boolean", "integer", "number", "string"})}};
      case 1:
        return Number();
      case 2:
        return String();
      case 3:
        return {{"enum", Constants()}};
      case 4:
        return {{"const", Constants()[0]}};
      case 5:
        return {{"type", Json::array({Pick({"null", "boolean"}), Pick({"string", "integer"})})}, {"description", "either"}};
      case 6:
        return {{"$ref", Pick({"#/$defs/d0", "#/$defs/d1"})}};
      case 7:
        return Array(depth);
      case 8:
        return {{"anyOf", Json::array({Value(depth + 1), Value(depth + 1)})}};
      case 9:
        return OneOf(depth);
      case 10:
        return {{"allOf", Json::array({Object(depth + 1, false), Object(depth + 1, false)})}};
      case 11:
        return Json::object();
      default:
        return Object(depth, true);
    }
  }

  std::string Pick(std::vector<std::string> names) { return names[static_cast<size_t>(Below(static_cast<int>(names.size())))]; }

  Json Number() {
    Json schema = {{"type", Pick({"integer", "number"})}};
    const int low = Below(2000) - 1000;
    const bool is_whole = schema["type"] == "integer" || Below(2) == 0;
    if (Below(3) > 0) schema[Pick({"minimum", "exclusiveMinimum"})] = is_whole ? Json(low) : Json(low / 16.0);
    if (Below(3) > 0)
      schema[Pick({"maximum", "exclusiveMaximum"})] = is_whole ? Json(low + Below(3000)) : Json(low / 16.0 + Below(100) / 8.0);
    if (schema["type"] == "integer" && Below(4) == 0) schema["multipleOf"] = 1 + Below(12);
    return schema;
  }

  Json String() {
    Json schema = {{"type", "string"}};
    const int least = Below(4);
    if (Below(2) == 0) schema["minLength"] = least;
    if (Below(2) == 0) schema["maxLength"] = least + Below(5);
    if (Below(3) == 0) schema["pattern"] = Pick({"^[ab]*$", "a+b", "^x|y$", "^(ab|c){1,3}$", "[0-9]{2}", "^\\d+-\\w$", "^[^a-z]+$"});
    return schema;
  }

  Json Constants() {
    const Json all = Json::parse(R"([null, true, 0, -17, 2.5, "", "a", "ab", "q\"\n\\", "\u00e9", [], [1, [2]], {}, {"a": 1, "k": "ab"}])");
    Json picked = Json::array();
    for (int i = 0; i <= Below(4); ++i) picked.push_back(all[static_cast<size_t>(Below(static_cast<int>(all.size())))]);
    return picked;
  }

  Json Array(int depth) {
    Json schema = {{"type", "array"}};
    if (Below(3) == 0) {
      for (int i = 0; i <= Below(2); ++i) schema["prefixItems"].push_back(Value(depth + 1));
    }
    if (Below(4) > 0) schema["items"] = Below(8) == 0 ? Json(false) : Value(depth + 1);
    const int least = Below(3);
    if (Below(2) == 0) schema["minItems"] = least;
    if (Below(2) == 0) schema["maxItems"] = least + Below(3);
    return schema;
  }

  Json Object(int depth, bool may_close) {
    Json schema = {{"type", "object"}, {"properties", Json::object()}};
    for (const char* name : {"a", "ab", "kind", "\u00e9\"", ""}) {
      if (Below(2) == 0) continue;
      schema["properties"][name] = Value(depth + 1);
      if (Below(2) == 0) schema["required"].push_back(name);
    }
    if (may_close && Below(3) == 0) schema["additionalProperties"] = Below(2) == 0 ? Value(depth + 1) : Json(Below(2) == 0);
    return schema;
  }

  Json OneOf(int depth) {
    if (Below(2) == 0) return {{"oneOf", Json::array({String(), Number(), Object(depth + 1, true)})}};
    Json branches = Json::array();
    for (const char* kind : {"ab", "ac", "b"}) {
      Json object = Object(depth + 1, true);
      object["properties"]["kind"] = {{"const", kind}};
      object["required"].push_back("kind");
      branches.push_back(object);
    }
    return {{"oneOf", branches}};
  }

  std::mt19937_64 random_;
};

}  // namespace lime::json_schema
