#include "coordinator/text/components/added_tokens.h"

#include <algorithm>

#include "coordinator/text/unicode/unicode.h"
#include "coordinator/text/unicode/utf8.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr size_t kMaxContentBytes = 4096;

absl::StatusOr<AddedToken> ParseToken(const TokenizerJson& json) {
  AddedToken token;
  LIME_ASSIGN_OR_RETURN(const int64_t id, RequiredInt(json, "id"));
  if (id < 0 || id >= kMaxTokenId) return Invalid("added token id ", id, ", need 0 to ", kMaxTokenId - 1);
  token.id = static_cast<int32_t>(id);
  LIME_ASSIGN_OR_RETURN(token.content, RequiredString(json, "content"));
  LIME_ASSIGN_OR_RETURN(token.single_word, BoolField(json, "single_word", false));
  LIME_ASSIGN_OR_RETURN(token.lstrip, BoolField(json, "lstrip", false));
  LIME_ASSIGN_OR_RETURN(token.rstrip, BoolField(json, "rstrip", false));
  LIME_ASSIGN_OR_RETURN(token.special, BoolField(json, "special", false));
  LIME_ASSIGN_OR_RETURN(token.normalized, BoolField(json, "normalized", !token.special));
  return token;
}

absl::Status CheckToken(const AddedToken& token) {
  if (token.id >= kMaxTokenId) {
    return Invalid("added token \"", Text(token.content), "\" has id ", token.id, ", need 0 to ", kMaxTokenId - 1);
  }
  if (token.content.size() > kMaxContentBytes) {
    return Invalid("added token ", token.id, " has ", token.content.size(), " bytes, the limit is ", kMaxContentBytes);
  }
  return absl::OkStatus();
}

absl::Status CheckNoPiece(int32_t id, const AddedToken& token, const Vocab& vocab) {
  const std::string_view piece = vocab.TokenText(id);
  if (piece.empty()) return absl::OkStatus();
  return Invalid("id ", id, " belongs to the piece \"", Text(piece), "\" and to the added token \"", token.content, "\"");
}

bool TouchesWord(std::string_view before, std::string_view behind) {
  return (!before.empty() && IsUnicodeWord(LastChar(before))) || (!behind.empty() && IsUnicodeWord(DecodeUtf8(behind).code));
}

}  // namespace

absl::StatusOr<std::vector<AddedToken>> AddedTokens::Parse(const TokenizerJson& json) {
  std::vector<AddedToken> tokens;
  if (!json.is_null() && !json.is_array()) return absl::InvalidArgumentError("\"added_tokens\" is not an array");
  for (const TokenizerJson& entry : json) {
    LIME_ASSIGN_OR_RETURN(auto token, ParseToken(entry));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

absl::StatusOr<AddedTokens> AddedTokens::Create(std::vector<AddedToken> tokens, std::vector<AddedToken> later, const Vocab& vocab,
                                                const std::function<absl::StatusOr<std::string>(std::string_view)>& normalize) {
  AddedTokens added;
  for (std::vector<AddedToken>* list : {&tokens, &later}) {
    int32_t next_id = std::max(vocab.count(), added.id_end_);
    for (AddedToken& token : *list) {
      if (token.content.empty()) continue;
      LIME_RETURN_IF_ERROR(CheckToken(token));
      const AddedToken* known = added.FindContent(token.content);
      const int32_t own = known != nullptr ? known->id : vocab.Find(token.content);
      if (own >= 0) {
        token.id = own;
      } else {
        const int32_t counted = next_id++;
        if (token.id < 0) token.id = counted;
        token.counted = counted;
        LIME_RETURN_IF_ERROR(CheckNoPiece(token.id, token, vocab));
      }
      LIME_RETURN_IF_ERROR(added.Add(std::move(token), normalize));
    }
  }
  for (size_t i = 0; i < added.tokens_.size(); ++i) {
    if (!added.by_id_.emplace(added.tokens_[i].id, static_cast<int32_t>(i)).second)
      return Invalid("two added tokens have the id ", added.tokens_[i].id);
  }
  added.InsertForms(/*special=*/false);
  added.InsertForms(/*special=*/true);
  return added;
}

absl::Status AddedTokens::Add(AddedToken token, const std::function<absl::StatusOr<std::string>(std::string_view)>& normalize) {
  if (token.normalized) {
    LIME_ASSIGN_OR_RETURN(token.form, normalize(token.content));
    if (token.form == token.content) token.form.clear();
  }
  id_end_ = std::max(id_end_, token.id + 1);
  const auto [known, added] = by_content_.emplace(token.content, static_cast<int32_t>(tokens_.size()));
  if (added) {
    tokens_.push_back(std::move(token));
  } else {
    // In the library a special token stays special.
    token.special = token.special || tokens_[known->second].special;
    tokens_[known->second] = std::move(token);
  }
  return absl::OkStatus();
}

void AddedTokens::InsertForms(bool special) {
  for (size_t i = tokens_.size(); i-- > 0;) {
    const AddedToken& token = tokens_[i];
    if (token.special != special) continue;
    ByteTrie& trie = token.normalized ? normalized_ : raw_;
    trie.Insert(token.form.empty() ? token.content : token.form, static_cast<int32_t>(i));
  }
}

std::vector<Section> AddedTokens::Split(std::string_view text, bool normalized, bool parse_special) const {
  const ByteTrie& trie = normalized ? normalized_ : raw_;
  std::vector<Section> sections;
  size_t done = 0;
  for (size_t begin = 0, end = 0; !trie.empty() && begin < text.size(); begin = end) {
    const ByteTrie::Match match = trie.LongestPrefix(text.substr(begin));
    end = begin + std::max<size_t>(match.length, 1);
    if (match.length == 0) continue;
    const AddedToken& token = tokens_[match.value];
    if (token.special && !parse_special) continue;
    if (token.single_word && TouchesWord(text.substr(0, begin), text.substr(end))) continue;
    const size_t from = token.lstrip ? std::max(begin - TrailingSpace(text.substr(0, begin)), done) : begin;
    const size_t to = token.rstrip ? end + LeadingSpace(text.substr(end)) : end;
    if (done < from) sections.push_back({text.substr(done, from - done)});
    if (from < to) sections.push_back({text.substr(from, to - from), token.id});
    done = to;
  }
  if (done < text.size()) sections.push_back({text.substr(done)});
  return sections;
}

absl::StatusOr<int32_t> AddedTokens::IdOf(const Section& section) const {
  const AddedToken& token = *Find(section.id);
  if (token.counted < 0 || token.counted == token.id) return token.id;
  return Invalid("added token \"", token.content, "\", which the text has, states the id ", token.id,
                 ", but the tokenizers library gives it ", token.counted,
                 ", because it numbers added tokens after the pieces; state that id, or list the token among the pieces with its own id");
}

const AddedToken* AddedTokens::Find(int32_t id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : &tokens_[it->second];
}

const AddedToken* AddedTokens::FindContent(std::string_view content) const {
  const auto it = by_content_.find(std::string(content));
  return it == by_content_.end() ? nullptr : &tokens_[it->second];
}

}  // namespace lime
