// The "added_tokens" of tokenizer.json: strings that become one id wherever they occur, before the model sees the text.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "coordinator/text/byte_trie.h"
#include "coordinator/text/json_access.h"
#include "coordinator/text/vocab.h"

namespace lime {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // takes the white space behind it along
  bool normalized = false;   // looked for in the normalised text, by its own normalised content
  bool special = false;      // steers the model; not text
  int32_t counted = -1;      // the id that the tokenizers library gives it; -1: that of its piece
  std::string form;          // what a normalised token is looked for as and decoded from, where that is not its content
};

// A stretch of a text: an added token, or the text between two.
struct Section {
  std::string_view text;
  int32_t id = -1;  // -1: text
};

// Immutable. Thread: any.
class AddedTokens {
 public:
  // `tokens` are the tokenizer's own, `later` those of the files beside it. Ids are the tokenizers library's: a token whose content is
  // a piece of the model has that piece's id, whatever it states; the library counts the others on from the number of pieces, in their
  // order. Where one states another id, no text may have it (IdOf). Of two tokens with one content the later is taken. `normalize` makes
  // the form in which normalised tokens are looked for.
  static absl::StatusOr<AddedTokens> Create(std::vector<AddedToken> tokens, std::vector<AddedToken> later, const Vocab& vocab,
                                            const std::function<absl::StatusOr<std::string>(std::string_view)>& normalize);

  static absl::StatusOr<std::vector<AddedToken>> Parse(const Json& json);

  // Cuts `text` at the added tokens of one kind, leftmost and longest first. Special tokens stay text unless `parse_special`.
  // Tokens in the white space that another one takes along are found too, so sections may overlap.
  std::vector<Section> Split(std::string_view text, bool normalized, bool parse_special) const;

  // The id of a section that is an added token. InvalidArgument where the token states another id than the library gives it.
  absl::StatusOr<int32_t> IdOf(const Section& section) const;

  // Null where there is no such added token.
  const AddedToken* Find(int32_t id) const;
  const AddedToken* FindContent(std::string_view content) const;

  // One more than the largest id, 0 without tokens.
  int32_t IdEnd() const { return id_end_; }

 private:
  AddedTokens() = default;

  absl::Status Add(AddedToken token, const std::function<absl::StatusOr<std::string>(std::string_view)>& normalize);
  // Of tokens with one form, which normalizers make, the first is found, a special one ahead of the others: so each list is inserted from
  // its end, the special one last.
  void InsertForms(bool special);

  std::vector<AddedToken> tokens_;
  absl::flat_hash_map<int32_t, int32_t> by_id_;           // id -> index
  absl::flat_hash_map<std::string, int32_t> by_content_;  // content -> index
  ByteTrie raw_;                                          // content -> index
  ByteTrie normalized_;                                   // normalised content -> index
  int32_t id_end_ = 0;
};

}  // namespace lime
