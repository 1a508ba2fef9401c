// How an answer that has to call a function is written: what a mask allows.
#pragma once

#include <string>
#include <vector>

#include "coordinator/text/tools/tool_format.h"
#include "coordinator/text/tools/tool_request.h"

namespace lime {

// One argument of a call whose syntax has ParameterTags: prefix, value, suffix. A value of a type that allows strings
// alone stands there as it is, any other as JSON; it cannot hold the suffix.
struct ParameterFrame {
  std::string key;
  std::string prefix;
  bool is_required = false;  // others may be left out
  std::string suffix;
};

// A call of one function.
struct CallFrame {
  const ToolFunction* function = nullptr;
  std::string prefix;  // ends where the arguments begin
  // False: the arguments are one JSON value by the schema `function->parameters`. True: they are
  // `parameters`, in this order.
  bool by_parameter = false;
  std::vector<ParameterFrame> parameters;
  std::string suffix;
  // In front of the prefix and behind the suffix; each may be missing.
  std::string outer_prefix, outer_suffix;
};

// With tool_choice auto, the mask begins behind this text.
struct MaskStart {
  std::string text;
  bool at_start = false;    // counts only as the beginning of the content, behind blanks
  bool any_blanks = false;  // it is the beginning of JSON: blanks outside of strings do not count
  size_t frame_bytes = 0;   // so many bytes of `opening` and the prefix are part of it
};

// opening call separator call ... closing; a call is one of the alternatives.
//
// With tool_choice auto the mask begins wherever the parser sees a call, so each spelling of the
// beginning that the parser takes has a start and an alternative that goes on from it.
struct CallFrames {
  std::string opening, separator, closing;
  std::vector<CallFrame> alternatives;
  bool one_call = false;       // otherwise any number, but at least one
  bool ends_may_lack = false;  // opening and closing may be missing
  std::vector<MaskStart> starts;
};

// The calls that `request` allows in this format. The request outlives the result.
// Errors: InvalidArgument if the syntax cannot write a required parameter of a function.
// REQUIRES: the request has functions and a choice other than kNone.
absl::StatusOr<CallFrames> FrameCalls(const ToolFormat& format, const ToolRequest& request);

}  // namespace lime
