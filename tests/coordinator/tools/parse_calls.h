// Parses the calls in a text, cut in several ways, and prints what came out.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/tools/tool_call_parser.h"

namespace lime {

// The sizes of the first parts; one more holds the rest.
using Cuts = std::vector<size_t>;

// Adjacent content is one event; so are adjacent arguments. Expects that content and the text of
// calls are the text, if nothing ends early.
inline std::vector<ToolEvent> EventsOf(std::string_view text, ToolCallParser::Options options, const Cuts& cuts = {}) {
  std::string seen;
  ToolEvents events;
  std::string content;
  // Content that came before the text of a call stands in front of it.
  const auto add_content = [&] {
    std::string all;
    for (const ToolEvent& event : events.events()) {
      if (event.kind == ToolEvent::Kind::kContent) all += event.text;
    }
    seen += all.substr(content.size());
    content = all;
  };
  options.on_call_text = [&](std::string_view call) {
    add_content();
    seen += call;
  };
  const bool parallel = options.parallel;
  const auto parser = ToolCallParser::Create(std::move(options));
  std::string_view rest = text;
  for (const size_t size : cuts) {
    parser->Push(rest.substr(0, size), events);
    rest.remove_prefix(std::min(size, rest.size()));
  }
  parser->Push(rest, events);
  parser->Finish(events);
  add_content();
  if (parallel) EXPECT_EQ(seen, text);
  EXPECT_TRUE(text.starts_with(seen)) << seen;
  return events.events();
}

// Content in quotes; a call as NAME(ARGUMENTS), or NAME(ARGUMENTS! if it is incomplete.
inline std::string Describe(const std::vector<ToolEvent>& events) {
  std::string text;
  for (const ToolEvent& event : events) {
    switch (event.kind) {
      case ToolEvent::Kind::kContent:
        text += "'" + event.text + "'";
        break;
      case ToolEvent::Kind::kBegin:
        text += event.text + "(";
        break;
      case ToolEvent::Kind::kArguments:
        text += event.text;
        break;
      case ToolEvent::Kind::kEnd:
        text += event.complete ? ")" : "!";
        break;
    }
  }
  return text;
}

// The same for every cut into two and for single bytes.
inline std::string Parse(std::string_view text, const ToolCallParser::Options& options) {
  const std::vector<ToolEvent> whole = EventsOf(text, options);
  EXPECT_EQ(EventsOf(text, options, Cuts(text.size(), 1)), whole) << text;
  for (size_t cut = 1; cut < text.size(); ++cut) EXPECT_EQ(EventsOf(text, options, {cut}), whole) << text << " cut at " << cut;
  int calls = 0;
  for (const ToolEvent& event : whole) {
    if (event.kind == ToolEvent::Kind::kEnd) EXPECT_EQ(event.call, calls++);
  }
  return Describe(whole);
}

inline std::string Parse(ToolSyntax syntax, std::string_view text) {
  return Parse(text, {.syntax = syntax});
}

}  // namespace lime
