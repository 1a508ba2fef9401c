// Unigram language model: finds the segmentation with the largest sum of log probabilities
// (Viterbi).
#pragma once

#include <vector>

#include "absl/container/flat_hash_set.h"
#include "coordinator/text/subwords/byte_trie.h"
#include "coordinator/text/subwords/model.h"

namespace lime {

class UnigramModel : public TokenModel {
 public:
  struct Options {
    UnknownPolicy unknown;
    std::vector<double> scores;  // log probability of each id, finite
    // Preferred over any other segmentation of the same text.
    absl::flat_hash_set<int32_t> user_defined;
    absl::flat_hash_set<int32_t> not_from_text;  // control, unknown, byte and unused pieces
  };

  // REQUIRES: options.scores.size() == vocab.size().
  UnigramModel(Options options, Vocab vocab);

  absl::Status Tokenize(std::string_view word, std::vector<int32_t>& ids) const override;
  const Vocab& vocab() const override { return vocab_; }

 private:
  double Score(int32_t id, size_t length) const;
  void AppendUnknown(std::string_view text, std::vector<int32_t>& ids) const;

  Options options_;
  Vocab vocab_;
  ByteTrie trie_;
  double max_score_ = 0;
  double unknown_score_ = 0;  // of a character that is no piece
};

}  // namespace lime
