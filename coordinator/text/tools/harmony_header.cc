#include "coordinator/text/tools/harmony_header.h"

#include <algorithm>
#include <array>

namespace lime {
namespace {

constexpr std::array<std::string_view, 7> kMarks = {kHarmonyStart, kHarmonyChannel, kHarmonyMessage, kHarmonyConstrain,
                                                    kHarmonyEnd,   kHarmonyReturn,  kHarmonyCall};
constexpr std::string_view kRecipient = "to=", kFunctions = "functions.", kWordEnds = " \n\r\t<";

// The text up to a blank or a mark.
std::string_view WordOf(std::string_view text) {
  return text.substr(0, text.find_first_of(kWordEnds));
}

}  // namespace

bool IsHarmonyTemplate(std::string_view source) {
  return source.find(kHarmonyChannel) != std::string_view::npos && source.find(kHarmonyMessage) != std::string_view::npos;
}

bool IsHarmonyMark(std::string_view text) {
  return std::ranges::find(kMarks, text) != kMarks.end();
}

bool EndsHarmonyMessage(std::string_view mark) {
  return mark == kHarmonyEnd || mark == kHarmonyReturn || mark == kHarmonyCall;
}

std::string_view HarmonyHeader::Function() const {
  return recipient.starts_with(kFunctions) ? recipient.substr(kFunctions.size()) : std::string_view();
}

HarmonyHeader ReadHarmonyHeader(std::string_view header) {
  HarmonyHeader read;
  const size_t channel = header.find(kHarmonyChannel);
  if (channel != std::string_view::npos) read.channel = WordOf(header.substr(channel + kHarmonyChannel.size()));
  for (size_t at = header.find(kRecipient); at != std::string_view::npos; at = header.find(kRecipient, at + 1)) {
    const bool begins_word = at == 0 || std::string_view(" \n\r\t>").find(header[at - 1]) != std::string_view::npos;
    if (!begins_word) continue;
    read.recipient = WordOf(header.substr(at + kRecipient.size()));
    break;
  }
  return read;
}

}  // namespace lime
