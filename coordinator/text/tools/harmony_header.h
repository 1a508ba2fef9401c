// The messages of gpt-oss's harmony format: what their headers say.
//
//   <|start|>assistant<|channel|>analysis<|message|>TEXT<|end|>
//   <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
//   <|start|>assistant<|channel|>final<|message|>TEXT<|return|>
//
// The prompt ends with <|start|>assistant, so an answer begins within a header.
#pragma once

#include <cstddef>
#include <string_view>

namespace lime {

inline constexpr std::string_view kHarmonyStart = "<|start|>", kHarmonyChannel = "<|channel|>", kHarmonyMessage = "<|message|>",
                                  kHarmonyConstrain = "<|constrain|>", kHarmonyEnd = "<|end|>", kHarmonyReturn = "<|return|>",
                                  kHarmonyCall = "<|call|>";

// Longer text in front of <|message|> is no header.
inline constexpr size_t kMaxHarmonyHeader = 256;

// Whether a chat template writes such messages.
bool IsHarmonyTemplate(std::string_view source);

// Whether the text is one of the marks above, and whether it ends a message.
bool IsHarmonyMark(std::string_view text);
bool EndsHarmonyMessage(std::string_view mark);

// Views into the header. Empty: the header says nothing of it.
struct HarmonyHeader {
  std::string_view channel;    // analysis, commentary, final
  std::string_view recipient;  // behind to=, in front of the channel or behind it

  // The function that the message calls. Empty: none.
  std::string_view Function() const;
};

// `header`: the text between <|start|> and <|message|>. The role may be missing.
HarmonyHeader ReadHarmonyHeader(std::string_view header);

}  // namespace lime
