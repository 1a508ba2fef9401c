// Divides an answer of harmony messages (harmony_header.h) into reasoning and content.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "coordinator/text/tools/answer_splitter.h"

namespace lime {

// Messages on the channel analysis are reasoning, those on commentary and final are content, and so
// are calls. Several may alternate; an empty line divides their texts. Marks and headers are dropped; where a model forgets the end of
// a message, the next header ends it. An answer that begins with no header is content.
class HarmonySplitter final : public AnswerSplitter {
 public:
  // REQUIRES: IsHarmony(options.start)
  explicit HarmonySplitter(const SplitterOptions& options);

  void Push(std::string_view text, std::string& reasoning, std::string& content) override;
  void Finish(std::string& reasoning, std::string& content) override;
  bool is_over() const override { return state_ == State::kText && kind_ != Kind::kReasoning; }
  bool has_opened() const override { return true; }

 private:
  enum class State : uint8_t {
    kBegin,   // of a header, whose <|start|> may be missing
    kHeader,  // until <|message|>
    kText,    // until the next mark
  };
  enum class Kind : uint8_t { kReasoning, kContent, kCall };

  void Read(char c);
  void ReadBegin(char c);
  void ReadMark();
  void BeginHeader(std::string_view mark);
  void BeginText();
  void EndText(std::string_view mark);
  void Text(std::string_view text);
  void NoHeader();

  const SplitterOptions options_;
  State state_;
  Kind kind_ = Kind::kContent;
  bool is_new_ = false;         // the message has no text so far
  bool has_reasoning_ = false;  // of any message
  bool has_content_ = false;
  std::string header_;  // behind <|start|>
  std::string mark_;    // the beginning of a mark
  // Those of the Push or Finish that runs.
  std::string* reasoning_ = nullptr;
  std::string* content_ = nullptr;
};

}  // namespace lime
