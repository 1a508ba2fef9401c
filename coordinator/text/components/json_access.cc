#include "coordinator/text/components/json_access.h"

#include "planner/base/strings.h"

namespace lime {
namespace {

absl::Status WrongType(std::string_view key, std::string_view wanted, const TokenizerJson& value) {
  return Invalid("field \"", Text(key), "\" is ", value.type_name(), ", need ", Text(wanted));
}

}  // namespace

const TokenizerJson& Field(const TokenizerJson& object, std::string_view key) {
  static const TokenizerJson null;
  if (!object.is_object()) return null;
  const auto it = object.find(key);
  return it == object.end() ? null : *it;
}

absl::StatusOr<bool> BoolField(const TokenizerJson& object, std::string_view key, bool fallback) {
  const TokenizerJson& value = Field(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) return WrongType(key, "true or false", value);
  return value.get<bool>();
}

absl::StatusOr<int64_t> IntField(const TokenizerJson& object, std::string_view key, int64_t fallback) {
  const TokenizerJson& value = Field(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX)) {
    return WrongType(key, "an integer", value);
  }
  return value.get<int64_t>();
}

absl::StatusOr<std::string> StringField(const TokenizerJson& object, std::string_view key, std::string_view fallback) {
  const TokenizerJson& value = Field(object, key);
  if (value.is_null()) return std::string(fallback);
  if (!value.is_string()) return WrongType(key, "a string", value);
  return value.get<std::string>();
}

absl::StatusOr<int64_t> RequiredInt(const TokenizerJson& object, std::string_view key) {
  if (Field(object, key).is_null()) return Invalid("field \"", Text(key), "\" is missing");
  return IntField(object, key, 0);
}

absl::StatusOr<std::string> RequiredString(const TokenizerJson& object, std::string_view key) {
  if (Field(object, key).is_null()) return Invalid("field \"", Text(key), "\" is missing");
  return StringField(object, key, "");
}

absl::StatusOr<std::string> ComponentType(const TokenizerJson& component) {
  if (component.is_null()) return std::string();
  if (!component.is_object()) return Invalid("a component is ", component.type_name(), ", need an object");
  return RequiredString(component, "type");
}

}  // namespace lime
