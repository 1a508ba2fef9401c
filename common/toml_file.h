// TOML that a person wrote: cluster.toml and limed.toml. Strict: every field has a type and bounds,
// and what nobody asked for is an error that names file, line, field and the nearest known one.
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

// No limed runs in less: a budget below it is a slip, such as memory = 8 for 8 GiB.
inline constexpr Bytes kLeastBudget = 16 * kMiB;

// A value of the file, and the line that it begins at.
struct TomlNode {
  enum class Kind { kString, kInteger, kBoolean, kTable, kArray, kOther };
  Kind kind = Kind::kOther;
  int64_t line = 0;
  std::string key;               // of a field of a table
  std::string text;              // kString
  int64_t number = 0;            // kInteger, and kBoolean as 0 or 1
  std::vector<TomlNode> fields;  // kTable, by line
  std::vector<TomlNode> items;   // kArray

  const TomlNode* Find(std::string_view key) const;  // of a table; null: there is none
};

// The table of the whole file. `file` opens every error: "F line 3: ...". InvalidArgument for what is
// longer than `most` or no TOML.
absl::StatusOr<TomlNode> ParseToml(std::string_view text, std::string_view file, Bytes most = kMaxTomlBytes);

// "FILE line N: what".
template <typename... What>
absl::Status WrongLine(std::string_view file, int64_t line, const What&... what) {
  return Invalid(std::string(file), " line ", line, ": ", what...);
}

// Text of the file as an error shows it: its begin, control characters as \xNN, all others as they are.
std::string ShownToml(std::string_view text);

// A field as the file has it: `"8GiB"` in line 7.
struct TomlValue {
  int64_t line = 0;
  std::string text;
};

// What comes between an unknown word, with the nearest known one or not, and all known ones.
std::string ThereAre(const std::string& did_you_mean);

// The fields of one table. The first wrong one is kept, and later reads return their defaults.
class TomlFields {
 public:
  // `table` and `file` outlive this. `what` names the table in errors, such as [cluster]; the file
  // itself has none.
  TomlFields(const TomlNode& table, std::string_view file, std::string what = "") : table_(table), file_(file), what_(std::move(what)) {}

  int64_t line() const { return table_.line; }
  bool Has(const char* key) const { return table_.Find(key) != nullptr; }

  // Without control characters, 4 KiB at most; empty where there is none.
  std::string String(const char* key);
  // `low` where there is none.
  int64_t Int(const char* key, int64_t low, int64_t high);
  bool Bool(const char* key);
  // Memory of a daemon: a size in a string, or bytes. 0 where there is none.
  Bytes Budget(const char* key);
  // A string that `parse` reads; T{} where there is none. `show` writes the range as people write it.
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

  // Every field that is a string, a whole number or a switch.
  std::map<std::string, TomlValue> Written() const;

  // Keeps an error about a field that is there; about one that is not.
  void FailAt(const char* key, const std::string& problem);
  void Missing(const char* key, std::string_view advice);

  // After all fields were read: the first error, or the first field that nobody asked for.
  absl::Status Finish();

 private:
  const TomlNode* Take(const char* key);
  std::string Opening() const { return what_.empty() ? "" : what_ + ": "; }

  const TomlNode& table_;
  const std::string_view file_;
  const std::string what_;
  std::set<std::string> taken_;
  absl::Status error_;
};

}  // namespace lime
