// Byte-level BPE, as in GPT-2 and Llama 3: learns merges from word counts, and reads and writes
// Hugging Face's tokenizer.json.
//
// Ids: the special tokens, then the 256 bytes in byte order, then the merges in the order of
// learning. Splitting follows GPT-2's pattern for ASCII text; bytes above 127 count as letters,
// although in GPT-2's pattern some of their characters are none.
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

  // Learns the most frequent pair, again and again, until there are `vocab_size` ids or no pair
  // occurs twice. Of equally frequent pairs the one with the smaller ids comes first, so the same
  // counts give the same merges.
  static ByteBpe Train(const WordCounts& words, int vocab_size);
  static absl::StatusOr<ByteBpe> FromJson(const nlohmann::json& tokenizer);

  nlohmann::ordered_json ToJson() const;

  // Ids of the text alone: no BOS.
  std::vector<int> Encode(std::string_view text) const;
  // Special tokens print nothing.
  std::string Decode(const std::vector<int>& ids) const;

  int vocab_size() const { return kFirstByteId + 256 + static_cast<int>(merges_.size()); }
  const std::vector<Merge>& merges() const { return merges_; }

 private:
  explicit ByteBpe(std::vector<Merge> merges);
  std::vector<int> EncodeWord(std::string_view word) const;

  std::vector<Merge> merges_;  // merge n makes id kFirstByteId + 256 + n
  std::map<Merge, int> rank_;
  std::vector<std::string> bytes_;                                   // of each id; empty for specials
  mutable std::unordered_map<std::string, std::vector<int>> cache_;  // of words seen; an object serves one thread
};

}  // namespace lime::train
