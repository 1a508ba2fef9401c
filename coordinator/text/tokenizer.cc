#include "coordinator/text/tokenizer.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "coordinator/text/detokenizer.h"
#include "coordinator/text/utf8.h"

namespace lime {
namespace {

constexpr size_t kMaxCachedWordBytes = 256;

// Remembers where the ids of a word stand in the output, so that a word that comes again is copied. Lives for one text.
class WordCache {
 public:
  explicit WordCache(std::vector<int32_t>& ids) : ids_(ids) {}

  void Tokenize(const TokenModel& model, std::string_view word) {
    if (word.size() > kMaxCachedWordBytes) return model.Tokenize(word, ids_);
    const auto [it, added] = seen_.try_emplace(word, Run{ids_.size(), 0});
    if (added) {
      model.Tokenize(word, ids_);
      it->second.count = ids_.size() - it->second.begin;
      return;
    }
    for (size_t i = 0; i < it->second.count; ++i) ids_.push_back(ids_[it->second.begin + i]);
  }

 private:
  struct Run {
    size_t begin;
    size_t count;
  };
  std::vector<int32_t>& ids_;
  absl::flat_hash_map<std::string_view, Run> seen_;
};

absl::Status CheckIds(const std::vector<int32_t>& ids, int32_t vocab_size) {
  for (const int32_t id : ids) {
    if (id >= vocab_size)
      return absl::InvalidArgumentError(absl::StrCat("post_processor adds id ", id, " to a vocabulary of ", vocab_size));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(TokenizerParts parts, const SpecialTokensConfig& config) {
  const auto normalize = [&](std::string_view text) { return Normalize(parts.normalizer, text); };
  auto tokens = std::move(parts.added_tokens);
  LIME_ASSIGN_OR_RETURN(auto added, AddedTokens::Create(std::move(tokens), parts.model->vocab(), normalize));
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(std::move(parts), std::move(added)));
  LIME_RETURN_IF_ERROR(tokenizer->Finish(config));
  return tokenizer;
}

absl::Status Tokenizer::Finish(const SpecialTokensConfig& config) {
  vocab_size_ = std::max(parts_.model->vocab().size(), added_.IdEnd());
  if (config.bos_token.has_value()) bos_id_ = TokenToId(*config.bos_token);
  if (config.eos_token.has_value()) eos_id_ = TokenToId(*config.eos_token);
  PostProcessor& post = parts_.post_processor;
  if (!bos_id_.has_value() && post.prefix.size() == 1) bos_id_ = post.prefix[0];
  if (post.prefix.empty() && config.add_bos_token.value_or(false) && bos_id_.has_value()) post.prefix = {*bos_id_};
  if (post.suffix.empty() && config.add_eos_token.value_or(false) && eos_id_.has_value()) post.suffix = {*eos_id_};
  LIME_RETURN_IF_ERROR(CheckIds(post.prefix, vocab_size_));
  LIME_RETURN_IF_ERROR(CheckIds(post.suffix, vocab_size_));
  const auto piece = [this](int32_t id) { return IdToPiece(id); };
  LIME_ASSIGN_OR_RETURN(bytes_, ByteTable::Create(parts_.decoder, false, vocab_size_, piece));
  if (!parts_.decoder.first_differs()) return absl::OkStatus();
  LIME_ASSIGN_OR_RETURN(first_bytes_, ByteTable::Create(parts_.decoder, true, vocab_size_, piece));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  LIME_RETURN_IF_ERROR(CheckTextSize(text.size()));
  std::string repaired;
  if (!IsUtf8(text)) {
    AppendLossyUtf8(text, repaired);
    text = repaired;
  }
  std::vector<int32_t> ids;
  if (options.add_special) ids = parts_.post_processor.prefix;
  for (const Section& section : added_.Split(text, /*normalized=*/false, options.parse_special)) {
    if (section.id >= 0) {
      ids.push_back(section.id);
    } else {
      LIME_RETURN_IF_ERROR(EncodeSection(section.text, section.text.data() == text.data(), options, ids));
    }
  }
  if (options.add_special) ids.insert(ids.end(), parts_.post_processor.suffix.begin(), parts_.post_processor.suffix.end());
  return ids;
}

absl::Status Tokenizer::EncodeSection(std::string_view text, bool at_start, const EncodeOptions& options, std::vector<int32_t>& ids) const {
  LIME_ASSIGN_OR_RETURN(const std::string normalized, Normalize(parts_.normalizer, text));
  for (const Section& section : added_.Split(normalized, /*normalized=*/true, options.parse_special)) {
    if (section.id >= 0) {
      ids.push_back(section.id);
    } else {
      LIME_RETURN_IF_ERROR(EncodeWords(section.text, at_start && section.text.data() == normalized.data(), ids));
    }
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::EncodeWords(std::string_view text, bool at_start, std::vector<int32_t>& ids) const {
  Words words{std::string(text), {{{0, text.size()}, at_start}}};
  for (const PreTokenizeStep& step : parts_.pre_tokenizer) LIME_RETURN_IF_ERROR(step(words));
  WordCache cache(ids);
  for (const Words::Word& word : words.words) cache.Tokenize(*parts_.model, words.Text(word));
  return absl::OkStatus();
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  StreamingDetokenizer detokenizer(*this, options);
  std::string text;
  for (const int32_t id : ids) text.append(detokenizer.Push(id));
  text.append(detokenizer.Finish());
  return text;
}

std::string_view Tokenizer::IdToPiece(int32_t id) const {
  const AddedToken* added = added_.Find(id);
  return added != nullptr ? std::string_view(added->content) : parts_.model->vocab().Piece(id);
}

std::optional<int32_t> Tokenizer::TokenToId(std::string_view piece) const {
  int32_t id = added_.FindContent(piece);
  if (id < 0) id = parts_.model->vocab().Find(piece);
  return id < 0 ? std::nullopt : std::optional<int32_t>(id);
}

bool Tokenizer::IsSpecial(int32_t id) const {
  const AddedToken* added = added_.Find(id);
  return added != nullptr && added->special;
}

}  // namespace lime
