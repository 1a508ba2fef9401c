#include "coordinator/api/requests/request_json.h"

#include <cmath>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "planner/base/json_text.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

// Builds a tree from the parser's events, and stops at the first bound. nlohmann's own builder looks
// through all keys of an object for each new one.
class TreeBuilder : public Json::json_sax_t {
 public:
  bool null() override { return Add(nullptr) != nullptr; }
  bool boolean(bool value) override { return Add(value) != nullptr; }
  bool number_integer(int64_t value) override { return Add(value) != nullptr; }
  bool number_unsigned(uint64_t value) override { return Add(value) != nullptr; }
  bool number_float(double value, const std::string&) override { return Add(value) != nullptr; }
  bool string(std::string& value) override { return Add(std::move(value)) != nullptr; }
  bool binary(Json::binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(std::string& key) override {
    Level& level = levels_.back();
    if (++level.keys > kMaxObjectKeys) return Stop(absl::StrCat("has an object of more than ", kMaxObjectKeys, " keys; send fewer"));
    Entries& entries = level.value->get_ref<Json::object_t&>();
    const size_t at = level.Find(key, entries);
    if (at == entries.size()) {
      level.Note(key, entries);
      entries.emplace_back(std::move(key), nullptr);
    }
    next_ = &entries[at].second;
    return true;
  }

  bool parse_error(size_t byte, const std::string&, const nlohmann::detail::exception& error) override {
    constexpr int kNumberOutOfRange = 406;
    return error.id == kNumberOutOfRange ? Stop("holds a number beyond the range of a double; send a smaller one") : StopAt(byte);
  }
  bool StopAt(size_t byte) { return Stop(absl::StrCat("is not valid JSON in UTF-8 at byte ", byte, "; send one JSON object")); }

  Json& tree() { return tree_; }
  const std::string& problem() const { return problem_; }

 private:
  using Entries = Json::object_t::Container;

  struct Level {
    Json* value = nullptr;
    size_t keys = 0;  // also those that were there before
    // Where the keys of an object are, once there are many.
    std::unique_ptr<absl::flat_hash_map<std::string, size_t>> places;

    static constexpr size_t kFew = 16;

    size_t Find(const std::string& key, const Entries& entries) const {
      if (places != nullptr) {
        const auto found = places->find(key);
        return found == places->end() ? entries.size() : found->second;
      }
      size_t at = 0;
      while (at < entries.size() && entries[at].first != key) ++at;
      return at;
    }
    // `key` comes behind `entries`.
    void Note(const std::string& key, const Entries& entries) {
      if (places == nullptr && entries.size() < kFew) return;
      if (places == nullptr) {
        places = std::make_unique<absl::flat_hash_map<std::string, size_t>>();
        for (size_t i = 0; i < entries.size(); ++i) places->emplace(entries[i].first, i);
      }
      places->emplace(key, entries.size());
    }
  };

  // Null if there are too many.
  Json* Add(Json value) {
    if (++values_ > kMaxBodyValues) {
      Stop(absl::StrCat("has more than ", kMaxBodyValues, " values; send fewer"));
      return nullptr;
    }
    if (levels_.empty()) {
      tree_ = std::move(value);
      return &tree_;
    }
    Json& parent = *levels_.back().value;
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    *next_ = std::move(value);
    return next_;
  }
  bool Open(Json value) {
    if (levels_.size() == kMaxBodyDepth) return Stop(absl::StrCat("nests more than ", kMaxBodyDepth, " levels deep; send it flatter"));
    Json* added = Add(std::move(value));
    if (added == nullptr) return false;
    levels_.push_back({.value = added});
    return true;
  }
  bool Close() {
    levels_.pop_back();
    return true;
  }
  bool Stop(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }

  Json tree_;
  std::vector<Level> levels_;
  Json* next_ = nullptr;  // the value of the last key
  int64_t values_ = 0;
  std::string problem_;
};

// Whether `text` is JSON, and then `builder` has it. nlohmann takes a zero byte for the end of a text.
bool Read(std::string_view text, TreeBuilder& builder) {
  const size_t zero = text.find('\0');
  return zero == std::string_view::npos ? Json::sax_parse(text.begin(), text.end(), &builder) : builder.StopAt(zero + 1);
}

}  // namespace

ApiResult<Json> ParseBody(std::string_view body) {
  if (body.find_first_not_of(" \t\r\n") == std::string_view::npos) return InvalidJson("is empty; send a JSON object");
  TreeBuilder builder;
  if (!Read(body, builder)) return InvalidJson(builder.problem());
  if (!builder.tree().is_object()) {
    ApiError error = InvalidJson(absl::StrCat("has to be a JSON object, but is ", Text(KindOf(builder.tree()))));
    error.code = "invalid_type";
    return error;
  }
  return std::move(builder.tree());
}

std::optional<Json> ParseJsonText(std::string_view text) {
  TreeBuilder builder;
  if (!Read(text, builder) || !builder.tree().is_object()) return std::nullopt;
  return std::move(builder.tree());
}

std::string_view KindOf(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return "an integer";
    case Json::value_t::number_float:
      return "a decimal number";
    default:
      return "something else";
  }
}

bool IsBeyondIntegers(const Json& value) {
  return value.is_number_float() && std::abs(value.get<double>()) >= 0x1p63;
}

}  // namespace lime
