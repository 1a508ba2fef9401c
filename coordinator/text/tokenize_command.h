// What `lime tokenize` does, apart from parsing its flags.
#pragma once

#include <iosfwd>

#include "coordinator/text/tokenizer.h"

namespace lime {

struct TokenizeOptions {
  bool decode = false;      // ids in, text out
  bool no_special = false;  // encode: nothing is added, special tokens in the text are text; decode: they are printed, not skipped
  bool json = false;        // {"ids": [...]} or {"text": "..."} instead of plain ids or text
  bool jsonl = false;       // one {"text"} or {"ids"} object a line in, one {"ids"} or {"text"} object a line out
};

// Reads `in` to its end and writes the result to `out`. Without `jsonl`: the whole input is one text, or with `decode` ids
// between white space or commas.
absl::Status RunTokenize(const Tokenizer& tokenizer, std::istream& in, std::ostream& out, const TokenizeOptions& options);

}  // namespace lime
