// Reads TOML that people write: cluster.toml and limed.toml. Strict: every field has a type and
// bounds, and an unknown field is an error with file, line, field and the nearest known one.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

inline constexpr Bytes kMaxTomlBytes = 1 * kMiB;

// The smallest budget of a limed. A smaller value is a mistake, such as memory = 8 for 8 GiB.
inline constexpr Bytes kLeastBudget = 16 * kMiB;

// A value in the file, and its first line.
struct TomlNode {
  enum class Kind { kString, kInteger, kReal, kBoolean, kTable, kArray, kOther };
  Kind kind = Kind::kOther;
  int64_t line = 0;
  std::string key;               // if it is a field of a table
  std::string text;              // kString
  int64_t number = 0;            // kInteger, and kBoolean as 0 or 1
  double real = 0;               // kReal
  std::vector<TomlNode> fields;  // kTable, by line
  std::vector<TomlNode> items;   // kArray

  const TomlNode* Find(std::string_view key) const;  // a field of a table, or null
};

// The table of the whole file. Errors begin with `file`: "F line 3: ...". InvalidArgument if the
// text is longer than `most` or not TOML.
absl::StatusOr<TomlNode> ParseToml(std::string_view text, std::string_view file, Bytes most = kMaxTomlBytes);

// "FILE line N: what".
template <typename... What>
absl::Status WrongLine(std::string_view file, int64_t line, const What&... what) {
  return Invalid(std::string(file), " line ", line, ": ", what...);
}

// Text of the file for error messages: its beginning, with control characters as \xNN.
std::string ShownToml(std::string_view text);

// A field as written in the file: `"8GiB"` in line 7.
struct TomlValue {
  int64_t line = 0;
  std::string text;
};

// The words between an error about an unknown field and the list of known fields. `did_you_mean` is
// a sentence with the nearest known field, or empty.
std::string ThereAre(const std::string& did_you_mean);

// The fields of one table. The first wrong field becomes the error; later reads return defaults.
class TomlFields {
 public:
  // REQUIRES: `table` and `file` outlive this. `what` names the table in errors, such as [cluster];
  // it is empty for the file itself.
  TomlFields(const TomlNode& table, std::string_view file, std::string what = "") : table_(table), file_(file), what_(std::move(what)) {}

  int64_t line() const { return table_.line; }
  bool Has(const char* key) const { return table_.Find(key) != nullptr; }

  // A text without control characters, at most 4 KiB; empty if missing.
  std::string String(const char* key);
  // `low` if missing.
  int64_t Int(const char* key, int64_t low, int64_t high);
  bool Bool(const char* key);
  // The memory of a daemon: a size in a string, or bytes. 0 if missing.
  Bytes Budget(const char* key);
  // Parses a string with `parse`; T{} if missing. `show` formats the bounds for the error.
  template <typename T>
  T Parsed(const char* key, absl::StatusOr<T> (*parse)(std::string_view), T low, T high, std::string (*show)(T)) {
    const std::string text = String(key);
    if (!Has(key) || !error_.ok()) return T{};
    const absl::StatusOr<T> value = parse(text);
    if (!value.ok()) return FailAt(key, absl::StrCat(": ", value.status().message())), T{};
    if (!(*value >= low && *value <= high))
      return FailAt(key, absl::StrCat("= ", ShownToml(text), " is out of range; give ", show(low), " to ", show(high))), T{};
    return *value;
  }

  // All fields that are strings, integers or booleans.
  std::map<std::string, TomlValue> Written() const;

  // Stores an error about a field that exists (FailAt), or that is missing (Missing).
  void FailAt(const char* key, const std::string& problem);
  void Missing(const char* key, std::string_view advice);

  // Call after all reads. Returns the first error, or an error for the first unread field.
  absl::Status Finish();

 private:
  const TomlNode* Consume(const char* key);
  std::string Opening() const { return what_.empty() ? "" : what_ + ": "; }

  const TomlNode& table_;
  const std::string_view file_;
  const std::string what_;
  std::set<std::string> consumed_;
  absl::Status error_;
};

}  // namespace lime
