// Byte-level BPE, as in GPT-2 and Llama 3: learns merges from word counts, and reads and writes
// Hugging Face's tokenizer.json.
//
// Ids: BOS and EOS, then the 256 bytes in byte order, then the merges in the order of learning, then
// the tokens of a chat template, which are found in a text before it is split. Splitting follows GPT-2's pattern for ASCII text; bytes
// above 127 count as letters, although in GPT-2's pattern some of their characters are none.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace lime::train {

inline constexpr int kBosId = 0;  // "<s>"
inline constexpr int kEosId = 1;  // "</s>"
inline constexpr int kFirstByteId = 2;

// "I'm here." -> "I", "'m", " here", "."
std::vector<std::string_view> SplitWords(std::string_view text);

class ByteBpe {
 public:
  using WordCounts = std::map<std::string, int64_t, std::less<>>;
  using Merge = std::pair<int, int>;
  struct AddedToken {
    std::string content;
    bool special = false;  // never part of a text: prints nothing
  };

  // Learns the most frequent pair, again and again, until there are `vocab_size` ids or no pair
  // occurs twice. Of equally frequent pairs the one with the smaller ids comes first, so the same
  // counts give the same merges.
  static ByteBpe Train(const WordCounts& words, int vocab_size);
  // Learns more merges in the same way: those that are there keep their ids. Then come `added`, which
  // count in `vocab_size`.
  // REQUIRES: this tokenizer has no added tokens.
  ByteBpe Extended(const WordCounts& words, int vocab_size, std::vector<AddedToken> added) const;
  static absl::StatusOr<ByteBpe> FromJson(const nlohmann::json& tokenizer);

  nlohmann::ordered_json ToJson() const;

  // Ids of the text alone: no BOS.
  std::vector<int> Encode(std::string_view text) const;
  // Special tokens print nothing.
  std::string Decode(const std::vector<int>& ids) const;

  int vocab_size() const { return first_added_id() + static_cast<int>(added_.size()); }
  const std::vector<Merge>& merges() const { return merges_; }
  const std::vector<AddedToken>& added() const { return added_; }
  int first_added_id() const { return kFirstByteId + 256 + static_cast<int>(merges_.size()); }

 private:
  explicit ByteBpe(std::vector<Merge> merges, std::vector<AddedToken> added = {});
  std::vector<int> EncodeWord(std::string_view word) const;
  void EncodePlain(std::string_view text, std::vector<int>& ids) const;

  std::vector<Merge> merges_;  // merge n makes id kFirstByteId + 256 + n
  std::vector<AddedToken> added_;
  std::map<Merge, int> rank_;
  std::vector<std::string> bytes_;                                   // of each id; empty for specials
  mutable std::unordered_map<std::string, std::vector<int>> cache_;  // of words seen; an object serves one thread
};

}  // namespace lime::train
