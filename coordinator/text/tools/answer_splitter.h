// Divides the text of an answer into reasoning and content.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace lime {

// Where the reasoning of an answer stands, and where the answer begins.
enum class ThinkingStart {
  kOff,             // all is content, as it comes
  kInside,          // in think tags; the prompt has opened them
  kOpen,            // in think tags; the answer may open them
  kHarmony,         // in messages of harmony; the prompt ends with <|start|>assistant
  kHarmonyContent,  // the same, but the prompt ends within a final message
};
inline bool IsHarmony(ThinkingStart start) {
  return start == ThinkingStart::kHarmony || start == ThinkingStart::kHarmonyContent;
}

// Text in, cut anywhere. Owner: one answer.
class AnswerSplitter {
 public:
  virtual ~AnswerSplitter() = default;

  // Appends what is certain. Reasoning comes before the content of the same text.
  virtual void Push(std::string_view text, std::string& reasoning, std::string& content) = 0;
  // The text is over: appends what waits.
  virtual void Finish(std::string& reasoning, std::string& content) = 0;
  // What follows is content: stop strings, masks and calls begin here. False also while the answer
  // may still open its reasoning.
  virtual bool is_over() const = 0;
  // The answer has opened its reasoning, or began inside it.
  virtual bool has_opened() const = 0;
};

struct SplitterOptions {
  ThinkingStart start = ThinkingStart::kOff;
  // Of harmony. False: reasoning is content, too (--reasoning off).
  bool divides = true;
  // Of harmony. Whether calls are content as they were written, for a ToolCallParser of kHarmony.
  // False: the content has their arguments alone.
  bool keeps_calls = false;
};
std::unique_ptr<AnswerSplitter> MakeAnswerSplitter(const SplitterOptions& options);

}  // namespace lime
