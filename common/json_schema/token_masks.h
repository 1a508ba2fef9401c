// Writes which tokens may come next, as bits.
//
// A mask of a place is found by a walk over the tree of the vocabulary beside the automaton. Two
// caches make that rare: masks of scalars by the state of their automaton, for tokens that stay
// inside, with the few that leave it as a tree of what is behind the scalar; and masks of whole
// states of a Matcher.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "common/json_schema/matcher.h"
#include "common/json_schema/vocabulary.h"

namespace lime::json_schema {

// Owner: one thread. Serves all grammars over one vocabulary. Does not grow beyond kMaxMasks masks.
class TokenMasks {
 public:
  // Of either cache, which is emptied if it has more masks, or more memory beside their bits.
  static constexpr size_t kMaxMasks = 256;
  static constexpr Bytes kMaxBeside = 2 * kMiB;

  explicit TokenMasks(VocabularyPtr vocabulary);

  size_t Words() const { return (vocabulary_->size() + 63) / 64; }
  // Memory of both caches for a vocabulary of this size, at most; one mask more than they may have.
  static Bytes MostMemory(size_t tokens);

  // Sets bit i of `bits` if token i may come next, else clears it. `tokens_left`: how many tokens
  // may still be generated, this one and the token that ends the answer among them. A token is
  // allowed only if the answer can end in the tokens left after it, one for each byte. If even the
  // shortest end does not fit, tokens are allowed as if there were no bound.
  //
  // REQUIRES: `bits` has Words() words; the grammar was made for bytes in single_bytes().
  void Write(const Matcher& matcher, int64_t tokens_left, std::span<uint64_t> bits);

 private:
  // Tokens that stay inside a scalar, and those that leave it.
  struct ScalarMask {
    std::weak_ptr<const ByteDfa> dfa;  // keeps its address from another one, and frees its memory
    std::vector<uint64_t> bits;
    int32_t largest_least = 0;  // of the states after these tokens
    TokenTree behind;           // the bytes of tokens behind the end of the scalar
  };
  // The automaton and its state; the characters that are still needed and allowed; the most bytes
  // to the end that a token may leave.
  using ScalarKey = std::tuple<const ByteDfa*, uint16_t, int32_t, int32_t, int32_t>;
  struct AnswerMask {
    std::weak_ptr<const Grammar> grammar;  // as above
    std::vector<uint64_t> bits;
    int32_t largest_least = 0;
  };
  class ScalarWalk;

  void Make(const Matcher& matcher, int32_t budget, std::span<uint64_t> bits);
  void AddScalar(const Grammar& grammar, const Thread& thread, int32_t budget, std::span<uint64_t> bits);
  const ScalarMask& MaskOf(const Scalar& scalar, uint16_t state, int32_t count, int32_t slack, int32_t& base);
  void AddTokens(const Grammar& grammar, const TokenTree& tree, std::span<const Thread> threads, int32_t budget, std::span<uint64_t> bits);
  void AddSpecial(const Matcher& matcher, int32_t budget, std::span<uint64_t> bits);
  bool Allow(int32_t least, int32_t budget);

  const VocabularyPtr vocabulary_;
  std::map<ScalarKey, ScalarMask> scalar_masks_;
  std::unordered_map<std::string, AnswerMask> answer_masks_;
  Bytes beside_scalars_ = 0, beside_answers_ = 0;  // memory of the caches, except for the bits
  std::string key_;

  // Of the mask under way.
  int32_t largest_least_ = 0;
  FrameLists lists_;
  Stepper stepper_;
  std::vector<Thread> outside_, after_, next_, pool_;
  std::vector<size_t> ends_;
  std::vector<FrameLists::Size> sizes_;
};

}  // namespace lime::json_schema
