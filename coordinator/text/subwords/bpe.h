// Byte-pair encoding: joins the best-ranked pair of neighbours until no pair is left.
//
// One implementation serves both kinds of file. tokenizer.json lists its merges. In
// tokenizer.model, every pair of pieces whose concatenation is a piece is a merge, ranked by score.
// Time: O(n log n) in the word's characters.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "coordinator/text/subwords/model.h"

namespace lime {

struct Merge {
  uint32_t rank = 0;   // the smallest joins first; equal ranks from left to right
  int32_t result = 0;  // id of the joined piece
};

// (left id, right id) -> Merge
using MergeTable = absl::flat_hash_map<std::pair<int32_t, int32_t>, Merge>;

class BpeModel : public TokenModel {
 public:
  struct Options {
    UnknownPolicy unknown;
    bool ignore_merges = false;  // a word that is a piece is not merged
    std::string continuing_subword_prefix;
    std::string end_of_word_suffix;
  };

  // Additional rules of SentencePiece models.
  struct SentencePieceRules {
    // Characters that are no pieces but occur in pieces. Number i has the id vocab.size() + i.
    std::vector<std::string> loose_chars;
    // User-defined pieces: a word equal to one becomes that piece.
    absl::flat_hash_set<int32_t> whole_words;
    absl::flat_hash_set<int32_t> unused;         // only intermediate results of merges
    absl::flat_hash_set<int32_t> not_from_text;  // control, unknown and byte pieces
  };

  BpeModel(Options options, Vocab vocab, MergeTable merges);
  BpeModel(Options options, Vocab vocab, MergeTable merges, SentencePieceRules rules);

  absl::Status Tokenize(std::string_view word, std::vector<int32_t>& ids) const override;
  const Vocab& vocab() const override { return vocab_; }

 private:
  int32_t FindSymbol(std::string_view text) const;
  absl::Status AppendSymbols(std::string_view word, std::vector<int32_t>& symbols) const;
  absl::Status TokenizeEarly(std::string_view word, std::vector<int32_t>& ids) const;
  absl::Status TokenizeLate(std::string_view word, std::vector<int32_t>& ids) const;
  absl::Status AppendToken(int32_t id, std::string_view text, size_t& unknown_end, std::vector<int32_t>& ids) const;

  Options options_;
  Vocab vocab_;
  MergeTable merges_;
  // When unknown characters get ids: after the merges (SentencePiece) or before.
  bool late_fallback_;
  SentencePieceRules rules_;
  absl::flat_hash_map<std::string_view, int32_t> loose_;  // keys point into rules_
};

}  // namespace lime
