// Reads a call that is one JSON object: {"name": N, "arguments": {...}}.
#pragma once

#include <string>

#include "coordinator/text/tools/call_reader.h"
#include "coordinator/text/tools/json_scanner.h"

namespace lime {

// The characters of a function's name, and the most of them.
inline bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
}
inline constexpr size_t kMaxFunctionName = 64;

// Keys in any order: "name"; "arguments" or "parameters"; and "id" and "type", which are ignored.
// Arguments before the name wait for it. A string has no escapes: neither keys nor names need them.
// `name_first`: only "type" may stand in front of the name, so that a mask can begin at the name.
class JsonCallReader {
 public:
  explicit JsonCallReader(CallWriter& calls, bool name_first = false) : calls_(calls), name_first_(name_first) {}

  void Start();
  // Of the object, or of blanks in front of it. kOver at its last byte.
  CallReader::Step Read(char c);
  // The open call has all its arguments; only the end of the object is missing.
  bool HasAllArguments() const { return has_arguments_ && state_ != State::kArguments && calls_.is_open(); }
  bool IsWithinWord() const { return state_ == State::kWord || state_ == State::kKey; }

 private:
  enum class State {
    kOpen,
    kNextKey,
    kKey,  // in a string
    kColon,
    kValue,
    kWord,  // in a string
    kArguments,
    kCommaOrEnd,
  };
  using Step = CallReader::Step;

  Step Expect(char c, char expected, State next);
  bool MayHaveKey() const;
  Step ReadKey(char c);
  Step ReadWord(char c);
  Step EndWord();
  Step BeginValue(char c);
  Step BeginArguments();
  Step ReadArguments(char c);
  Step EndObject();

  CallWriter& calls_;
  const bool name_first_;
  State state_ = State::kOpen;
  int keys_ = 0;  // that have ended
  std::string key_;
  std::string word_;
  std::string name_;
  std::string arguments_;  // those that wait for the name
  bool has_arguments_ = false;
  JsonScanner scanner_;
};

}  // namespace lime
