#include <cmath>

#include "absl/strings/str_cat.h"
#include "coordinator/text/subwords/bpe.h"
#include "coordinator/text/subwords/unigram.h"
#include "coordinator/text/tokenizer_files.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

absl::StatusOr<Vocab> ParseVocab(const TokenizerJson& vocab) {
  if (!vocab.is_object()) return absl::InvalidArgumentError("model: \"vocab\" is not an object");
  std::vector<std::pair<std::string, int64_t>> pieces;
  pieces.reserve(vocab.size());
  for (const auto& [piece, id] : vocab.items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT64_MAX) {
      return Invalid("model: the id of piece \"", piece, "\" is not a whole number");
    }
    pieces.emplace_back(piece, id.get<int64_t>());
  }
  return Vocab::Create(std::move(pieces));
}

// Splits "a b" or ["a", "b"]. The views point into `merge`.
absl::StatusOr<std::pair<std::string_view, std::string_view>> MergeParts(const TokenizerJson& merge) {
  if (merge.is_string()) {
    const std::string_view text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      return std::pair(text.substr(0, space), text.substr(space + 1));
    }
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::pair<std::string_view, std::string_view>(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>());
  }
  return absl::InvalidArgumentError("it is neither \"left right\" nor [left, right]");
}

absl::Status AddMerge(const TokenizerJson& merge, uint32_t rank, std::string_view continuing_prefix, const Vocab& vocab,
                      MergeTable& table) {
  LIME_ASSIGN_OR_RETURN(const auto parts, MergeParts(merge));
  const auto& [left, right] = parts;
  const std::string_view tail = right.starts_with(continuing_prefix) ? right.substr(continuing_prefix.size()) : right;
  const std::string joined = absl::StrCat(Text(left), Text(tail));
  const int32_t left_id = vocab.Find(left), right_id = vocab.Find(right), result = vocab.Find(joined);
  if (left_id < 0 || right_id < 0 || result < 0) {
    const std::string_view missing = left_id < 0 ? left : right_id < 0 ? right : std::string_view(joined);
    return Invalid("piece \"", Text(missing), "\" is not in the vocabulary");
  }
  table[{left_id, right_id}] = {rank, result};
  return absl::OkStatus();
}

absl::StatusOr<MergeTable> ParseMerges(const TokenizerJson& merges, std::string_view continuing_prefix, const Vocab& vocab) {
  if (!merges.is_array()) return absl::InvalidArgumentError("model: \"merges\" is not an array");
  MergeTable table;
  table.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    // The first line of merges.txt. The library skips it too.
    if (merges[i].is_string() && merges[i].get_ref<const std::string&>().starts_with("#version")) continue;
    if (const auto added = AddMerge(merges[i], static_cast<uint32_t>(i), continuing_prefix, vocab, table); !added.ok()) {
      return Invalid("model: merge ", i, ": ", added.message());
    }
  }
  return table;
}

// An unknown token that is not in the vocabulary is an error only for a text that needs it.
absl::Status FindUnknown(const TokenizerJson& model, const Vocab& vocab, UnknownPolicy& policy) {
  if (Field(model, "unk_token").is_null()) return absl::OkStatus();
  LIME_ASSIGN_OR_RETURN(const std::string token, StringField(model, "unk_token", ""));
  policy.unk_id = vocab.Find(token);
  if (policy.unk_id < 0) policy.missing = absl::StrCat("unk_token \"", token, "\" is not in the vocabulary");
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TokenModel>> ParseBpe(const TokenizerJson& model) {
  if (const TokenizerJson& dropout = Field(model, "dropout"); !dropout.is_null() && dropout != 0.0) {
    return absl::UnimplementedError("model: BPE with dropout is not supported; supported is dropout null");
  }
  BpeModel::Options options;
  LIME_ASSIGN_OR_RETURN(auto vocab, ParseVocab(Field(model, "vocab")));
  LIME_RETURN_IF_ERROR(FindUnknown(model, vocab, options.unknown));
  LIME_ASSIGN_OR_RETURN(options.unknown.fuse_unk, BoolField(model, "fuse_unk", false));
  LIME_ASSIGN_OR_RETURN(options.unknown.byte_fallback, BoolField(model, "byte_fallback", false));
  LIME_ASSIGN_OR_RETURN(options.ignore_merges, BoolField(model, "ignore_merges", false));
  LIME_ASSIGN_OR_RETURN(options.continuing_subword_prefix, StringField(model, "continuing_subword_prefix", ""));
  LIME_ASSIGN_OR_RETURN(options.end_of_word_suffix, StringField(model, "end_of_word_suffix", ""));
  LIME_ASSIGN_OR_RETURN(auto merges, ParseMerges(Field(model, "merges"), options.continuing_subword_prefix, vocab));
  return std::make_unique<BpeModel>(std::move(options), std::move(vocab), std::move(merges));
}

absl::StatusOr<std::unique_ptr<TokenModel>> ParseUnigram(const TokenizerJson& model) {
  UnigramModel::Options options;
  std::vector<std::pair<std::string, int64_t>> pieces;
  for (const TokenizerJson& entry : Field(model, "vocab")) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      return absl::InvalidArgumentError("model: an entry of the Unigram \"vocab\" is not [piece, score]");
    }
    pieces.emplace_back(entry[0].get<std::string>(), static_cast<int64_t>(pieces.size()));
    options.scores.push_back(entry[1].get<double>());
    if (!std::isfinite(options.scores.back())) return absl::InvalidArgumentError("model: a score of the Unigram \"vocab\" is not finite");
  }
  LIME_ASSIGN_OR_RETURN(auto vocab, Vocab::Create(std::move(pieces)));
  LIME_ASSIGN_OR_RETURN(const int64_t unk_id, IntField(model, "unk_id", -1));
  if (unk_id < -1 || unk_id >= vocab.size()) return Invalid("model: unk_id ", unk_id, " is not in the vocabulary");
  LIME_ASSIGN_OR_RETURN(options.unknown.byte_fallback, BoolField(model, "byte_fallback", false));
  options.unknown.unk_id = static_cast<int32_t>(unk_id);
  options.unknown.fuse_unk = true;
  options.unknown.missing = "the model has no unk_id";
  return std::make_unique<UnigramModel>(std::move(options), std::move(vocab));
}

absl::StatusOr<std::unique_ptr<TokenModel>> ParseModel(const TokenizerJson& model) {
  if (!model.is_object()) return absl::InvalidArgumentError("\"model\" is missing");
  // Old files lack the field; they hold BPE if they have merges.
  LIME_ASSIGN_OR_RETURN(const std::string type, StringField(model, "type", Field(model, "merges").is_array() ? "BPE" : ""));
  if (type == "BPE") return ParseBpe(model);
  if (type == "Unigram") return ParseUnigram(model);
  return absl::UnimplementedError(absl::StrCat("model \"", type, "\" is not supported; supported are BPE and Unigram"));
}

}  // namespace

absl::StatusOr<TokenizerParts> PartsFromJson(const TokenizerJson& json) {
  TokenizerParts parts;
  LIME_ASSIGN_OR_RETURN(parts.added_tokens, AddedTokens::Parse(Field(json, "added_tokens")));
  LIME_ASSIGN_OR_RETURN(parts.normalizer, ParseNormalizer(Field(json, "normalizer")));
  LIME_ASSIGN_OR_RETURN(parts.pre_tokenizer, ParsePreTokenizer(Field(json, "pre_tokenizer")));
  LIME_ASSIGN_OR_RETURN(parts.model, ParseModel(Field(json, "model")));
  LIME_ASSIGN_OR_RETURN(parts.post_processor, ParsePostProcessor(Field(json, "post_processor")));
  LIME_ASSIGN_OR_RETURN(parts.decoder, Decoder::Parse(Field(json, "decoder")));
  return parts;
}

}  // namespace lime
