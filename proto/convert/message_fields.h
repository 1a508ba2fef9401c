// Lists the fields of a message next to those of our type, once for both directions. Also makes
// text safe to send or show.
//
//   static void List(MessageFields& f, LinkProbe& probe, v1::ProbeLinkRequest& m) {
//     f.Text(LIME_FIELD(m, peer), probe.peer, kMaxName);
//     f.Number(LIME_FIELD(m, seconds), probe.seconds, kLeastSeconds, kMaxProbeSeconds);
//   }
//   LIME_CONVERT(LinkProbe, v1::ProbeLinkRequest)  // ToProto and FromProto
#pragma once

#include <google/protobuf/repeated_field.h>

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"
#include "proto/fields.h"

namespace lime {

// Name, getter and setter of the field of a message.
#define LIME_FIELD(m, name) #name, [&]() -> decltype(auto) { return (m.name()); }, [&](const auto& value) { m.set_##name(value); }
// For a message in a message: whether it is set, getter and setter.
// clang-format off
#define LIME_PART(m, name) \
  [&] { return m.has_##name(); }, [&]() -> const auto& { return m.name(); }, [&]() -> auto& { return *m.mutable_##name(); }
// clang-format on

// Visits a list of fields, to write a message or to read one. Input is untrusted: every field has
// bounds, and the first wrong one becomes the error. The source does not change in either
// direction.
//
// A nested message uses its own List, found by the types of both. Additional arguments are passed
// on.
class MessageFields {
 public:
  explicit MessageFields(bool reads) : reads_(reads) {}

  bool reads() const { return reads_; }
  const absl::Status& status() const { return status_; }
  // Keeps the first error.
  void Check(const absl::Status& status) { status_.Update(status); }

  // A field without bounds.
  template <typename Get, typename Set, typename T>
  void Any(const char*, Get get, Set set, T& value) {
    reads_ ? static_cast<void>(value = static_cast<T>(get())) : set(value);
  }
  template <typename Get, typename Set, typename T, typename Low, typename High>
  void Number(const char* field, Get get, Set set, T& value, Low low, High high) {
    if (!reads_) return set(value);
    if constexpr (std::is_floating_point_v<T>) {
      Check(fields::Between(field, get(), low, high));
    } else {
      Check(fields::Within(field, get(), low, high));
    }
    value = static_cast<T>(get());
  }
  template <typename Get, typename Set>
  void Milliseconds(const char* field, Get get, Set set, double& value) {
    if (!reads_) return set(value);
    Check(fields::Milliseconds(field, value = get()));
  }
  template <typename Get, typename Set, typename T>
  void Enum(const char* field, Get get, Set set, T& value, T last) {
    if (!reads_) return set(static_cast<uint32_t>(value));
    Check(fields::Within(field, get(), 0, static_cast<int64_t>(last)));
    value = static_cast<T>(get());
  }
  // Sent as value + 1, because 0 is not sent. The least value is -1.
  template <typename Get, typename Set>
  void PlusOne(const char* field, Get get, Set set, int32_t& value, int64_t most) {
    if (!reads_) return set(value + 1);
    Check(fields::Within(field, get(), 0, most));
    value = static_cast<int32_t>(int64_t{get()} - 1);
  }
  // Text without control characters, at most `most` bytes. `clean` makes such a text of any text
  // before sending.
  template <typename Get, typename Set>
  void Text(const char* field, Get get, Set set, std::string& value, size_t most, std::string (*clean)(std::string_view) = nullptr) {
    if (!reads_) return set(clean == nullptr ? value : clean(value));
    Check(fields::Printable(field, get(), most));
    value = get();
  }
  // Bytes, `low` to `high` of them.
  template <typename Get, typename Set>
  void Data(const char* field, Get get, Set set, std::string& value, int64_t low, int64_t high) {
    if (!reads_) return set(value);
    Check(fields::Within(field, std::ssize(get()), low, high));
    value = get();
  }
  // JSON of `value`, `low` to `high` bytes.
  template <typename Get, typename Set, typename T, typename Parse>
  void Json(const char* field, Get get, Set set, T& value, int64_t low, int64_t high, Parse parse) {
    if (!reads_) return set(ToJsonText(value));
    Check(fields::Within(field, std::ssize(get()), low, high));
    if (!status_.ok()) return;
    absl::StatusOr<T> parsed = parse(get());
    Check(parsed.status());
    if (parsed.ok()) value = *std::move(parsed);
  }

  // A block that is possible in some model.
  template <typename GetKind, typename SetKind, typename GetLayer, typename SetLayer>
  void Block(const char* kind, GetKind get_kind, SetKind set_kind, const char* layer, GetLayer get_layer, SetLayer set_layer, BlockId& id) {
    Enum(kind, get_kind, set_kind, id.kind, kBlockKinds.back().kind);
    const bool layered = status_.ok() && IsLayered(id.kind);
    Number(layer, get_layer, set_layer, id.layer, 0, layered ? fields::kMaxLayer : 0);
  }

  template <typename Has, typename Get, typename Set, typename T, typename... More>
  void Part(Has, Get get, Set set, T& value, const More&... more) {
    List(*this, value, reads_ ? Unchanged(get()) : set(), more...);
  }
  template <typename Has, typename Get, typename Set, typename T, typename... More>
  void Maybe(Has has, Get get, Set set, std::optional<T>& value, const More&... more) {
    if (reads_ && has()) value.emplace();
    if (value) Part(has, get, set, *value, more...);
  }
  // A message of one of several kinds; our type is a variant.
  template <typename T, typename Has, typename Get, typename Set, typename Variant>
  void Case(Has has, Get get, Set set, Variant& value) {
    if (reads_ ? !has() : !std::holds_alternative<T>(value)) return;
    known_ = false;  // for the kinds within it
    if (reads_) value = T{};
    Part(has, get, set, std::get<T>(value));
    known_ = true;
  }
  // Call after all kinds: an error if it was none of them.
  void NoOther(std::string_view sentence) {
    if (reads_ && !known_) Check(fields::Wrong(std::string(sentence)));
  }

  // `low` to `high` elements, each converted by `one`.
  template <typename T, typename M, typename One>
  void EachBy(const char* field, std::vector<T>& values, google::protobuf::RepeatedPtrField<M>* parts, int64_t low, int64_t high, One one) {
    if (!reads_) {
      for (T& value : values) one(value, *parts->Add());
      return;
    }
    Check(fields::Within(field, parts->size(), low, high));
    for (int i = 0; i < parts->size() && status_.ok(); ++i) one(values.emplace_back(), *parts->Mutable(i));
  }
  template <typename T, typename M, typename... More>
  void Each(const char* field, std::vector<T>& values, google::protobuf::RepeatedPtrField<M>* parts, int64_t low, int64_t high,
            const More&... more) {
    EachBy(field, values, parts, low, high, [&](T& value, M& part) { List(*this, value, part, more...); });
  }
  // `low` to `high` numbers from `least` to `most`. `ascending`: each is greater than the one
  // before.
  void Numbers(const char* field, std::vector<int32_t>& values, google::protobuf::RepeatedField<int32_t>* numbers, int64_t low,
               int64_t high, int64_t least, int64_t most, bool ascending) {
    if (!reads_) return numbers->Add(values.begin(), values.end());
    Check(fields::Within(field, numbers->size(), low, high));
    for (int i = 0; i < numbers->size() && status_.ok(); ++i) {
      Check(fields::Within(field, numbers->Get(i), least, most));
      if (ascending) least = int64_t{numbers->Get(i)} + 1;
      values.push_back(numbers->Get(i));
    }
  }
  void Ascending(const char* field, std::vector<int32_t>& values, google::protobuf::RepeatedField<int32_t>* numbers, int64_t count) {
    Numbers(field, values, numbers, 0, count, 0, count - 1, true);
  }

 private:
  template <typename M>
  static M& Unchanged(const M& part) {
    return const_cast<M&>(part);  // reading does not change it
  }

  const bool reads_;
  bool known_ = false;
  absl::Status status_;
};

template <typename T, typename M>
void WriteMessage(const T& from, M& message) {
  MessageFields f(/*reads=*/false);
  List(f, const_cast<T&>(from), message);  // writing does not change it
}

template <typename T, typename M>
absl::StatusOr<T> ReadMessage(const M& message) {
  MessageFields f(/*reads=*/true);
  T read{};
  List(f, read, const_cast<M&>(message));
  if (!f.status().ok()) return f.status();
  return read;
}

#define LIME_CONVERT(Type, Message)                     \
  void ToProto(const Type& from, Message& to) {         \
    WriteMessage(from, to);                             \
  }                                                     \
  absl::StatusOr<Type> FromProto(const Message& from) { \
    return ReadMessage<Type>(from);                     \
  }

}  // namespace lime
