// Lists the fields of a JSON object beside the members of our type, once for reading and writing.
//
//   static void List(JsonList& f, StepTimes& times) {
//     f.Number("tx_ms", times.tx_ms, 0, kHigh);
//     f.Number("embed_rows_ms", times.embed_rows_ms, 0, kHigh, JsonList::kOptional);
//   }
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "planner/base/check.h"
#include "planner/base/json_fields.h"
#include "planner/base/names.h"

namespace lime {

// Goes through a list of fields, to write a JSON object or to read one. Input is hostile:
// JsonFields bounds it and keeps the first error. Writing does not change the values.
//
// An object within an object is read and written by the List of its own type. `more` is passed on
// to that List.
class JsonList {
 public:
  enum Presence {
    kRequired,  // always written; an error if it is missing
    kOptional,  // always written; if it is missing, the value stays as it is
    kSparse,    // like kOptional, but written only if it is not 0, false or empty
  };

  explicit JsonList(JsonFields& from) : from_(&from) {}
  explicit JsonList(nlohmann::ordered_json& to) : to_(&to) {}

  bool reads() const { return from_ != nullptr; }
  // REQUIRES: reads()
  JsonFields& from() { return *from_; }

  template <typename T, typename Low, typename High>
  void Number(const std::string& key, T& value, Low low, High high, Presence presence = kRequired) {
    if (!Handles(key, presence, value != T{})) return;
    if (!reads()) {
      (*to_)[key] = value;
    } else if constexpr (std::is_floating_point_v<T>) {
      value = from_->Double(key, low, high);
    } else {
      value = static_cast<T>(from_->Int(key, low, high));
    }
  }
  void Flag(const std::string& key, bool& value, Presence presence) {
    if (!Handles(key, presence, value)) return;
    reads() ? static_cast<void>(value = from_->BoolOr(key, value)) : static_cast<void>((*to_)[key] = value);
  }
  void Text(const std::string& key, std::string& value, Presence presence = kRequired, size_t max_bytes = std::string::npos) {
    if (!Handles(key, presence, !value.empty())) return;
    if (!reads()) return static_cast<void>((*to_)[key] = value);
    value = from_->String(key);
    if (value.size() > max_bytes) from_->Wrong(key, absl::StrCat("is longer than ", max_bytes, " bytes"));
  }
  // One of `names`. kSparse: the first of them is not written.
  template <typename T, size_t kCount>
  void Named(const std::string& key, T& value, const Names<T, kCount>& names, Presence presence = kRequired) {
    if (!Handles(key, presence, value != names.all[0].first)) return;
    if (!reads()) return static_cast<void>((*to_)[key] = names.Of(value));
    const std::optional<T> named = names.Find(from_->String(key));
    named ? static_cast<void>(value = *named) : from_->Wrong(key, names.NoneOf());
  }

  template <typename T>
  void Object(const std::string& key, T& value, Presence presence = kRequired) {
    if (!Handles(key, presence, true)) return;
    if (!reads()) return static_cast<void>((*to_)[key] = WriteObject(value));
    JsonFields inner(from_->Object(key), absl::StrCat(from_->where(), ".", key));
    JsonList list(inner);
    List(list, value);
    from_->Check(inner.status());
  }
  // An object that may be missing.
  template <typename T>
  void Maybe(const std::string& key, std::optional<T>& value) {
    if (reads() ? !from_->Has(key) : !value.has_value()) return;
    if (reads()) value.emplace();
    Object(key, *value);
  }
  // At most `max_size` objects.
  template <typename T, typename... More>
  void Each(const std::string& key, std::vector<T>& values, size_t max_size, Presence presence = kRequired, const More&... more) {
    if (!Handles(key, presence, true)) return;
    if (!reads()) {
      nlohmann::ordered_json& array = (*to_)[key] = nlohmann::ordered_json::array();
      for (const T& value : values) array.push_back(WriteObject(value, more...));
      return;
    }
    const auto read = [&](JsonFields& fields, const std::string&) { return absl::StatusOr<T>(ReadObject<T>(fields, more...)); };
    absl::StatusOr<std::vector<T>> objects = ReadObjects(*from_, key, max_size, from_->where() + ": ", read);
    objects.ok() ? static_cast<void>(values = *std::move(objects)) : from_->Check(objects.status());
  }
  // Only for writing; the List that calls this reads the field itself, or ignores it.
  void WriteOnly(const std::string& key, nlohmann::ordered_json value) {
    if (to_ != nullptr) (*to_)[key] = std::move(value);
  }

  // fields.status() says whether all fields were valid.
  template <typename T, typename... More>
  static T ReadObject(JsonFields& fields, const More&... more) {
    T value;
    JsonList list(fields);
    List(list, value, more...);
    return value;
  }
  template <typename T, typename... More>
  static nlohmann::ordered_json WriteObject(const T& value, const More&... more) {
    nlohmann::ordered_json object;
    JsonList list(object);
    List(list, const_cast<T&>(value), more...);  // a list that writes does not change it
    return object;
  }

 private:
  bool Handles(const std::string& key, Presence presence, bool worth_writing) const {
    LIME_CHECK((from_ == nullptr) != (to_ == nullptr)) << key;
    return reads() ? presence == kRequired || from_->Has(key) : presence != kSparse || worth_writing;
  }

  JsonFields* const from_ = nullptr;
  nlohmann::ordered_json* const to_ = nullptr;
};

}  // namespace lime
