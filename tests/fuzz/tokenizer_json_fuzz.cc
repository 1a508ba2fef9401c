// A hostile tokenizer.json, and a hostile text for it: the input is the file, a byte 1, and the
// text.
#include <cstdlib>

#include "coordinator/text/tokenizer.h"
#include "coordinator/text/unicode/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\1'), input.size());
  const auto tokenizer = lime::Tokenizer::FromJson(input.substr(0, end), "fuzz");
  if (!tokenizer.ok()) return 0;
  const std::string_view text = input.substr(std::min(end + 1, input.size()));
  for (const bool special : {true, false}) {
    const auto ids = (*tokenizer)->Encode(text, {.add_special = special, .parse_special = special});
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) {
      if (id < 0 || id >= (*tokenizer)->vocab_size()) std::abort();
    }
    if (!lime::IsUtf8((*tokenizer)->Decode(*ids))) std::abort();
  }
  return 0;
}
