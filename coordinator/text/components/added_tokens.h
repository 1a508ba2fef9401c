// The "added_tokens" of tokenizer.json: strings that become one id wherever they occur. They are
// found before the model sees the text.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "coordinator/text/components/json_access.h"
#include "coordinator/text/subwords/byte_trie.h"
#include "coordinator/text/subwords/vocab.h"

namespace lime {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // only if no word character is next to it
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space behind it
  bool normalized = false;   // found in the normalised text, by its normalised content
  bool special = false;      // a control token, not text
  int32_t counted = -1;      // id that the tokenizers library gives it; -1: its piece's id
  // The form in which a normalised token is found and decoded, if it differs from the content.
  std::string form;
};

// Part of a text: an added token, or the text between two of them.
struct Section {
  std::string_view text;
  int32_t id = -1;  // -1: text
};

// Immutable. Thread: any.
class AddedTokens {
 public:
  // `tokens` are the tokenizer's own, `later` come from the files beside it. Ids are those of the
  // tokenizers library. A token whose content is a piece of the model has that piece's id, whatever
  // id it states. The library numbers the others from the number of pieces on, in their order. If
  // such a token states another id, a text with it is refused (IdOf). Of two tokens with the same
  // content, the later one counts. `normalize` computes the form in which normalised tokens are
  // found.
  static absl::StatusOr<AddedTokens> Create(std::vector<AddedToken> tokens, std::vector<AddedToken> later, const Vocab& vocab,
                                            const std::function<absl::StatusOr<std::string>(std::string_view)>& normalize);

  static absl::StatusOr<std::vector<AddedToken>> Parse(const TokenizerJson& json);

  // Cuts `text` at the added tokens of one kind, leftmost first, longest of those that begin
  // together. Special tokens stay text unless `parse_special`. Tokens are also found in white space
  // that belongs to another token, so sections may overlap.
  std::vector<Section> Split(std::string_view text, bool normalized, bool parse_special) const;

  // The id of a section that is an added token. InvalidArgument if the token states another id than
  // the library gives it.
  absl::StatusOr<int32_t> IdOf(const Section& section) const;

  // Null if there is no such added token.
  const AddedToken* Find(int32_t id) const;
  const AddedToken* FindContent(std::string_view content) const;

  // The largest id plus one; 0 without tokens.
  int32_t IdEnd() const { return id_end_; }

 private:
  AddedTokens() = default;

  absl::Status Add(AddedToken token, const std::function<absl::StatusOr<std::string>(std::string_view)>& normalize);
  // Normalizers may give several tokens the same form. A special token is then found before others,
  // and the first of a list before later ones. So each list is inserted from its end, special
  // tokens last.
  void InsertForms(bool special);

  std::vector<AddedToken> tokens_;
  absl::flat_hash_map<int32_t, int32_t> by_id_;           // id -> index
  absl::flat_hash_map<std::string, int32_t> by_content_;  // content -> index
  ByteTrie raw_;                                          // content -> index
  ByteTrie normalized_;                                   // normalised content -> index
  int32_t id_end_ = 0;
};

}  // namespace lime
