#include "testbed/train/bpe_trainer.h"

#include <array>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "planner/base/status.h"

namespace lime::train {
namespace {

constexpr int kFirstMergeId = kFirstByteId + 256;

bool IsLetter(unsigned char c) {
  return ((c | 32) >= 'a' && (c | 32) <= 'z') || c >= 128;
}
bool IsDigit(unsigned char c) {
  return c >= '0' && c <= '9';
}
bool IsSpace(unsigned char c) {
  return c == ' ' || (c >= 9 && c <= 13);
}
bool IsOther(unsigned char c) {
  return !IsLetter(c) && !IsDigit(c) && !IsSpace(c);
}

size_t ContractionLength(std::string_view text) {
  for (std::string_view end : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (text.substr(0, end.size()) == end) return end.size();
  }
  return 0;
}

// Length of the first word of a text that is not empty.
size_t WordLength(std::string_view text) {
  if (const size_t n = ContractionLength(text)) return n;
  const size_t begin = text[0] == ' ' && text.size() > 1 ? 1 : 0;
  for (auto same_kind : {IsLetter, IsDigit, IsOther}) {
    size_t n = begin;
    while (n < text.size() && same_kind(text[n])) ++n;
    if (n > begin) return n;
  }
  size_t spaces = 0;
  while (spaces < text.size() && IsSpace(text[spaces])) ++spaces;
  return spaces < text.size() && spaces > 1 ? spaces - 1 : spaces;  // the last space belongs to the word behind it
}

std::string Utf8(int code_point) {
  if (code_point < 128) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 63))};
}

// How tokenizer.json prints each byte: itself where it is a visible Latin-1 character, otherwise
// U+0100 and up.
const std::array<std::string, 256>& ByteNames() {
  static const auto names = [] {
    std::array<std::string, 256> out;
    int next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool visible = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      out[b] = Utf8(visible ? b : next++);
    }
    return out;
  }();
  return names;
}

std::string NameOf(std::string_view bytes) {
  std::string out;
  for (unsigned char b : bytes) out += ByteNames()[b];
  return out;
}

void ReplacePair(std::vector<int>& ids, ByteBpe::Merge pair, int id) {
  size_t out = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool hit = i + 1 < ids.size() && ids[i] == pair.first && ids[i + 1] == pair.second;
    ids[out++] = hit ? id : ids[i];
    if (hit) ++i;
  }
  ids.resize(out);
}

std::vector<int> ByteIds(std::string_view word) {
  std::vector<int> ids;
  for (unsigned char b : word) ids.push_back(kFirstByteId + b);
  return ids;
}

nlohmann::ordered_json TokenJson(int id, std::string_view content, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

nlohmann::ordered_json BosTemplate() {
  const auto special = [](int type) { return nlohmann::ordered_json{{"SpecialToken", {{"id", "<s>"}, {"type_id", type}}}}; };
  const auto sequence = [](std::string_view id, int type) { return nlohmann::ordered_json{{"Sequence", {{"id", id}, {"type_id", type}}}}; };
  nlohmann::ordered_json out{{"type", "TemplateProcessing"}};
  out["single"] = {special(0), sequence("A", 0)};
  out["pair"] = {special(0), sequence("A", 0), special(1), sequence("B", 1)};
  out["special_tokens"]["<s>"] = {{"id", "<s>"}, {"ids", {kBosId}}, {"tokens", {"<s>"}}};
  return out;
}

}  // namespace

std::vector<std::string_view> SplitWords(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t n = WordLength(text);
    words.push_back(text.substr(0, n));
    text.remove_prefix(n);
  }
  return words;
}

ByteBpe::ByteBpe(std::vector<Merge> merges, std::vector<AddedToken> added)
    : merges_(std::move(merges)), added_(std::move(added)), bytes_(kFirstMergeId) {
  for (int b = 0; b < 256; ++b) bytes_[kFirstByteId + b] = std::string(1, static_cast<char>(b));
  for (const Merge& merge : merges_) {
    rank_[merge] = static_cast<int>(bytes_.size());
    bytes_.push_back(bytes_[merge.first] + bytes_[merge.second]);
  }
  for (const AddedToken& token : added_) bytes_.push_back(token.special ? "" : token.content);
}

ByteBpe ByteBpe::Train(const WordCounts& words, int vocab_size) {
  return ByteBpe(std::vector<Merge>()).Extended(words, vocab_size, {});
}

ByteBpe ByteBpe::Extended(const WordCounts& words, int vocab_size, std::vector<AddedToken> added) const {
  std::vector<std::pair<std::vector<int>, int64_t>> split;
  for (const auto& [word, count] : words) split.emplace_back(EncodeWord(word), count);
  std::vector<Merge> merges = merges_;
  while (kFirstMergeId + static_cast<int>(merges.size() + added.size()) < vocab_size) {
    std::map<Merge, int64_t> pairs;
    for (const auto& [ids, count] : split) {
      for (size_t i = 0; i + 1 < ids.size(); ++i) pairs[{ids[i], ids[i + 1]}] += count;
    }
    Merge best;
    int64_t most = 1;
    for (const auto& [pair, count] : pairs) {
      if (count > most) best = pair, most = count;
    }
    if (most == 1) break;
    for (auto& [ids, count] : split) ReplacePair(ids, best, kFirstMergeId + static_cast<int>(merges.size()));
    merges.push_back(best);
  }
  return ByteBpe(std::move(merges), std::move(added));
}

std::vector<int> ByteBpe::EncodeWord(std::string_view word) const {
  std::vector<int> ids = ByteIds(word);
  while (true) {
    int lowest = std::numeric_limits<int>::max();
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      if (const auto merge = rank_.find({ids[i], ids[i + 1]}); merge != rank_.end()) lowest = std::min(lowest, merge->second);
    }
    if (lowest == std::numeric_limits<int>::max()) return ids;
    ReplacePair(ids, merges_[lowest - kFirstMergeId], lowest);
  }
}

void ByteBpe::EncodePlain(std::string_view text, std::vector<int>& ids) const {
  for (std::string_view word : SplitWords(text)) {
    auto [entry, fresh] = cache_.try_emplace(std::string(word));
    if (fresh) entry->second = EncodeWord(word);
    ids.insert(ids.end(), entry->second.begin(), entry->second.end());
  }
}

std::vector<int> ByteBpe::Encode(std::string_view text) const {
  std::vector<int> ids;
  while (true) {
    size_t first = std::string_view::npos, token = 0;
    for (size_t i = 0; i < added_.size(); ++i) {
      const size_t at = text.find(added_[i].content);
      if (at < first) first = at, token = i;
    }
    EncodePlain(text.substr(0, first), ids);
    if (first == std::string_view::npos) return ids;
    ids.push_back(first_added_id() + static_cast<int>(token));
    text.remove_prefix(first + added_[token].content.size());
  }
}

std::string ByteBpe::Decode(const std::vector<int>& ids) const {
  std::string text;
  for (int id : ids) text += bytes_[id];
  return text;
}

nlohmann::ordered_json ByteBpe::ToJson() const {
  nlohmann::ordered_json vocab{{"<s>", kBosId}, {"</s>", kEosId}}, merges = nlohmann::ordered_json::array();
  for (int id = kFirstByteId; id < first_added_id(); ++id) vocab[NameOf(bytes_[id])] = id;
  for (const auto& [left, right] : merges_) merges.push_back(absl::StrCat(NameOf(bytes_[left]), " ", NameOf(bytes_[right])));
  const auto byte_level = [](bool use_regex) {
    return nlohmann::ordered_json{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
  };
  nlohmann::ordered_json out{{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  out["added_tokens"] = {TokenJson(kBosId, "<s>", true), TokenJson(kEosId, "</s>", true)};
  for (size_t i = 0; i < added_.size(); ++i)
    out["added_tokens"].push_back(TokenJson(first_added_id() + static_cast<int>(i), added_[i].content, added_[i].special));
  out["normalizer"] = nullptr;
  out["pre_tokenizer"] = byte_level(true);
  out["post_processor"] = {{"type", "Sequence"}, {"processors", {byte_level(true), BosTemplate()}}};
  out["decoder"] = byte_level(true);
  out["model"] = {{"type", "BPE"},
                  {"dropout", nullptr},
                  {"unk_token", nullptr},
                  {"continuing_subword_prefix", nullptr},
                  {"end_of_word_suffix", nullptr},
                  {"fuse_unk", false},
                  {"byte_fallback", false},
                  {"ignore_merges", false},
                  {"vocab", vocab},
                  {"merges", merges}};
  return out;
}

absl::StatusOr<ByteBpe> ByteBpe::FromJson(const nlohmann::json& tokenizer) {
  const auto bad = [](std::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.json is not one that this trainer wrote: ", std::string(what)));
  };
  if (!tokenizer.is_object() || !tokenizer.contains("model")) return bad("it has no model");
  const auto& model = tokenizer["model"];
  if (!model.is_object() || !model.contains("vocab") || !model.contains("merges")) return bad("it has no vocab or no merges");
  std::vector<Merge> merges;
  for (const auto& line : model["merges"]) {
    if (!line.is_string()) return bad("a merge is not a string");
    const std::pair<std::string, std::string> names = absl::StrSplit(line.get<std::string>(), absl::MaxSplits(' ', 1));
    if (!model["vocab"].contains(names.first) || !model["vocab"].contains(names.second)) return bad("a merge has unknown tokens");
    const int made = kFirstMergeId + static_cast<int>(merges.size());
    const int left = model["vocab"][names.first], right = model["vocab"][names.second];
    if (left < kFirstByteId || right < kFirstByteId || left >= made || right >= made) return bad("a merge comes before its parts");
    merges.emplace_back(left, right);
  }
  std::vector<AddedToken> added;
  for (const auto& token : tokenizer.value("added_tokens", nlohmann::json::array())) {
    if (token.at("id") >= kFirstByteId) added.push_back({token.at("content"), token.at("special")});
  }
  return ByteBpe(std::move(merges), std::move(added));
}

}  // namespace lime::train
