// Reads the text of calls behind a marker, in one syntax.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/tools/json_scanner.h"
#include "coordinator/text/tools/tool_call_parser.h"
#include "coordinator/text/tools/tool_request.h"

namespace lime {

// Counts the calls of an answer and writes their events.
class CallWriter {
 public:
  void WriteTo(ToolEvents* events) { events_ = events; }
  void Begin(std::string_view name) {
    is_open_ = true;
    events_->Begin(begun_++, name);
  }
  void Arguments(std::string_view text) { events_->Arguments(begun_ - 1, text); }
  void End(bool complete) {
    is_open_ = false;
    has_complete_ |= complete;
    events_->End(begun_ - 1, complete);
  }

  bool is_open() const { return is_open_; }
  int begun() const { return begun_; }
  bool has_complete() const { return has_complete_; }

 private:
  ToolEvents* events_ = nullptr;
  int begun_ = 0;
  bool is_open_ = false;
  bool has_complete_ = false;
};

// Reads one call, or several that a syntax joins. It is handed one byte at a time.
class CallReader {
 public:
  enum class Step {
    kUndecided,  // the byte waits, like all bytes since the last decision
    kDecided,    // the bytes that waited and this one belong to calls
    kOver,       // as kDecided; content follows
    kRefused,    // the bytes that waited and this one belong to no call
  };
  virtual ~CallReader() = default;

  virtual void Start() = 0;  // a marker has ended
  virtual Step Read(char c) = 0;
  // The text ends within a call: writes what waits of its arguments.
  virtual void Flush() {}
  // Whether the open call can end here, since all its arguments are there.
  virtual bool HasAllArguments() const { return false; }
  // Whether the bytes that wait only close calls that are complete.
  virtual bool IsClosing() const = 0;
};

// `text` begins calls. `is_read`: the reader gets this text as well.
struct CallMarker {
  std::string_view text;
  bool is_read = false;
};

// One syntax: where calls begin, and how they go on.
struct CallSyntax {
  std::vector<CallMarker> markers;
  bool at_start = false;  // calls stand only at the beginning of an answer, behind blanks
  std::unique_ptr<CallReader> reader;
};

// `calls` outlives the result; so does `functions`, which may be null.
CallSyntax HermesCalls(CallWriter& calls);
CallSyntax Llama3Calls(CallWriter& calls);
CallSyntax MistralCalls(CallWriter& calls);
CallSyntax HarmonyCalls(CallWriter& calls);
// REQUIRES: the syntax has ParameterTags.
CallSyntax ParameterCalls(ToolSyntax syntax, CallWriter& calls, const ToolFunctions* functions, size_t max_waiting_bytes);

}  // namespace lime
