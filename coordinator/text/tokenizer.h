// Converts text to ids and back, as the files of a checkpoint say: tokenizer.json, tokenizer.model,
// or vocab.json with merges.txt.
//
// Thread: any; immutable once loaded.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/components/added_tokens.h"
#include "coordinator/text/components/decoder.h"
#include "coordinator/text/components/normalizer.h"
#include "coordinator/text/components/post_processor.h"
#include "coordinator/text/components/pre_tokenizer.h"
#include "coordinator/text/subwords/model.h"
#include "coordinator/text/tokenizer_config.h"

namespace lime {

struct EncodeOptions {
  // Add BOS and other ids that the post-processor puts around the text.
  bool add_special = true;
  bool parse_special = true;  // special tokens in the text become their ids, if the files allow it
};

struct DecodeOptions {
  bool skip_special = true;  // special tokens give no text
};

// The parts of a tokenizer, from any kind of file.
struct TokenizerParts {
  std::vector<AddedToken> added_tokens;
  std::vector<NormalizeStep> normalizer;
  std::vector<PreTokenizeStep> pre_tokenizer;
  std::unique_ptr<TokenModel> model;
  PostProcessor post_processor;
  Decoder decoder;
};

class Tokenizer {
 public:
  // Prefers tokenizer.json, then tokenizer.model, then vocab.json with merges.txt. Also reads the
  // files beside it (tokenizer_config.h).
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& model_dir);

  // `name` is the source of the bytes, for errors.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromJson(std::string_view json, std::string_view name,
                                                             const TokenizerConfig& config = {});
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromSentencePiece(std::string_view bytes, std::string_view name,
                                                                      const TokenizerConfig& config = {});
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(TokenizerParts parts, const TokenizerConfig& config);

  // Broken UTF-8 is allowed: each maximal ill-formed part reads as U+FFFD.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions& options = {}) const;
  // A lower bound on the number of ids that Encode gives with these options, in a fraction of its
  // time: a word has at least one id, and one for as many bytes as the longest piece has.
  absl::StatusOr<int64_t> LeastIds(std::string_view text, const EncodeOptions& options = {}) const;

  // Always well-formed UTF-8: other bytes become U+FFFD. Ids without a piece give no text.
  std::string Decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;

  // One more than the largest id.
  int32_t vocab_size() const { return vocab_size_; }

  // The piece as in the file ("Ġthe", "▁the", "<0x0A>"); empty for an id without a piece.
  std::string_view IdToText(int32_t id) const;
  std::optional<int32_t> TokenToId(std::string_view piece) const;

  // A control token, not text: Decode skips it.
  bool IsSpecial(int32_t id) const;

  std::optional<int32_t> bos_id() const { return bos_id_; }
  std::optional<int32_t> eos_id() const { return eos_id_; }

  // For StreamingDetokenizer: the bytes that an id adds to a text, and the rule that strips the
  // beginning of the text.
  std::string_view TokenBytes(int32_t id, bool first) const {
    return (first && parts_.decoder.first_differs() ? first_bytes_ : bytes_).Bytes(id);
  }
  bool replaces_by_byte() const { return parts_.decoder.replaces_by_byte(); }
  const StripRule& strip() const { return parts_.decoder.strip(); }

 private:
  explicit Tokenizer(TokenizerParts parts, AddedTokens added) : parts_(std::move(parts)), added_(std::move(added)) {}

  // The piece from which an id is decoded. For an added token that is found in normalised text: its
  // normalised form.
  std::string_view DecodedText(int32_t id) const;
  void PlaceEnds(const TokenizerConfig& config);
  absl::Status Finish(const TokenizerConfig& config);
  // Calls `on_id` for each added token and `on_words` for each text between two of them, in order.
  template <typename OnId, typename OnWords>
  absl::Status Split(std::string_view text, const EncodeOptions& options, OnId on_id, OnWords on_words) const;
  absl::StatusOr<Words> SplitWords(std::string_view text, size_t start_bytes) const;
  int64_t LeastIdsOf(std::string_view word) const;

  TokenizerParts parts_;
  AddedTokens added_;
  bool split_special_tokens_ = false;
  int32_t vocab_size_ = 0;
  size_t longest_piece_ = 1;  // bytes
  std::optional<int32_t> bos_id_;
  std::optional<int32_t> eos_id_;
  ByteTable bytes_;
  ByteTable first_bytes_;
};

}  // namespace lime
