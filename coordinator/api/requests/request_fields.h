// Reads the fields of a JSON object of a request. The first wrong field becomes the error; later
// reads return nothing. So a parser is a list of fields, with one look at the error at its end.
//
// Null counts as absent. Fields that nobody reads are ignored.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/api/api_error.h"
#include "coordinator/api/requests/request_json.h"
#include "planner/base/names.h"

namespace lime {

// The first error of a request.
class FirstError {
 public:
  void Add(ApiError error) {
    if (!error_) error_ = std::move(error);
  }
  bool ok() const { return !error_; }
  // REQUIRES: !ok()
  const ApiError& error() const { return *error_; }

 private:
  std::optional<ApiError> error_;
};

struct NumberRange {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool without_low = false;  // above `low`

  bool Has(double value) const { return (without_low ? value > low : value >= low) && value <= high; }
  // "from 0 to 2", "above 0, at most 1", ...
  std::string Words() const;
};

class RequestFields {
 public:
  // `path`: of the object within the body, as in messages[0]; empty for the body.
  // REQUIRES: `object` is one, and outlives this object, as `errors` does.
  RequestFields(const Json& object, std::string path, FirstError& errors) : object_(object), path_(std::move(path)), errors_(errors) {}

  // Null if it is absent.
  const Json* Find(std::string_view key) const;
  std::optional<bool> Bool(std::string_view key);
  std::optional<int64_t> Int(std::string_view key, int64_t low, int64_t high);
  std::optional<uint64_t> Unsigned(std::string_view key);
  std::optional<double> Number(std::string_view key, const NumberRange& range);
  std::optional<std::string> String(std::string_view key);
  // Null if it is absent, or wrong.
  const Json* Array(std::string_view key, size_t max_size);
  const Json* Object(std::string_view key);
  template <typename T, size_t kCount>
  std::optional<T> OneOf(std::string_view key, const Names<T, kCount>& names);

  // The same, but an error if it is absent.
  std::string NeededString(std::string_view key);
  const Json* NeededArray(std::string_view key, size_t max_size);
  const Json* NeededObject(std::string_view key);
  const Json* Needed(std::string_view key);

  bool BoolOr(std::string_view key, bool fallback) { return Bool(key).value_or(fallback); }

  // messages[0].role
  std::string PathOf(std::string_view key) const;
  std::string PathOf(std::string_view key, size_t index) const { return absl::StrCat(PathOf(key), "[", index, "]"); }
  const std::string& path() const { return path_; }
  FirstError& errors() { return errors_; }
  bool ok() const { return errors_.ok(); }
  std::nullopt_t Wrong(std::string_view key, std::string_view expected, const Json& got);

 private:
  const Json& object_;
  const std::string path_;
  FirstError& errors_;
};

// Reads an element of an array, which has to be an object. False if it is not, with the error.
bool IsObject(const Json& element, const std::string& path, FirstError& errors);

// The ids of an array. `vocab_size` 0: of any vocabulary. Nothing after an error.
std::vector<int32_t> ReadIds(const Json& array, const std::string& path, int64_t vocab_size, FirstError& errors);

template <typename T, size_t kCount>
std::optional<T> RequestFields::OneOf(std::string_view key, const Names<T, kCount>& names) {
  const std::optional<std::string> name = String(key);
  if (!name) return std::nullopt;
  if (const std::optional<T> found = names.Find(*name)) return found;
  std::string all;
  for (size_t i = 0; i < kCount; ++i) {
    absl::StrAppend(&all,
                    i == 0            ? ""
                    : i + 1 == kCount ? " or "
                                      : ", ",
                    "'", absl::string_view(names.all[i].second.data(), names.all[i].second.size()), "'");
  }
  errors_.Add(InvalidValue(PathOf(key), absl::StrCat("expected ", all, ", but got ", QuotedInput(*name))));
  return std::nullopt;
}

}  // namespace lime
