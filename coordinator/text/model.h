// What turns one word (a piece of normalised, pre-tokenised text) into ids.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "coordinator/text/vocab.h"

namespace lime {

// Thread: any; immutable after creation.
class TokenModel {
 public:
  virtual ~TokenModel() = default;

  // Appends the ids of `word`. REQUIRES: well-formed UTF-8.
  virtual void Tokenize(std::string_view word, std::vector<int32_t>& ids) const = 0;

  virtual const Vocab& vocab() const = 0;
};

// What becomes of characters that no piece covers: their bytes, else the unknown token, else nothing.
struct UnknownPolicy {
  bool byte_fallback = false;
  int32_t unk_id = -1;    // -1: there is none
  bool fuse_unk = false;  // neighbouring unknowns become one
};

// Appends what `policy` makes of `text`. `unknown_end` remembers, between calls for one word, how long `ids` was after the
// last unknown token; begin with npos.
void AppendUnknown(std::string_view text, const UnknownPolicy& policy, const Vocab& vocab, size_t& unknown_end, std::vector<int32_t>& ids);

}  // namespace lime
