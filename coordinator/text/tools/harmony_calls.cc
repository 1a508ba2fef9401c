// The syntax of gpt-oss: a message with a recipient, whose text is the arguments.
#include <algorithm>

#include "coordinator/text/tools/call_reader.h"
#include "coordinator/text/tools/harmony_header.h"
#include "coordinator/text/tools/json_call_reader.h"

namespace lime {
namespace {

// A header, <|message|>, an object, and the mark that ends the message, which may be missing.
class HarmonyReader final : public CallReader {
 public:
  explicit HarmonyReader(CallWriter& calls) : calls_(calls) {}

  void Start() override {
    state_ = State::kHeader;
    text_.clear();
  }

  Step Read(char c) override {
    switch (state_) {
      case State::kHeader:
        return ReadHeader(c);
      case State::kBeforeArguments:
        return ReadBlank(c);
      case State::kArguments:
        return ReadArguments(c);
      case State::kEnd:
        break;
    }
    return ReadEnd(c);
  }

  bool IsClosing() const override { return state_ == State::kEnd; }

 private:
  enum class State {
    kHeader,           // until <|message|>
    kBeforeArguments,  // blanks
    kArguments,
    kEnd,  // <|call|>, <|end|> or <|return|> may follow
  };

  Step ReadHeader(char c) {
    text_ += c;
    if (text_.size() > kMaxHarmonyHeader + kHarmonyMessage.size()) return Step::kRefused;
    if (!text_.ends_with(kHarmonyMessage)) return Step::kUndecided;
    text_.resize(text_.size() - kHarmonyMessage.size());
    name_ = ReadHarmonyHeader(text_).Function();
    const bool is_name = !name_.empty() && name_.size() <= kMaxFunctionName && std::ranges::all_of(name_, IsNameCharacter);
    state_ = State::kBeforeArguments;
    return is_name ? Step::kUndecided : Step::kRefused;
  }

  Step ReadBlank(char c) {
    if (IsBlank(c)) return Step::kUndecided;
    if (c != '{') return Step::kRefused;
    state_ = State::kArguments;
    scanner_.Reset();
    calls_.Begin(name_);
    return ReadArguments(c);
  }

  Step ReadArguments(char c) {
    const JsonScanner::Step step = scanner_.Read(c);
    if (step == JsonScanner::Step::kRefused) return Step::kRefused;
    calls_.Arguments(std::string_view(&c, 1));
    if (step == JsonScanner::Step::kMore) return Step::kDecided;
    calls_.End(/*complete=*/true);
    state_ = State::kEnd;
    text_.clear();
    return Step::kDecided;
  }

  Step ReadEnd(char c) {
    if (text_.empty() && IsBlank(c)) return Step::kUndecided;
    text_ += c;
    if (EndsHarmonyMessage(text_)) return Step::kOver;
    for (const std::string_view mark : {kHarmonyCall, kHarmonyEnd, kHarmonyReturn}) {
      if (mark.starts_with(text_)) return Step::kUndecided;
    }
    return Step::kRefused;
  }

  CallWriter& calls_;
  State state_ = State::kHeader;
  std::string text_;  // of the header, or of the mark at the end
  std::string name_;
  JsonScanner scanner_;
};

}  // namespace

CallSyntax HarmonyCalls(CallWriter& calls) {
  return {{{kHarmonyChannel, /*is_read=*/true}, {"to=functions.", /*is_read=*/true}}, false, std::make_unique<HarmonyReader>(calls)};
}

}  // namespace lime
