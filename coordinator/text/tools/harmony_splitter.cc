#include "coordinator/text/tools/harmony_splitter.h"

#include <algorithm>
#include <array>
#include <utility>

#include "coordinator/text/tools/harmony_header.h"
#include "coordinator/text/tools/json_scanner.h"
#include "coordinator/text/tools/thinking.h"

namespace lime {
namespace {

constexpr std::string_view kRole = "assistant", kTo = "to=";

bool BeginsMark(std::string_view text) {
  constexpr std::array<std::string_view, 7> kAll = {kHarmonyStart, kHarmonyChannel, kHarmonyMessage, kHarmonyConstrain,
                                                    kHarmonyEnd,   kHarmonyReturn,  kHarmonyCall};
  return std::ranges::any_of(kAll, [text](std::string_view mark) { return mark.starts_with(text); });
}

std::string_view WithoutBlanks(std::string_view text) {
  while (!text.empty() && IsBlank(text.front())) text.remove_prefix(1);
  return text;
}

}  // namespace

HarmonySplitter::HarmonySplitter(const SplitterOptions& options)
    : options_(options), state_(options.start == ThinkingStart::kHarmonyContent ? State::kText : State::kBegin) {}

void HarmonySplitter::Text(std::string_view text) {
  const bool is_reasoning = kind_ == Kind::kReasoning && options_.divides;
  std::string& target = is_reasoning ? *reasoning_ : *content_;
  bool& has_text = is_reasoning ? has_reasoning_ : has_content_;
  if (std::exchange(is_new_, false) && has_text) target += "\n\n";
  has_text = true;
  target += text;
}

// What was read as a header is none: it is content, and so is what follows.
void HarmonySplitter::NoHeader() {
  state_ = State::kText;
  kind_ = Kind::kContent;
  Text(std::exchange(header_, {}));
}

void HarmonySplitter::BeginHeader(std::string_view mark) {
  state_ = State::kHeader;
  header_ = mark;
}

void HarmonySplitter::BeginText() {
  state_ = State::kText;
  is_new_ = true;
  std::string_view raw = WithoutBlanks(header_);
  const HarmonyHeader header = ReadHarmonyHeader(raw);
  kind_ = header.channel == "analysis" ? Kind::kReasoning : Kind::kContent;
  if (!header.Function().empty()) kind_ = options_.keeps_calls ? Kind::kCall : Kind::kContent;
  if (kind_ == Kind::kCall) {
    if (raw.starts_with(kRole)) raw = WithoutBlanks(raw.substr(kRole.size()));
    Text(raw);
    Text(kHarmonyMessage);
  }
  header_.clear();
}

void HarmonySplitter::EndText(std::string_view mark) {
  const bool goes_on = mark == kHarmonyMessage || mark == kHarmonyConstrain;
  if (kind_ == Kind::kCall && !goes_on) Text(EndsHarmonyMessage(mark) ? mark : kHarmonyEnd);
  if (mark == kHarmonyChannel) return BeginHeader(mark);
  if (mark == kHarmonyStart) return BeginHeader("");
  if (EndsHarmonyMessage(mark)) {
    state_ = State::kBegin;
    header_.clear();
    return;
  }
  Text(mark);
}

void HarmonySplitter::ReadMark() {
  const std::string mark = std::exchange(mark_, {});
  if (state_ == State::kText) return EndText(mark);
  if (mark == kHarmonyMessage) return BeginText();
  if (mark == kHarmonyStart) return BeginHeader("");
  if (EndsHarmonyMessage(mark)) {  // a message without text
    state_ = State::kBegin;
    header_.clear();
    return;
  }
  state_ = State::kHeader;
  header_ += mark;
}

// Without <|start|>, a header begins with a recipient or a channel.
void HarmonySplitter::ReadBegin(char c) {
  header_ += c;
  const std::string_view text = WithoutBlanks(header_);
  if (text.starts_with(kTo)) {
    state_ = State::kHeader;
  } else if (!kTo.starts_with(text)) {
    NoHeader();
  }
}

void HarmonySplitter::Read(char c) {
  mark_ += c;
  if (BeginsMark(mark_)) {
    if (IsHarmonyMark(mark_)) ReadMark();
    return;
  }
  const std::string text = std::exchange(mark_, {});
  // Only the last byte may begin a mark.
  for (size_t i = 0; i < text.size(); ++i) {
    if (i > 0 && i + 1 == text.size() && BeginsMark(text.substr(i))) {
      mark_ = text.substr(i);
    } else if (state_ == State::kText) {
      Text(std::string_view(text).substr(i, 1));
    } else if (state_ == State::kBegin) {
      ReadBegin(text[i]);
    } else {
      header_ += text[i];
    }
  }
  if (state_ != State::kText && header_.size() > kMaxHarmonyHeader) NoHeader();
}

void HarmonySplitter::Push(std::string_view text, std::string& reasoning, std::string& content) {
  reasoning_ = &reasoning;
  content_ = &content;
  for (const char c : text) Read(c);
}

// A header that breaks off says nothing to anyone; other text may.
void HarmonySplitter::Finish(std::string& reasoning, std::string& content) {
  reasoning_ = &reasoning;
  content_ = &content;
  if (state_ == State::kText && !mark_.empty()) return Text(mark_);
  header_ += mark_;
  if (state_ == State::kBegin && !WithoutBlanks(header_).empty()) NoHeader();
}

std::unique_ptr<AnswerSplitter> MakeAnswerSplitter(const SplitterOptions& options) {
  if (IsHarmony(options.start)) return std::make_unique<HarmonySplitter>(options);
  return std::make_unique<ThinkingSplitter>(options.start);
}

}  // namespace lime
