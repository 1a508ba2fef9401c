#include "coordinator/text/tokenizer.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "coordinator/text/detokenizer.h"
#include "coordinator/text/unicode/utf8.h"

namespace lime {
namespace {

constexpr size_t kMaxCachedWordBytes = 256;

// Remembers where the ids of a word are in the output, so that a repeated word is copied. Lives for
// one text.
class WordCache {
 public:
  explicit WordCache(std::vector<int32_t>& ids) : ids_(ids) {}

  absl::Status Tokenize(const TokenModel& model, std::string_view word) {
    if (word.size() > kMaxCachedWordBytes) return model.Tokenize(word, ids_);
    const auto [it, added] = seen_.try_emplace(word, Run{ids_.size(), 0});
    if (added) {
      LIME_RETURN_IF_ERROR(model.Tokenize(word, ids_));
      it->second.count = ids_.size() - it->second.begin;
      return absl::OkStatus();
    }
    for (size_t i = 0; i < it->second.count; ++i) ids_.push_back(ids_[it->second.begin + i]);
    return absl::OkStatus();
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
    if (id >= vocab_size) return Invalid("post_processor adds id ", id, " to a vocabulary of ", vocab_size);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(TokenizerParts parts, const TokenizerConfig& config) {
  const auto normalize = [&](std::string_view content) -> absl::StatusOr<std::string> {
    NormalizedText text{std::string(content), static_cast<size_t>(DecodeUtf8(content).length)};
    LIME_RETURN_IF_ERROR(Normalize(parts.normalizer, text));
    return std::move(text.text);
  };
  auto later = TokensBeside(config, parts.added_tokens);
  LIME_ASSIGN_OR_RETURN(auto added, AddedTokens::Create(std::move(parts.added_tokens), std::move(later), parts.model->vocab(), normalize));
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(std::move(parts), std::move(added)));
  LIME_RETURN_IF_ERROR(tokenizer->Finish(config));
  return tokenizer;
}

// BOS and EOS around the text are those of the file, unless the configuration changes that.
void Tokenizer::PlaceEnds(const TokenizerConfig& config) {
  std::vector<int32_t>&prefix = parts_.post_processor.prefix, &suffix = parts_.post_processor.suffix;
  if (!bos_id_.has_value() && prefix.size() == 1) bos_id_ = prefix[0];
  if (config.add_bos_token.has_value() && bos_id_.has_value()) {
    const bool there = std::find(prefix.begin(), prefix.end(), *bos_id_) != prefix.end();
    if (*config.add_bos_token && !there) prefix.insert(prefix.begin(), *bos_id_);
    if (!*config.add_bos_token) std::erase(prefix, *bos_id_);
  }
  // The class makes a template of its own.
  if (IsLlamaClass(config) && !config.add_eos_token.value_or(false)) suffix.clear();
  if (config.add_eos_token.has_value() && eos_id_.has_value()) {
    const bool there = std::find(suffix.begin(), suffix.end(), *eos_id_) != suffix.end();
    if (*config.add_eos_token && !there) suffix.push_back(*eos_id_);
    if (!*config.add_eos_token) std::erase(suffix, *eos_id_);
  }
}

absl::Status Tokenizer::Finish(const TokenizerConfig& config) {
  vocab_size_ = std::max(parts_.model->vocab().size(), added_.IdEnd());
  if (config.bos_token.has_value()) bos_id_ = TokenToId(*config.bos_token);
  if (config.eos_token.has_value()) eos_id_ = TokenToId(*config.eos_token);
  split_special_tokens_ = config.split_special_tokens;
  const Vocab& vocab = parts_.model->vocab();
  for (int32_t id = 0; id < vocab.size(); ++id) longest_piece_ = std::max(longest_piece_, vocab.TokenText(id).size());
  PlaceEnds(config);
  LIME_RETURN_IF_ERROR(CheckIds(parts_.post_processor.prefix, vocab_size_));
  LIME_RETURN_IF_ERROR(CheckIds(parts_.post_processor.suffix, vocab_size_));
  const auto piece = [this](int32_t id) { return DecodedText(id); };
  LIME_ASSIGN_OR_RETURN(bytes_, ByteTable::Create(parts_.decoder, false, vocab_size_, piece));
  if (!parts_.decoder.first_differs()) return absl::OkStatus();
  LIME_ASSIGN_OR_RETURN(first_bytes_, ByteTable::Create(parts_.decoder, true, vocab_size_, piece));
  return absl::OkStatus();
}

template <typename OnId, typename OnWords>
absl::Status Tokenizer::Split(std::string_view text, const EncodeOptions& options, OnId on_id, OnWords on_words) const {
  LIME_RETURN_IF_ERROR(CheckTextSize(text.size()));
  std::string repaired;
  if (!IsUtf8(text)) {
    AppendLossyUtf8(text, repaired);
    text = repaired;
  }
  const bool parse_special = options.parse_special && !split_special_tokens_;
  for (const Section& raw : added_.Split(text, /*normalized=*/false, parse_special)) {
    if (raw.id >= 0) {
      LIME_RETURN_IF_ERROR(on_id(raw));
      continue;
    }
    const bool at_start = raw.text.data() == text.data();
    NormalizedText normalized{std::string(raw.text), at_start ? static_cast<size_t>(DecodeUtf8(raw.text).length) : 0};
    LIME_RETURN_IF_ERROR(Normalize(parts_.normalizer, normalized));
    for (const Section& section : added_.Split(normalized.text, /*normalized=*/true, parse_special)) {
      if (section.id >= 0) {
        LIME_RETURN_IF_ERROR(on_id(section));
        continue;
      }
      const auto begin = static_cast<size_t>(section.text.data() - normalized.text.data());
      LIME_ASSIGN_OR_RETURN(const Words words, SplitWords(section.text, normalized.start_bytes - std::min(normalized.start_bytes, begin)));
      LIME_RETURN_IF_ERROR(on_words(words));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Words> Tokenizer::SplitWords(std::string_view text, size_t start_bytes) const {
  Words words{std::string(text), {{{0, text.size()}, std::min(start_bytes, text.size())}}};
  for (const PreTokenizeStep& step : parts_.pre_tokenizer) LIME_RETURN_IF_ERROR(step(words));
  return words;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  if (options.add_special) ids = parts_.post_processor.prefix;
  const auto add_id = [&](const Section& section) -> absl::Status {
    LIME_ASSIGN_OR_RETURN(const int32_t id, added_.IdOf(section));
    ids.push_back(id);
    return absl::OkStatus();
  };
  const auto add_words = [&](const Words& words) -> absl::Status {
    WordCache cache(ids);
    for (const Words::Word& word : words.words) LIME_RETURN_IF_ERROR(cache.Tokenize(*parts_.model, words.Text(word)));
    return absl::OkStatus();
  };
  LIME_RETURN_IF_ERROR(Split(text, options, add_id, add_words));
  if (options.add_special) ids.insert(ids.end(), parts_.post_processor.suffix.begin(), parts_.post_processor.suffix.end());
  return ids;
}

absl::StatusOr<int64_t> Tokenizer::LeastIds(std::string_view text, const EncodeOptions& options) const {
  int64_t least = 0;
  if (options.add_special) least = std::ssize(parts_.post_processor.prefix) + std::ssize(parts_.post_processor.suffix);
  const auto count_id = [&](const Section&) -> absl::Status {
    ++least;
    return absl::OkStatus();
  };
  const auto count_words = [&](const Words& words) -> absl::Status {
    for (const Words::Word& word : words.words) least += LeastIdsOf(words.Text(word));
    return absl::OkStatus();
  };
  LIME_RETURN_IF_ERROR(Split(text, options, count_id, count_words));
  return least;
}

// Characters that are no pieces do not count, because a model may drop or join them.
int64_t Tokenizer::LeastIdsOf(std::string_view word) const {
  size_t bytes = 0;
  for (size_t begin = 0, length = 0; begin < word.size(); begin += length) {
    length = DecodeUtf8(word.substr(begin)).length;
    if (parts_.model->vocab().Find(word.substr(begin, length)) >= 0) bytes += length;
  }
  return static_cast<int64_t>((bytes + longest_piece_ - 1) / longest_piece_);
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  StreamingDetokenizer detokenizer(*this, options);
  std::string text;
  for (const int32_t id : ids) text.append(detokenizer.Push(id));
  text.append(detokenizer.Finish());
  return text;
}

std::string_view Tokenizer::IdToText(int32_t id) const {
  const AddedToken* added = added_.Find(id);
  return added != nullptr ? std::string_view(added->content) : parts_.model->vocab().TokenText(id);
}

std::optional<int32_t> Tokenizer::TokenToId(std::string_view piece) const {
  const AddedToken* added = added_.FindContent(piece);
  const int32_t id = added != nullptr ? added->id : parts_.model->vocab().Find(piece);
  return id < 0 ? std::nullopt : std::optional<int32_t>(id);
}

std::string_view Tokenizer::DecodedText(int32_t id) const {
  const AddedToken* added = added_.Find(id);
  return added != nullptr && !added->form.empty() ? std::string_view(added->form) : IdToText(id);
}

bool Tokenizer::IsSpecial(int32_t id) const {
  const AddedToken* added = added_.FindContent(DecodedText(id));
  return added != nullptr && added->special;
}

}  // namespace lime
