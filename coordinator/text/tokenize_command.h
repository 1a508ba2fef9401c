// The work of `lime tokenize`, without its flags.
#pragma once

#include <iosfwd>

#include "coordinator/text/tokenizer.h"

namespace lime {

struct TokenizeOptions {
  bool decode = false;  // read ids, write text
  // Encode: add nothing, and read special tokens as text. Decode: print special tokens.
  bool no_special = false;
  bool json = false;  // write {"ids": [...]} or {"text": "..."}
  // Read one {"text"} or {"ids"} object per line; write one {"ids"} or {"text"} object per line.
  bool jsonl = false;
};

// Reads `in` to its end and writes the result to `out`. Without `jsonl`, the whole input is one
// text; with `decode` it is ids between white space or commas.
absl::Status RunTokenize(const Tokenizer& tokenizer, std::istream& in, std::ostream& out, const TokenizeOptions& options);

}  // namespace lime
