// Converts one word (a piece of normalised, pre-tokenised text) into ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/subwords/vocab.h"
#include "planner/base/status.h"

namespace lime {

// Thread: any; immutable after creation.
class TokenModel {
 public:
  virtual ~TokenModel() = default;

  // Appends the ids of `word`. An error if a character has no id and there is no unknown token.
  // REQUIRES: well-formed UTF-8.
  virtual absl::Status Tokenize(std::string_view word, std::vector<int32_t>& ids) const = 0;

  virtual const Vocab& vocab() const = 0;
};

// How characters that no piece covers are encoded: as their bytes, otherwise as the unknown token,
// otherwise as `missing` says.
struct UnknownPolicy {
  bool byte_fallback = false;
  int32_t unk_id = -1;    // -1: there is no unknown token
  bool fuse_unk = false;  // neighbouring unknown characters become one token
  // Without unk_id: an error with this text. Empty: such characters are dropped.
  std::string missing;
};

// Appends the ids of the bytes of `text`, if `policy` allows it and the vocabulary has all of them.
// Returns whether it did.
bool AppendBytes(std::string_view text, const UnknownPolicy& policy, const Vocab& vocab, std::vector<int32_t>& ids);

// The error for a character without an id.
absl::Status NoUnknownToken(std::string_view text, const UnknownPolicy& policy);

}  // namespace lime
