// Finds calls of functions in the text of an answer while it is generated.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/tools/tool_format.h"
#include "coordinator/text/tools/tool_request.h"

namespace lime {

struct ToolEvent {
  enum class Kind {
    kContent,    // text for the user
    kBegin,      // a call begins; `text` is the name of its function
    kArguments,  // the next part of the call's arguments, which are a JSON object
    kEnd,        // the call is over
  };
  Kind kind = Kind::kContent;
  int call = 0;  // index of the call in the answer; 0 for content
  std::string text;
  // Of kEnd: false if the text broke off or stopped being JSON. Then the arguments are cut as well,
  // so that no client takes them for whole.
  bool complete = true;

  bool operator==(const ToolEvent&) const = default;
};

// Events in the order of the text. Adjacent content becomes one event; so do adjacent arguments.
class ToolEvents {
 public:
  void Content(std::string_view text) { Append(ToolEvent::Kind::kContent, 0, text); }
  void Begin(int call, std::string_view name) { events_.push_back({ToolEvent::Kind::kBegin, call, std::string(name)}); }
  void Arguments(int call, std::string_view text) { Append(ToolEvent::Kind::kArguments, call, text); }
  void End(int call, bool complete) { events_.push_back({ToolEvent::Kind::kEnd, call, "", complete}); }

  const std::vector<ToolEvent>& events() const { return events_; }
  bool empty() const { return events_.empty(); }
  void Clear() { events_.clear(); }

 private:
  void Append(ToolEvent::Kind kind, int call, std::string_view text) {
    if (text.empty()) return;
    if (events_.empty() || events_.back().kind != kind) events_.push_back({kind, call});
    events_.back().text += text;
  }

  std::vector<ToolEvent> events_;
};

// Text in, events out. Where the text is cut does not change the events, apart from how content and
// arguments are divided. Without calls, the content is the text as it came. With calls, each byte is
// content, belongs to a call, or is a blank directly beside a call.
//
// Arguments pass through as soon as the name is certain. If a call stops being JSON after that, it
// ends incomplete, and its text from there on is content.
//
// Pure. Owner: one answer.
class ToolCallParser {
 public:
  struct Options {
    ToolSyntax syntax = ToolSyntax::kHermes;
    // Types the values of syntaxes with ParameterTags; others ignore it. Calls of unknown functions are calls.
    // Null: none are known. Outlives the parser.
    const ToolFunctions* functions = nullptr;
    bool parallel = true;  // false: the answer is over after one call
    // The most text that waits until it is certain: more becomes content. Bytes of the answer that
    // max_tokens allows.
    size_t max_waiting_bytes = size_t{1} << 20;
    // Gets the text that belongs to calls as it came, in order with the content: behind the events
    // of this text, before those of later text.
    std::function<void(std::string_view)> on_call_text;
  };
  static std::unique_ptr<ToolCallParser> Create(Options options);
  virtual ~ToolCallParser() = default;

  // Special tokens come as their text, except the token that ends the answer. Characters that come
  // whole come out whole.
  virtual void Push(std::string_view text, ToolEvents& events) = 0;
  // The text is over. Call it once, also after done().
  virtual void Finish(ToolEvents& events) = 0;
  // The answer needs no more text: its one call has ended. Text that follows is ignored.
  virtual bool done() const = 0;
  virtual int calls() const = 0;  // that have begun
};

}  // namespace lime
