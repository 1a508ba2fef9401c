#include "coordinator/api/requests/request_fields.h"

#include "planner/base/strings.h"

namespace lime {

std::string NumberRange::Words() const {
  const bool ends = high < std::numeric_limits<double>::infinity();
  if (without_low) return ends ? absl::StrCat("above ", low, ", at most ", high) : absl::StrCat("above ", low);
  return ends ? absl::StrCat("from ", low, " to ", high) : absl::StrCat("of at least ", low);
}

const Json* RequestFields::Find(std::string_view key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> RequestFields::Bool(std::string_view key) {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) return Wrong(key, "a boolean", *value);
  return value->get<bool>();
}

std::optional<int64_t> RequestFields::Int(std::string_view key, int64_t low, int64_t high) {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const bool is_beyond = IsBeyondIntegers(*value);
  if (!value->is_number_integer() && !is_beyond) return Wrong(key, "an integer", *value);
  const bool is_huge = value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (!is_beyond && !is_huge && value->get<int64_t>() >= low && value->get<int64_t>() <= high) return value->get<int64_t>();
  const std::string range =
      high == std::numeric_limits<int64_t>::max() ? absl::StrCat("of at least ", low) : absl::StrCat("from ", low, " to ", high);
  errors_.Add(InvalidValue(PathOf(key), absl::StrCat("expected an integer ", range, ", but got ", value->dump())));
  return std::nullopt;
}

std::optional<uint64_t> RequestFields::Unsigned(std::string_view key) {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_integer() && !IsBeyondIntegers(*value)) return Wrong(key, "an integer", *value);
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  errors_.Add(InvalidValue(PathOf(key), absl::StrCat("expected an integer from 0 to 2^64 - 1, but got ", value->dump())));
  return std::nullopt;
}

std::optional<double> RequestFields::Number(std::string_view key, const NumberRange& range) {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) return Wrong(key, "a number", *value);
  const double number = value->get<double>();
  if (range.Has(number)) return number;
  errors_.Add(InvalidValue(PathOf(key), absl::StrCat("expected a number ", range.Words(), ", but got ", value->dump())));
  return std::nullopt;
}

std::optional<std::string> RequestFields::String(std::string_view key) {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) return Wrong(key, "a string", *value);
  return value->get<std::string>();
}

const Json* RequestFields::Array(std::string_view key, size_t max_size) {
  const Json* value = Find(key);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) {
    Wrong(key, "an array", *value);
    return nullptr;
  }
  if (value->size() <= max_size) return value;
  errors_.Add(InvalidValue(PathOf(key), absl::StrCat("expected an array of at most ", max_size, " elements, but got ", value->size())));
  return nullptr;
}

const Json* RequestFields::Object(std::string_view key) {
  const Json* value = Find(key);
  if (value == nullptr || value->is_object()) return value;
  Wrong(key, "an object", *value);
  return nullptr;
}

const Json* RequestFields::Needed(std::string_view key) {
  const Json* value = Find(key);
  if (value == nullptr) errors_.Add(MissingParameter(PathOf(key)));
  return value;
}

std::string RequestFields::NeededString(std::string_view key) {
  return Needed(key) == nullptr ? std::string() : String(key).value_or("");
}

const Json* RequestFields::NeededArray(std::string_view key, size_t max_size) {
  return Needed(key) == nullptr ? nullptr : Array(key, max_size);
}

const Json* RequestFields::NeededObject(std::string_view key) {
  return Needed(key) == nullptr ? nullptr : Object(key);
}

std::string RequestFields::PathOf(std::string_view key) const {
  return path_.empty() ? std::string(key) : absl::StrCat(path_, ".", Text(key));
}

std::nullopt_t RequestFields::Wrong(std::string_view key, std::string_view expected, const Json& got) {
  errors_.Add(InvalidType(PathOf(key), expected, KindOf(got)));
  return std::nullopt;
}

bool IsObject(const Json& element, const std::string& path, FirstError& errors) {
  if (!element.is_object()) errors.Add(InvalidType(path, "an object", KindOf(element)));
  return element.is_object();
}

std::vector<int32_t> ReadIds(const Json& array, const std::string& path, int64_t vocab_size, FirstError& errors) {
  const int64_t limit = vocab_size > 0 ? vocab_size : std::numeric_limits<int32_t>::max();
  std::vector<int32_t> ids;
  ids.reserve(array.size());
  for (const Json& element : array) {
    const auto place = [&] { return absl::StrCat(path, "[", ids.size(), "]"); };
    if (!element.is_number_integer() && !IsBeyondIntegers(element)) {
      errors.Add(InvalidType(place(), "a token id", KindOf(element)));
      return {};
    }
    if (!element.is_number_unsigned() || element.get<uint64_t>() >= static_cast<uint64_t>(limit)) {
      errors.Add(InvalidValue(place(), absl::StrCat("expected a token id from 0 to ", limit - 1, ", but got ", element.dump())));
      return {};
    }
    ids.push_back(static_cast<int32_t>(element.get<uint64_t>()));
  }
  return ids;
}

}  // namespace lime
