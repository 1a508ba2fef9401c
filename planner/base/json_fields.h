// Typed and bounded access to the fields of an untrusted JSON object. The first wrong field becomes
// the error; later reads return their defaults. A reader is then a list of fields with one check of
// status().
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "planner/base/status.h"
#include "planner/base/strings.h"

namespace lime {

class JsonFields {
 public:
  // REQUIRES: `object` outlives this. Errors begin with `where`.
  JsonFields(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {}

  // False if the field is missing or null.
  bool Has(const std::string& key) const {
    const auto found = object_.find(key);
    return found != object_.end() && !found->is_null();
  }

  int64_t Int(const std::string& key, int64_t low, int64_t high) { return Has(key) ? IntAt(key, low, high) : Missing<int64_t>(key); }
  int64_t IntOr(const std::string& key, int64_t fallback, int64_t low, int64_t high) { return Has(key) ? IntAt(key, low, high) : fallback; }
  double Double(const std::string& key, double low, double high) { return Has(key) ? DoubleAt(key, low, high) : Missing<double>(key); }
  double DoubleOr(const std::string& key, double fallback, double low, double high) {
    return Has(key) ? DoubleAt(key, low, high) : fallback;
  }
  bool BoolOr(const std::string& key, bool fallback) {
    if (!Has(key)) return fallback;
    const nlohmann::json& value = object_.at(key);
    return value.is_boolean() ? value.get<bool>() : Fail<bool>(key, "is not true or false");
  }
  std::string StringOr(const std::string& key, std::string fallback) {
    if (!Has(key)) return fallback;
    const nlohmann::json& value = object_.at(key);
    return value.is_string() ? value.get<std::string>() : Fail<std::string>(key, "is not a string");
  }

  std::string String(const std::string& key) { return Has(key) ? StringOr(key, {}) : Missing<std::string>(key); }
  // The value of an array or object field; empty if the field is missing or has another type.
  const nlohmann::json& Array(const std::string& key, size_t max_size) {
    static const nlohmann::json kEmpty = nlohmann::json::array();
    if (!Has(key)) return Missing<std::monostate>(key), kEmpty;
    const nlohmann::json& value = object_.at(key);
    if (!value.is_array()) return Fail<std::monostate>(key, "is not an array"), kEmpty;
    if (value.size() > max_size) {
      return Fail<std::monostate>(key, absl::StrCat("has ", value.size(), " elements, more than ", max_size)), kEmpty;
    }
    return value;
  }
  const nlohmann::json& Object(const std::string& key) {
    static const nlohmann::json kEmpty = nlohmann::json::object();
    if (!Has(key)) return Missing<std::monostate>(key), kEmpty;
    const nlohmann::json& value = object_.at(key);
    return value.is_object() ? value : (Fail<std::monostate>(key, "is not an object"), kEmpty);
  }
  std::vector<double> Doubles(const std::string& key, double low, double high, size_t max_size) {
    return Numbers<double>(
        key, max_size, "a number", [&](const nlohmann::json& v) { return v.is_number(); }, low, high);
  }
  std::vector<int64_t> Ints(const std::string& key, int64_t low, int64_t high, size_t max_size) {
    return Numbers<int64_t>(key, max_size, "an integer", IsInt64, low, high);
  }

  const std::string& where() const { return where_; }
  const absl::Status& status() const { return status_; }
  // Both keep only the first error. Wrong: an error of the field. Check: an error inside its value.
  void Wrong(const std::string& key, std::string_view problem) { Fail<std::monostate>(key, problem); }
  void Check(const absl::Status& status) { status_.Update(status); }

 private:
  static bool IsInt64(const nlohmann::json& value) {
    if (value.is_number_unsigned()) return value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    return value.is_number_integer();
  }
  template <typename T, typename IsT>
  std::vector<T> Numbers(const std::string& key, size_t max_size, std::string_view what, IsT is_t, T low, T high) {
    std::vector<T> numbers;
    const nlohmann::json& array = Array(key, max_size);
    numbers.reserve(array.size());
    for (const nlohmann::json& value : array) {
      const auto element = [&] { return absl::StrCat(key, "[", numbers.size(), "]"); };
      if (!is_t(value)) return Fail<std::vector<T>>(element(), absl::StrCat("is not ", Text(what)));
      const T number = value.template get<T>();
      if (!(number >= low && number <= high)) {
        return Fail<std::vector<T>>(element(), absl::StrCat("= ", number, " is outside ", low, " to ", high));
      }
      numbers.push_back(number);
    }
    return numbers;
  }
  double DoubleAt(const std::string& key, double low, double high) {
    const nlohmann::json& value = object_.at(key);
    if (!value.is_number()) return Fail<double>(key, "is not a number");
    const double number = value.get<double>();
    if (!(number >= low && number <= high)) return Fail<double>(key, absl::StrCat("= ", number, " is outside ", low, " to ", high));
    return number;
  }
  int64_t IntAt(const std::string& key, int64_t low, int64_t high) {
    const nlohmann::json& value = object_.at(key);
    if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Fail<int64_t>(key, "is too large");
    }
    if (!value.is_number_integer()) return Fail<int64_t>(key, "is not an integer");
    const int64_t number = value.get<int64_t>();
    if (number < low || number > high) return Fail<int64_t>(key, absl::StrCat("= ", number, " is outside ", low, " to ", high));
    return number;
  }
  template <typename T>
  T Missing(const std::string& key) {
    return Fail<T>(key, "is missing");
  }
  template <typename T>
  T Fail(const std::string& key, std::string_view problem) {
    if (status_.ok()) status_ = Invalid(where_, ": field \"", key, "\" ", Text(problem));
    return T{};
  }

  const nlohmann::json& object_;
  std::string where_;
  absl::Status status_;
};

// Reads each object of the array `key` with `read`. Its second argument begins the errors:
// `opening`, key and index.
template <typename Read, typename T = typename std::invoke_result_t<Read, JsonFields&, const std::string&>::value_type>
absl::StatusOr<std::vector<T>> ReadObjects(JsonFields& fields, const std::string& key, size_t max_size, const std::string& opening,
                                           Read read) {
  std::vector<T> values;
  const nlohmann::json& array = fields.Array(key, max_size);
  LIME_RETURN_IF_ERROR(fields.status());
  for (const nlohmann::json& object : array) {
    const std::string place = absl::StrCat(opening, key, "[", values.size(), "]");
    if (!object.is_object()) return Invalid(place, " is not an object");
    JsonFields inner(object, place);
    LIME_ASSIGN_OR_RETURN(T value, read(inner, place));
    LIME_RETURN_IF_ERROR(inner.status());
    values.push_back(std::move(value));
  }
  return values;
}

}  // namespace lime
