// The syntax of Qwen3-Coder: parameters one by one, as plain text.
#include <algorithm>

#include "coordinator/text/tools/call_reader.h"
#include "coordinator/text/tools/call_text.h"
#include "coordinator/text/tools/json_call_reader.h"
#include "coordinator/text/tools/schema_types.h"
#include "planner/base/json_text.h"

namespace lime {
namespace {

using Step = CallReader::Step;

constexpr std::string_view kFunction = "<function=", kParameter = "<parameter=", kParameterEnd = "</parameter>",
                           kFunctionEnd = "</function>", kCallEnd = "</tool_call>";

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
  ParameterReader(CallWriter& calls, const ToolFunctions* functions, size_t max_waiting_bytes)
      : calls_(calls), functions_(functions), max_waiting_bytes_(max_waiting_bytes) {}

  void Start() override { Go(State::kStart); }

  Step Read(char c) override {
    if (state_ == State::kValue) return ReadValue(c);
    if (state_ == State::kName) return c == '>' ? EndName() : ReadName(c);
    if (state_ == State::kKey) return c == '>' ? EndKey() : ReadKey(c);
    if (word_.empty() && IsBlank(c)) return Step::kUndecided;
    word_ += c;
    if (state_ == State::kStart) return ReadTag(kFunction, &ParameterReader::BeginName);
    if (state_ == State::kAfterCall) return ReadTag(kCallEnd, &ParameterReader::EndCall);
    if (kParameter.starts_with(word_)) return ReadTag(kParameter, &ParameterReader::BeginKey);
    return ReadTag(kFunctionEnd, &ParameterReader::EndFunction);
  }

  void Flush() override {
    if (state_ == State::kValue) calls_.Arguments(value_.Break());
  }

  bool IsClosing() const override { return state_ == State::kAfterCall; }

 private:
  enum class State {
    kStart,      // <function= follows
    kName,       // of the function, until >
    kBetween,    // <parameter= or </function> follows
    kKey,        // of the parameter, until >
    kValue,      // until </parameter>
    kAfterCall,  // </tool_call> may follow
  };

  void Go(State state) {
    state_ = state;
    word_.clear();
  }

  // `word_` has to become `tag`.
  Step ReadTag(std::string_view tag, Step (ParameterReader::*then)()) {
    if (!tag.starts_with(word_)) return Step::kRefused;
    return word_ == tag ? (this->*then)() : Step::kUndecided;
  }

  Step BeginName() {
    Go(State::kName);
    return Step::kUndecided;
  }

  Step ReadName(char c) {
    if (!IsNameCharacter(c) || word_.size() >= kMaxFunctionName) return Step::kRefused;
    word_ += c;
    return Step::kUndecided;
  }

  Step EndName() {
    if (word_.empty()) return Step::kRefused;
    name_ = word_;
    parameters_ = 0;
    Go(State::kBetween);
    return Step::kUndecided;
  }

  Step BeginKey() {
    Go(State::kKey);
    return Step::kUndecided;
  }

  Step ReadKey(char c) {
    if (c == '\n' || c == '<' || word_.size() >= kMaxParameterKey) return Step::kRefused;
    word_ += c;
    return Step::kUndecided;
  }

  Step EndKey() {
    if (word_.empty()) return Step::kRefused;
    if (parameters_ == 0) calls_.Begin(name_);
    std::string json = parameters_++ == 0 ? "{\"" : ", \"";
    AppendEscaped(word_, json);
    calls_.Arguments(json + "\": ");
    const ToolFunction* function = functions_ == nullptr ? nullptr : FindFunction(*functions_, name_);
    value_.Start(function == nullptr ? kAllTypes : TypesOfArgument(function->parameters, word_));
    text_.clear();
    is_first_ = true;
    Go(State::kValue);
    return Step::kDecided;
  }

  // One line feed on each side of the value belongs to the tags.
  Step ReadValue(char c) {
    if (is_first_ && c == '\n') {
      is_first_ = false;
      return Step::kDecided;
    }
    is_first_ = false;
    text_ += c;
    if (text_.ends_with(kParameterEnd)) return EndValue();
    const size_t waits = std::max(Overlap(text_, kParameterEnd), Overlap(text_, kLineAndEnd));
    calls_.Arguments(value_.Push(std::string_view(text_).substr(0, text_.size() - waits), max_waiting_bytes_));
    text_.erase(0, text_.size() - waits);
    return Step::kDecided;
  }

  Step EndValue() {
    text_.resize(text_.size() - kParameterEnd.size());
    if (text_.ends_with('\n')) text_.pop_back();
    calls_.Arguments(value_.Push(text_, max_waiting_bytes_));
    calls_.Arguments(value_.Finish());
    Go(State::kBetween);
    return Step::kDecided;
  }

  Step EndFunction() {
    if (parameters_ == 0) calls_.Begin(name_);
    calls_.Arguments(parameters_ == 0 ? "{}" : "}");
    calls_.End(/*complete=*/true);
    Go(State::kAfterCall);
    return Step::kDecided;
  }

  Step EndCall() { return Step::kOver; }

  static constexpr std::string_view kLineAndEnd = "\n</parameter>";

  CallWriter& calls_;
  const ToolFunctions* const functions_;
  const size_t max_waiting_bytes_;
  State state_ = State::kStart;
  std::string word_;  // of a tag, a name or a key
  std::string name_;
  int parameters_ = 0;
  ParameterValue value_;
  std::string text_;  // of the value, which may belong to its end
  bool is_first_ = false;
};

}  // namespace

CallSyntax Qwen3CoderCalls(CallWriter& calls, const ToolFunctions* functions, size_t max_waiting_bytes) {
  return {{{"<tool_call>"}, {kFunction, /*is_read=*/true}}, false, std::make_unique<ParameterReader>(calls, functions, max_waiting_bytes)};
}

}  // namespace lime
