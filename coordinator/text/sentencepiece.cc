#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "coordinator/text/components/charsmap.h"
#include "coordinator/text/subwords/bpe.h"
#include "coordinator/text/subwords/unigram.h"
#include "coordinator/text/tokenizer_files.h"
#include "coordinator/text/unicode/utf8.h"
#include "lime/v1/sentencepiece_model.pb.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

using v1::sentencepiece::ModelProto;
using v1::sentencepiece::NormalizerSpec;
using v1::sentencepiece::TrainerSpec;
using Piece = ModelProto::SentencePiece;

constexpr std::string_view kSpaceMark = "\u2581";
constexpr size_t kMaxPieceBytes = 512;

// The normalizer of a SentencePiece model.
struct SentencePieceNormalizer {
  bool add_dummy_prefix;
  bool only_first;  // no prefix behind an added token
  bool remove_extra_spaces;
  bool escape_spaces;
  Charsmap charsmap;
  ByteTrie user_defined;  // not changed

  // The replacement of the beginning of `text`, and how many bytes of `text` it replaces.
  std::pair<std::string_view, size_t> Front(std::string_view text) const {
    if (const auto piece = user_defined.LongestPrefix(text); piece.length > 0) return {text.substr(0, piece.length), piece.length};
    if (const auto match = charsmap.LongestPrefix(text); match.length > 0) return {match.replacement, match.length};
    const size_t length = DecodeUtf8(text).length;
    return {text.substr(0, length), length};
  }

  void Append(std::string_view text, std::string& out) const {
    for (const char c : text) {
      if (c == ' ' && escape_spaces) {
        out.append(kSpaceMark);
      } else {
        out.push_back(c);
      }
    }
  }

  absl::Status operator()(NormalizedText& result) const {
    const std::string input = std::move(result.text);
    std::string_view text = input;
    while (remove_extra_spaces && !text.empty() && Front(text).first == " ") text.remove_prefix(Front(text).second);
    std::string& out = result.text = "";
    if (text.empty()) return absl::OkStatus();
    if (add_dummy_prefix && (result.start_bytes > 0 || !only_first)) Append(" ", out);
    bool after_space = remove_extra_spaces;
    while (!text.empty()) {
      auto [front, length] = Front(text);
      while (after_space && front.starts_with(' ')) front.remove_prefix(1);
      Append(front, out);
      if (!front.empty()) after_space = remove_extra_spaces && front.ends_with(" ");
      text.remove_prefix(length);
      LIME_RETURN_IF_ERROR(CheckTextSize(out.size()));
    }
    const std::string_view space = escape_spaces ? kSpaceMark : " ";
    while (remove_extra_spaces && out.ends_with(space)) out.resize(out.size() - space.size());
    return absl::OkStatus();
  }
};

bool ComesFromText(const Piece& piece) {
  return piece.type() == Piece::NORMAL || piece.type() == Piece::USER_DEFINED || piece.type() == Piece::UNUSED;
}

absl::Status CheckPiece(const Piece& piece, int id) {
  if (piece.piece().empty() || piece.piece().size() > kMaxPieceBytes || !IsUtf8(piece.piece())) {
    return Invalid("piece ", id, " is empty, longer than ", kMaxPieceBytes, " bytes or not UTF-8");
  }
  if (!std::isfinite(piece.score())) return Invalid("piece ", id, " has a score that is not finite");
  return absl::OkStatus();
}

absl::StatusOr<Vocab> MakeVocab(const ModelProto& model) {
  std::vector<std::pair<std::string, int64_t>> pieces;
  for (int id = 0; id < model.pieces_size(); ++id) {
    LIME_RETURN_IF_ERROR(CheckPiece(model.pieces(id), id));
    pieces.emplace_back(model.pieces(id).piece(), id);
  }
  return Vocab::Create(std::move(pieces));
}

UnknownPolicy MakeUnknownPolicy(const ModelProto& model) {
  UnknownPolicy policy{.byte_fallback = model.trainer_spec().byte_fallback(), .unk_id = -1, .fuse_unk = true};
  for (int id = 0; id < model.pieces_size(); ++id) {
    if (model.pieces(id).type() == Piece::UNKNOWN) policy.unk_id = id;
  }
  return policy;
}

// Finds every way to join two symbols to a piece, since SentencePiece tries that for each pair of
// neighbours.
class MergeBuilder {
 public:
  MergeBuilder(const ModelProto& model, const Vocab& vocab) : model_(model), vocab_(vocab) {
    std::map<float, uint32_t, std::greater<>> ranks;
    for (const Piece& piece : model.pieces()) ranks[piece.score()] = 0;
    uint32_t next = 0;
    for (auto& [score, rank] : ranks) rank = next++;
    for (int id = 0; id < model.pieces_size(); ++id) {
      if (ComesFromText(model.pieces(id))) AddPiece(id, ranks[model.pieces(id).score()]);
    }
  }

  MergeTable& table() { return table_; }
  std::vector<std::string>& loose_chars() { return loose_chars_; }

 private:
  void AddPiece(int id, uint32_t rank) {
    const std::string_view piece = vocab_.TokenText(id);
    for (size_t cut = DecodeUtf8(piece).length; cut < piece.size(); cut += DecodeUtf8(piece.substr(cut)).length) {
      const int32_t left = Symbol(piece.substr(0, cut)), right = Symbol(piece.substr(cut));
      if (left >= 0 && right >= 0) table_[{left, right}] = {rank, id};
    }
  }

  // A piece, or a character that is no piece; -1 for anything else.
  int32_t Symbol(std::string_view text) {
    const int32_t id = vocab_.Find(text);
    if (id >= 0 && ComesFromText(model_.pieces(id))) return id;
    if (static_cast<size_t>(DecodeUtf8(text).length) < text.size()) return -1;
    const auto next = vocab_.size() + static_cast<int32_t>(loose_chars_.size());
    const auto [it, added] = loose_.try_emplace(std::string(text), next);
    if (added) loose_chars_.emplace_back(text);
    return it->second;
  }

  const ModelProto& model_;
  const Vocab& vocab_;
  MergeTable table_;
  std::vector<std::string> loose_chars_;
  absl::flat_hash_map<std::string, int32_t> loose_;
};

std::unique_ptr<TokenModel> MakeBpe(const ModelProto& model, Vocab vocab) {
  MergeBuilder builder(model, vocab);
  BpeModel::SentencePieceRules rules;
  rules.loose_chars = std::move(builder.loose_chars());
  for (int id = 0; id < model.pieces_size(); ++id) {
    if (model.pieces(id).type() == Piece::USER_DEFINED) rules.whole_words.insert(id);
    if (model.pieces(id).type() == Piece::UNUSED) rules.unused.insert(id);
    if (!ComesFromText(model.pieces(id))) rules.not_from_text.insert(id);
  }
  MergeTable merges = std::move(builder.table());
  return std::make_unique<BpeModel>(BpeModel::Options{.unknown = MakeUnknownPolicy(model)}, std::move(vocab), std::move(merges),
                                    std::move(rules));
}

std::unique_ptr<TokenModel> MakeUnigram(const ModelProto& model, Vocab vocab) {
  UnigramModel::Options options{.unknown = MakeUnknownPolicy(model)};
  for (int id = 0; id < model.pieces_size(); ++id) {
    const auto type = model.pieces(id).type();
    options.scores.push_back(model.pieces(id).score());
    if (type == Piece::USER_DEFINED) options.user_defined.insert(id);
    if (type != Piece::USER_DEFINED && type != Piece::NORMAL) options.not_from_text.insert(id);
  }
  return std::make_unique<UnigramModel>(std::move(options), std::move(vocab));
}

absl::StatusOr<std::unique_ptr<TokenModel>> MakeModel(const ModelProto& model) {
  LIME_ASSIGN_OR_RETURN(auto vocab, MakeVocab(model));
  switch (model.trainer_spec().model_type()) {
    case TrainerSpec::BPE:
      return MakeBpe(model, std::move(vocab));
    case TrainerSpec::UNIGRAM:
      return MakeUnigram(model, std::move(vocab));
    default:
      return absl::UnimplementedError(absl::StrCat("SentencePiece model type ", static_cast<int>(model.trainer_spec().model_type()),
                                                   " is not supported; supported are 1 (unigram) and 2 (BPE)"));
  }
}

absl::Status AddTextSteps(const ModelProto& model, bool add_prefix, bool legacy, TokenizerParts& parts) {
  const NormalizerSpec& spec = model.normalizer_spec();
  if (model.trainer_spec().treat_whitespace_as_suffix()) {
    return absl::UnimplementedError("treat_whitespace_as_suffix is not supported; supported is white space before a word");
  }
  LIME_ASSIGN_OR_RETURN(auto charsmap, Charsmap::Parse(spec.precompiled_charsmap()));
  ByteTrie user_defined;
  for (int id = 0; id < model.pieces_size(); ++id) {
    if (model.pieces(id).type() == Piece::USER_DEFINED) user_defined.Insert(model.pieces(id).piece(), id);
  }
  if (!user_defined.empty() && model.trainer_spec().model_type() == TrainerSpec::BPE) {
    const auto find = [user_defined](std::string_view word, std::vector<TextRange>& ranges) {
      for (size_t begin = 0, length = 0; begin < word.size(); begin += length) {
        length = user_defined.LongestPrefix(word.substr(begin)).length;
        if (length > 0) ranges.push_back({begin, begin + length});
        if (length == 0) length = DecodeUtf8(word.substr(begin)).length;
      }
      return absl::OkStatus();
    };
    parts.pre_tokenizer.push_back(SplitStep(find, SplitBehavior::kIsolated, false));
  }
  parts.normalizer.push_back(SentencePieceNormalizer{add_prefix, !legacy, spec.remove_extra_whitespaces(), spec.escape_whitespaces(),
                                                     std::move(charsmap), std::move(user_defined)});
  return absl::OkStatus();
}

absl::StatusOr<Decoder> MakeDecoder(const NormalizerSpec& spec, bool add_prefix) {
  TokenizerJson steps = TokenizerJson::array();
  if (spec.escape_whitespaces()) steps.push_back({{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}});
  steps.push_back({{"type", "ByteFallback"}});
  steps.push_back({{"type", "Fuse"}});
  if (add_prefix) steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return Decoder::Parse({{"type", "Sequence"}, {"decoders", steps}});
}

// Takes BOS and EOS from the model if the configuration does not name them.
void CompleteConfig(const ModelProto& model, TokenizerConfig& config) {
  const auto piece = [&](int id) -> std::optional<std::string> {
    if (id < 0 || id >= model.pieces_size()) return std::nullopt;
    return model.pieces(id).piece();
  };
  if (!config.bos_token.has_value()) config.bos_token = piece(model.trainer_spec().bos_id());
  if (!config.eos_token.has_value()) config.eos_token = piece(model.trainer_spec().eos_id());
  if (!config.add_bos_token.has_value()) config.add_bos_token = true;
}

// Whether this is a line of a tiktoken file: a piece in base64, and its rank.
bool IsTiktokenLine(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == 0 || space == std::string_view::npos || space + 1 == line.size()) return false;
  std::string piece;
  return absl::Base64Unescape(Text(line.substr(0, space)), &piece) && std::ranges::all_of(line.substr(space + 1), absl::ascii_isdigit);
}

// Explains what the file is instead of a model.
absl::Status NoModel(std::string_view bytes) {
  if (bytes.empty()) return absl::InvalidArgumentError("is empty; download it again");
  if (IsTiktokenLine(bytes.substr(0, bytes.find_first_of("\r\n"))))
    return absl::UnimplementedError("is a file of tiktoken, which LIME does not read; download tokenizer.json, which LIME reads instead");
  return absl::InvalidArgumentError("is truncated, or is not a SentencePiece model; download it again");
}

}  // namespace

absl::StatusOr<TokenizerParts> PartsFromSentencePiece(std::string_view bytes, TokenizerConfig& config) {
  ModelProto model;
  const bool is_read = bytes.size() <= INT32_MAX && model.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  // trainer_spec comes after the pieces, so it is missing if the file is cut short.
  if (!is_read || model.pieces_size() == 0 || !model.has_trainer_spec()) return NoModel(bytes);
  TokenizerParts parts;
  const bool add_prefix = model.normalizer_spec().add_dummy_prefix() && config.add_prefix_space.value_or(true);
  LIME_ASSIGN_OR_RETURN(parts.model, MakeModel(model));
  LIME_RETURN_IF_ERROR(AddTextSteps(model, add_prefix, config.legacy, parts));
  LIME_ASSIGN_OR_RETURN(parts.decoder, MakeDecoder(model.normalizer_spec(), add_prefix));
  for (int id = 0; id < model.pieces_size(); ++id) {
    const Piece& piece = model.pieces(id);
    if (piece.type() != Piece::CONTROL && piece.type() != Piece::UNKNOWN) continue;
    parts.added_tokens.push_back({.id = id, .content = piece.piece(), .special = true});
  }
  CompleteConfig(model, config);
  // Find them in the raw text: the normalizer's prefix would hide a token behind another one.
  for (AddedToken& token : config.added_tokens) token.normalized = false;
  return parts;
}

}  // namespace lime
