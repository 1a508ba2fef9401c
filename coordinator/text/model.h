// What turns one word (a piece of normalised, pre-tokenised text) into ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/vocab.h"
#include "planner/base/status.h"

namespace lime {

// Thread: any; immutable after creation.
class TokenModel {
 public:
  virtual ~TokenModel() = default;

  // Appends the ids of `word`; an error where it holds what has no id, and there is no unknown token. REQUIRES: well-formed UTF-8.
  virtual absl::Status Tokenize(std::string_view word, std::vector<int32_t>& ids) const = 0;

  virtual const Vocab& vocab() const = 0;
};

// What becomes of characters that no piece covers: their bytes, else the unknown token, else what `missing` says.
struct UnknownPolicy {
  bool byte_fallback = false;
  int32_t unk_id = -1;    // -1: there is none
  bool fuse_unk = false;  // neighbouring unknowns become one
  std::string missing;    // without unk_id: an error of these words; empty: nothing becomes of them
};

// Appends the ids of the bytes of `text` if `policy` wants them and the vocabulary has all of them.
bool AppendBytes(std::string_view text, const UnknownPolicy& policy, const Vocab& vocab, std::vector<int32_t>& ids);

// The error of a character that has no id.
absl::Status NoUnknownToken(std::string_view text, const UnknownPolicy& policy);

}  // namespace lime
