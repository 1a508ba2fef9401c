// A hostile tokenizer.model, and a hostile text for it: the first byte is the length of the text,
// which comes next.
#include <cstdlib>

#include "coordinator/text/tokenizer.h"
#include "coordinator/text/unicode/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view text = input.substr(1, data[0]);
  const auto tokenizer = lime::Tokenizer::FromSentencePiece(input.substr(1 + text.size()), "fuzz");
  if (!tokenizer.ok()) return 0;
  const auto ids = (*tokenizer)->Encode(text);
  if (!ids.ok()) return 0;
  for (const int32_t id : *ids) {
    if (id < 0 || id >= (*tokenizer)->vocab_size()) std::abort();
  }
  if (!lime::IsUtf8((*tokenizer)->Decode(*ids))) std::abort();
  return 0;
}
