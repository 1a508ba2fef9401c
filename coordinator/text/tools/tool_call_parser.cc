#include "coordinator/text/tools/tool_call_parser.h"

#include <algorithm>
#include <string>
#include <utility>

#include "coordinator/text/tools/call_reader.h"

namespace lime {
namespace {

constexpr size_t kMostBlanks = 32;  // in front of a call; more are content at once, so that stop strings see them

// Between calls it looks for a marker; behind one it asks the reader of the syntax about each byte.
// Text that turns out to be no call is searched again, without its first byte.
class Parser final : public ToolCallParser {
 public:
  explicit Parser(Options options);

  void Push(std::string_view text, ToolEvents& events) override;
  void Finish(ToolEvents& events) override;
  bool done() const override { return !options_.parallel && calls_.has_complete(); }
  int calls() const override { return calls_.begun(); }

 private:
  void Read(char c);
  void ReadContent(char c);
  void ReadCall(char c);
  bool SeesMarkers() const;
  bool BeginsMarker() const;
  void Begin(const CallMarker& marker);
  void Decide(bool over);
  void Refuse();
  void SearchAgain(size_t from);
  void Content(std::string_view text);

  const Options options_;
  CallWriter calls_;
  CallSyntax syntax_;
  ToolEvents* events_ = nullptr;

  bool at_start_ = true;      // only blanks so far
  bool after_call_ = false;   // only blanks since the last call
  bool is_reading_ = false;   // the reader reads
  bool has_decided_ = false;  // the reader has found a call behind this marker
  std::string blanks_;        // these wait in front of waiting_
  std::string waiting_;       // the beginning of a marker, or what the reader has not decided
  std::string again_;         // comes before the rest of the text
  size_t again_at_ = 0;
};

CallSyntax MakeSyntax(const ToolCallParser::Options& options, CallWriter& calls) {
  switch (options.syntax) {
    case ToolSyntax::kQwen3Coder:
    case ToolSyntax::kGlm:
    case ToolSyntax::kMiniMax:
      return ParameterCalls(options.syntax, calls, options.functions, options.max_waiting_bytes);
    case ToolSyntax::kLlama3:
      return Llama3Calls(calls);
    case ToolSyntax::kMistral:
      return MistralCalls(calls);
    case ToolSyntax::kHarmony:
      return HarmonyCalls(calls);
    case ToolSyntax::kHermes:
      break;
  }
  return HermesCalls(calls);
}

Parser::Parser(Options options) : options_(std::move(options)), syntax_(MakeSyntax(options_, calls_)) {}

void Parser::Content(std::string_view text) {
  if (text.empty()) return;
  after_call_ = false;
  events_->Content(text);
}

// Without `parallel` a call that ended incomplete was the only one.
bool Parser::SeesMarkers() const {
  return (at_start_ || !syntax_.at_start) && (options_.parallel || calls_.begun() == 0);
}

bool Parser::BeginsMarker() const {
  return std::ranges::any_of(syntax_.markers, [this](const CallMarker& marker) { return marker.text.starts_with(waiting_); });
}

// What waits is searched again from byte `from` on.
void Parser::SearchAgain(size_t from) {
  if (again_at_ < again_.size()) {  // all that waits came from there
    again_at_ -= waiting_.size() - from;
  } else {
    again_ = waiting_.substr(from);
    again_at_ = 0;
  }
  waiting_.clear();
}

// What waits does not begin a call. Its first byte is content.
void Parser::Refuse() {
  Content(blanks_);
  blanks_.clear();
  at_start_ = false;
  Content(std::string_view(waiting_).substr(0, 1));
  SearchAgain(1);
}

void Parser::Decide(bool over) {
  if (options_.on_call_text) options_.on_call_text(blanks_ + waiting_);
  blanks_.clear();
  waiting_.clear();
  has_decided_ = true;
  at_start_ = false;
  is_reading_ = !over;
  after_call_ = over;
}

void Parser::Begin(const CallMarker& marker) {
  is_reading_ = true;
  has_decided_ = false;
  syntax_.reader->Start();
  if (!marker.is_read) return;
  for (const char c : marker.text) syntax_.reader->Read(c);
}

void Parser::ReadCall(char c) {
  waiting_ += c;
  const CallReader::Step step = syntax_.reader->Read(c);
  if (step == CallReader::Step::kDecided || step == CallReader::Step::kOver) return Decide(step == CallReader::Step::kOver);
  if (step == CallReader::Step::kUndecided && waiting_.size() <= options_.max_waiting_bytes) return;
  is_reading_ = false;
  if (!has_decided_) return Refuse();
  after_call_ = true;
  if (calls_.is_open()) {
    after_call_ = syntax_.reader->HasAllArguments();
    calls_.End(after_call_);
  }
  SearchAgain(0);
}

void Parser::ReadContent(char c) {
  const bool sees_markers = SeesMarkers();
  if (waiting_.empty() && IsBlank(c) && (sees_markers || after_call_)) {
    blanks_ += c;
    if (blanks_.size() >= kMostBlanks && !after_call_ && !(at_start_ && syntax_.at_start)) Content(std::exchange(blanks_, {}));
    return;
  }
  waiting_ += c;
  if (!sees_markers || !BeginsMarker()) return Refuse();
  for (const CallMarker& marker : syntax_.markers) {
    if (marker.text == waiting_) return Begin(marker);
  }
}

void Parser::Read(char c) {
  if (is_reading_) {
    ReadCall(c);
  } else {
    ReadContent(c);
  }
}

void Parser::Push(std::string_view text, ToolEvents& events) {
  events_ = &events;
  calls_.WriteTo(&events);
  for (size_t at = 0; !done();) {
    if (again_at_ < again_.size()) {
      Read(again_[again_at_++]);
    } else if (at < text.size()) {
      Read(text[at++]);
    } else {
      return;
    }
  }
}

void Parser::Finish(ToolEvents& events) {
  if (done()) return;
  events_ = &events;
  calls_.WriteTo(&events);
  bool is_of_call = after_call_ && waiting_.empty();
  if (is_reading_ && has_decided_) {
    is_of_call = calls_.is_open() || syntax_.reader->IsClosing();
    if (calls_.is_open()) {
      syntax_.reader->Flush();
      calls_.End(syntax_.reader->HasAllArguments());
    }
  }
  if (is_of_call) return Decide(/*over=*/true);
  Content(blanks_);
  Content(waiting_);
}

}  // namespace

std::unique_ptr<ToolCallParser> ToolCallParser::Create(Options options) {
  return std::make_unique<Parser>(std::move(options));
}

}  // namespace lime
