#include "coordinator/text/tools/json_call_reader.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace lime {
namespace {

constexpr std::array<std::string_view, 5> kKeys = {"name", "arguments", "parameters", "id", "type"};
constexpr size_t kMaxWord = 64;

bool IsArguments(std::string_view key) {
  return key == "arguments" || key == "parameters";
}

}  // namespace

void JsonCallReader::Start() {
  state_ = State::kOpen;
  name_.clear();
  arguments_.clear();
  has_arguments_ = false;
  keys_ = 0;
}

CallReader::Step JsonCallReader::Expect(char c, char expected, State next) {
  if (c != expected) return Step::kRefused;
  state_ = next;
  return Step::kUndecided;
}

// Refuses at the first byte that no known key has there.
CallReader::Step JsonCallReader::ReadKey(char c) {
  if (c != '"') {
    key_ += c;
    const bool known = std::ranges::any_of(kKeys, [this](std::string_view key) { return key.starts_with(key_); });
    return known ? Step::kUndecided : Step::kRefused;
  }
  state_ = State::kColon;
  return MayHaveKey() ? Step::kUndecided : Step::kRefused;
}

// Whether `key_` may be the next key.
bool JsonCallReader::MayHaveKey() const {
  if (name_first_ && name_.empty() && key_ != "name" && (key_ != "type" || keys_ > 0)) return false;
  return std::ranges::find(kKeys, key_) != kKeys.end();
}

CallReader::Step JsonCallReader::BeginValue(char c) {
  if (IsArguments(key_)) {
    if (c != '{' || has_arguments_) return Step::kRefused;
    return BeginArguments();
  }
  word_.clear();
  return Expect(c, '"', State::kWord);
}

CallReader::Step JsonCallReader::ReadWord(char c) {
  if (c == '"') return EndWord();
  if (c == '\\' || static_cast<unsigned char>(c) < 0x20 || word_.size() >= kMaxWord) return Step::kRefused;
  if (key_ == "name" && !IsNameCharacter(c)) return Step::kRefused;
  word_ += c;
  return Step::kUndecided;
}

CallReader::Step JsonCallReader::EndWord() {
  state_ = State::kCommaOrEnd;
  ++keys_;
  if (key_ == "type" && word_ != "function") return Step::kRefused;
  if (key_ != "name") return Step::kUndecided;
  if (word_.empty() || !name_.empty()) return Step::kRefused;
  name_ = word_;
  if (!has_arguments_) return Step::kUndecided;
  calls_.Begin(name_);
  calls_.Arguments(arguments_);
  return Step::kDecided;
}

CallReader::Step JsonCallReader::BeginArguments() {
  state_ = State::kArguments;
  has_arguments_ = true;
  scanner_.Reset();
  if (!name_.empty()) calls_.Begin(name_);
  return ReadArguments('{');
}

CallReader::Step JsonCallReader::ReadArguments(char c) {
  const JsonScanner::Step step = scanner_.Read(c);
  if (step == JsonScanner::Step::kRefused) return Step::kRefused;
  if (step == JsonScanner::Step::kOver) state_ = State::kCommaOrEnd;
  if (name_.empty()) {
    arguments_ += c;
    return Step::kUndecided;
  }
  calls_.Arguments(std::string_view(&c, 1));
  return Step::kDecided;
}

CallReader::Step JsonCallReader::EndObject() {
  if (!calls_.is_open()) return Step::kRefused;
  calls_.End(/*complete=*/true);
  return Step::kOver;
}

CallReader::Step JsonCallReader::Read(char c) {
  if (state_ == State::kArguments) return ReadArguments(c);
  if (state_ == State::kWord) return ReadWord(c);
  if (state_ == State::kKey) return ReadKey(c);
  if (IsBlank(c)) return Step::kUndecided;
  switch (state_) {
    case State::kOpen:
      return Expect(c, '{', State::kNextKey);
    case State::kNextKey:
      key_.clear();
      return Expect(c, '"', State::kKey);
    case State::kColon:
      return Expect(c, ':', State::kValue);
    case State::kValue:
      return BeginValue(c);
    default:
      return c == '}' ? EndObject() : Expect(c, ',', State::kNextKey);
  }
}

}  // namespace lime
