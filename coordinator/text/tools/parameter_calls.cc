// The syntaxes with parameters one by one, as plain text: qwen3-coder, glm, minimax.
#include <algorithm>

#include "coordinator/text/tools/call_reader.h"
#include "coordinator/text/tools/call_text.h"
#include "coordinator/text/tools/json_call_reader.h"
#include "coordinator/text/tools/schema_types.h"
#include "planner/base/json_text.h"

namespace lime {
namespace {

using Step = CallReader::Step;

// A number, true, false or null is not longer. Strings may be.
constexpr size_t kMaxScalar = 64;
constexpr JsonTypes kNested = kArrayType | kObjectType;

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && IsBlank(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsBlank(text.back())) text.remove_suffix(1);
  return text;
}

// Templates print these as Python does, and models repeat that.
std::string_view AsJson(std::string_view text) {
  if (text == "True") return "true";
  if (text == "False") return "false";
  return text == "None" ? "null" : text;
}

// Appends `text` as the inside of a JSON string.
void AppendEscaped(std::string_view text, std::string& json) {
  constexpr std::string_view kHex = "0123456789abcdef";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (c == '\n') {
      json += "\\n";
    } else if (byte < 0x20) {
      json += "\\u00";
      json += kHex[byte / 16];
      json += kHex[byte % 16];
    } else {
      json += c;
    }
  }
}

// Text of a value in, its JSON out. A string passes through as it comes. Another value waits for
// its end, because text that is no JSON becomes a string.
class ParameterValue {
 public:
  void Start(JsonTypes types);
  // Returns JSON that is now certain. Valid until the next call.
  std::string_view Push(std::string_view text, size_t max_waiting_bytes);
  // Returns the rest of the value.
  std::string_view Finish();
  // The text breaks off here. Returns the beginning of the rest.
  std::string_view Break();

 private:
  bool CanBeOther() const;
  std::string_view Escape();

  JsonTypes types_ = kAllTypes;
  bool is_string_ = false;  // certainly, and the opening quote is out
  std::string waiting_;
  std::string json_;  // result of the last call
};

void ParameterValue::Start(JsonTypes types) {
  types_ = types;
  is_string_ = false;
  waiting_.clear();
}

// Whether what waits may still become a value that is no string.
bool ParameterValue::CanBeOther() const {
  if ((types_ & kStringType) == 0) return true;
  if (types_ == kStringType) return false;
  const auto first = std::ranges::find_if_not(waiting_, IsBlank);
  if (first == waiting_.end()) return waiting_.size() <= kMaxScalar;
  if (*first == '{') return (types_ & kObjectType) != 0;
  if (*first == '[') return (types_ & kArrayType) != 0;
  return (types_ & ~(kStringType | kNested)) != 0 && waiting_.size() <= kMaxScalar;
}

std::string_view ParameterValue::Escape() {
  json_ = is_string_ ? "" : "\"";
  is_string_ = true;
  AppendEscaped(waiting_, json_);
  waiting_.clear();
  return json_;
}

std::string_view ParameterValue::Push(std::string_view text, size_t max_waiting_bytes) {
  waiting_ += text;
  if (!is_string_ && CanBeOther() && waiting_.size() <= max_waiting_bytes) return {};
  return Escape();
}

std::string_view ParameterValue::Finish() {
  if (!is_string_ && types_ != kStringType) {
    const std::string_view text = AsJson(Trimmed(waiting_));
    const auto value = ParseJson(text, "value");
    const JsonTypes type = value.ok() ? TypeOf(value->type()) : JsonTypes{0};
    // Where a string is possible, quotes belong to it, and text of no other type is one.
    const bool is_other = (types_ & kStringType) == 0 ? type != 0 : (type & types_ & ~kStringType) != 0;
    if (is_other) return json_ = text;
  }
  Escape();
  json_ += '"';
  return json_;
}

std::string_view ParameterValue::Break() {
  if (is_string_ || types_ == kStringType) return Escape();
  return json_ = waiting_;
}

// The longest beginning of `mark` with which `text` ends.
size_t Overlap(std::string_view text, std::string_view mark) {
  size_t length = std::min(text.size(), mark.size());
  while (length > 0 && !text.ends_with(mark.substr(0, length))) --length;
  return length;
}

class ParameterReader final : public CallReader {
 public:
  ParameterReader(const ParameterTags& tags, CallWriter& calls, const ToolFunctions* functions, size_t max_waiting_bytes)
      : tags_(tags),
        line_and_end_("\n" + std::string(tags.value_end)),
        calls_(calls),
        functions_(functions),
        max_waiting_bytes_(max_waiting_bytes) {}

  void Start() override { Go(State::kStart); }

  Step Read(char c) override {
    switch (state_) {
      case State::kValue:
        return ReadValue(c);
      case State::kName:
        return ReadName(c);
      case State::kKey:
        return ReadKey(c);
      default:
        break;
    }
    if (word_.empty() && IsBlank(c)) return IsInTag() ? Step::kRefused : Step::kUndecided;
    if (state_ == State::kStart && tags_.name.empty()) return BeginName(), ReadName(c);
    word_ += c;
    return ReadTag();
  }

  void Flush() override {
    if (state_ == State::kValue) calls_.Arguments(value_.Break());
  }

  bool IsClosing() const override { return state_ == State::kAfterCall; }

 private:
  enum class State {
    kStart,      // the tag in front of the name follows
    kName,       // of the function
    kNameEnd,    // the rest of the tag behind it
    kBetween,    // a parameter or the end of the function follows
    kKey,        // of the parameter
    kKeyEnd,     // the rest of the tag behind it
    kAfterKey,   // the tag in front of the value follows
    kValue,      // until the tag behind it
    kAfterCall,  // the tag that closes the calls may follow
  };

  // Whether the first byte of the tag was read by another state.
  bool IsInTag() const { return state_ == State::kNameEnd || state_ == State::kKeyEnd; }

  void Go(State state) {
    state_ = state;
    word_.clear();
  }

  // `word_` has to become the tag that the state waits for.
  Step ReadTag() {
    switch (state_) {
      case State::kStart:
        return ReadTag(tags_.name, &ParameterReader::BeginName);
      case State::kNameEnd:
        return ReadTag(tags_.name_end, &ParameterReader::EndName);
      case State::kKeyEnd:
        return ReadTag(tags_.key_end, &ParameterReader::EndKey);
      case State::kAfterKey:
        return ReadTag(tags_.value, &ParameterReader::BeginValue);
      case State::kAfterCall:
        return ReadTag(tags_.outer_end, &ParameterReader::EndCall);
      default:
        break;
    }
    if (tags_.key.starts_with(word_)) return ReadTag(tags_.key, &ParameterReader::BeginKey);
    return ReadTag(tags_.function_end, &ParameterReader::EndFunction);
  }

  Step ReadTag(std::string_view tag, Step (ParameterReader::*then)()) {
    if (!tag.starts_with(word_)) return Step::kRefused;
    return word_ == tag ? (this->*then)() : Step::kUndecided;
  }

  Step BeginName() {
    Go(State::kName);
    return Step::kUndecided;
  }

  Step ReadName(char c) {
    if (!tags_.name_end.empty() && c == tags_.name_end[0]) return KeepName(), BeginTag(State::kNameEnd, c);
    if (tags_.name_end.empty() && (IsBlank(c) || c == '<')) return EndBareName(c);
    if (!IsNameCharacter(c) || word_.size() >= kMaxFunctionName) return Step::kRefused;
    word_ += c;
    return Step::kUndecided;
  }

  void KeepName() {
    name_ = word_;
    parameters_ = 0;
  }

  // `c` is the first byte of the tag behind what was read.
  Step BeginTag(State state, char c) {
    Go(state);
    word_ += c;
    return ReadTag();
  }

  Step EndName() {
    if (name_.empty()) return Step::kRefused;
    Go(State::kBetween);
    return Step::kUndecided;
  }

  Step EndBareName(char c) {
    KeepName();
    const Step step = EndName();
    if (step == Step::kRefused || IsBlank(c)) return step;
    return BeginTag(State::kBetween, c);
  }

  Step BeginKey() {
    Go(State::kKey);
    return Step::kUndecided;
  }

  Step ReadKey(char c) {
    if (c == tags_.key_end[0]) {
      key_ = word_;
      return BeginTag(State::kKeyEnd, c);
    }
    if (c == '\n' || c == '<' || word_.size() >= kMaxParameterKey) return Step::kRefused;
    word_ += c;
    return Step::kUndecided;
  }

  Step EndKey() {
    if (key_.empty()) return Step::kRefused;
    if (tags_.value.empty()) return BeginValue();
    Go(State::kAfterKey);
    return Step::kUndecided;
  }

  Step BeginValue() {
    if (parameters_ == 0) calls_.Begin(name_);
    std::string json = parameters_++ == 0 ? "{\"" : ", \"";
    AppendEscaped(key_, json);
    calls_.Arguments(json + "\": ");
    const ToolFunction* function = functions_ == nullptr ? nullptr : FindFunction(*functions_, name_);
    value_.Start(function == nullptr ? kAllTypes : TypesOfArgument(function->parameters, key_));
    text_.clear();
    is_first_ = tags_.has_lines;
    Go(State::kValue);
    return Step::kDecided;
  }

  // With lines, one line feed on each side of the value belongs to the tags.
  Step ReadValue(char c) {
    if (is_first_ && c == '\n') {
      is_first_ = false;
      return Step::kDecided;
    }
    is_first_ = false;
    text_ += c;
    if (text_.ends_with(tags_.value_end)) return EndValue();
    const size_t waits = std::max(Overlap(text_, tags_.value_end), tags_.has_lines ? Overlap(text_, line_and_end_) : 0);
    calls_.Arguments(value_.Push(std::string_view(text_).substr(0, text_.size() - waits), max_waiting_bytes_));
    text_.erase(0, text_.size() - waits);
    return Step::kDecided;
  }

  Step EndValue() {
    text_.resize(text_.size() - tags_.value_end.size());
    if (tags_.has_lines && text_.ends_with('\n')) text_.pop_back();
    calls_.Arguments(value_.Push(text_, max_waiting_bytes_));
    calls_.Arguments(value_.Finish());
    Go(State::kBetween);
    return Step::kDecided;
  }

  Step EndFunction() {
    if (parameters_ == 0) calls_.Begin(name_);
    calls_.Arguments(parameters_ == 0 ? "{}" : "}");
    calls_.End(/*complete=*/true);
    if (tags_.outer_end.empty()) return Step::kOver;
    Go(State::kAfterCall);
    return Step::kDecided;
  }

  Step EndCall() { return Step::kOver; }

  const ParameterTags& tags_;
  const std::string line_and_end_;
  CallWriter& calls_;
  const ToolFunctions* const functions_;
  const size_t max_waiting_bytes_;
  State state_ = State::kStart;
  std::string word_;  // of a tag, a name or a key
  std::string name_, key_;
  int parameters_ = 0;
  ParameterValue value_;
  std::string text_;  // of the value, which may belong to its end
  bool is_first_ = false;
};

}  // namespace

CallSyntax ParameterCalls(ToolSyntax syntax, CallWriter& calls, const ToolFunctions* functions, size_t max_waiting_bytes) {
  const ParameterTags& tags = *ParameterTagsOf(syntax);
  std::vector<CallMarker> markers = {{tags.outer}};
  if (!tags.name.empty()) markers.push_back({tags.name, /*is_read=*/true});  // the outer tag may be missing
  return {std::move(markers), false, std::make_unique<ParameterReader>(tags, calls, functions, max_waiting_bytes)};
}

}  // namespace lime
