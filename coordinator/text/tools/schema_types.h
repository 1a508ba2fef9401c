// Which types of JSON a schema allows, as far as its keywords say it at once.
#pragma once

#include <cstdint>
#include <string_view>

#include "nlohmann/json.hpp"

namespace lime {

// A set of types, as bits.
using JsonTypes = uint8_t;
inline constexpr JsonTypes kNullType = 1, kBooleanType = 2, kIntegerType = 4, kNumberType = 8, kStringType = 16, kArrayType = 32,
                           kObjectType = 64, kAllTypes = 127;

// kAllTypes if the schema says nothing. Reads type, enum, const, anyOf, oneOf, allOf, and $ref into
// `root`, the schema that holds this one.
JsonTypes TypesOf(const nlohmann::ordered_json& schema, const nlohmann::ordered_json& root);

// The type of one value. An integer is kIntegerType | kNumberType.
JsonTypes TypeOf(nlohmann::json::value_t type);

// The types of the argument `key` of a function with these `parameters`.
JsonTypes TypesOfArgument(const nlohmann::ordered_json& parameters, std::string_view key);

}  // namespace lime
