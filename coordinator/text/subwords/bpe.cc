#include "coordinator/text/subwords/bpe.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/text/unicode/utf8.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

// A run of the word's bytes that is one piece so far. Symbols are a doubly linked list in a vector.
struct Symbol {
  int32_t id = -1;  // -1: no piece
  int32_t prev = -1;
  int32_t next = -1;
  uint32_t begin = 0;   // offset in the word, in bytes
  uint32_t length = 0;  // in bytes; 0: joined into an earlier symbol
};

// A join that was possible when it was recorded. It is checked again before it is done.
struct MergeCandidate {
  uint32_t rank;
  int32_t position;  // of the left symbol
  int32_t result;
};

bool Later(const MergeCandidate& a, const MergeCandidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

class Merger {
 public:
  Merger(const MergeTable& table, std::vector<Symbol>& symbols) : table_(table), symbols_(symbols) {}

  // Calls joined(result, left id, right id) for each join.
  template <typename Joined>
  void Run(Joined joined) {
    Link();
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), Later);
      const MergeCandidate top = heap_.back();
      heap_.pop_back();
      const Merge* merge = Find(top.position);
      if (merge == nullptr || merge->result != top.result) continue;
      Symbol& left = symbols_[top.position];
      joined(top.result, left.id, symbols_[left.next].id);
      Join(left, top.result);
      Note(left.prev);
      Note(top.position);
    }
  }

 private:
  void Link() {
    const auto count = static_cast<int32_t>(symbols_.size());
    for (int32_t i = 0; i < count; ++i) {
      symbols_[i].prev = i - 1;
      symbols_[i].next = i + 1 < count ? i + 1 : -1;
    }
    for (int32_t i = 0; i + 1 < count; ++i) {
      if (const Merge* merge = Find(i)) heap_.push_back({merge->rank, i, merge->result});
    }
    std::make_heap(heap_.begin(), heap_.end(), Later);
  }

  const Merge* Find(int32_t position) const {
    const Symbol& left = symbols_[position];
    if (left.length == 0 || left.next < 0 || left.id < 0) return nullptr;
    const auto it = table_.find({left.id, symbols_[left.next].id});
    return it == table_.end() ? nullptr : &it->second;
  }

  void Note(int32_t position) {
    const Merge* merge = position < 0 ? nullptr : Find(position);
    if (merge == nullptr) return;
    heap_.push_back({merge->rank, position, merge->result});
    std::push_heap(heap_.begin(), heap_.end(), Later);
  }

  void Join(Symbol& left, int32_t result) {
    Symbol& right = symbols_[left.next];
    left.id = result;
    left.length += right.length;
    left.next = right.next;
    right.length = 0;
    if (left.next >= 0) symbols_[left.next].prev = static_cast<int32_t>(&left - symbols_.data());
  }

  const MergeTable& table_;
  std::vector<Symbol>& symbols_;
  std::vector<MergeCandidate> heap_;
};

using Splits = absl::flat_hash_map<int32_t, std::pair<int32_t, int32_t>>;

// Splits an unused piece again into the pieces that it was last joined from.
void AppendSplit(int32_t id, const Splits& splits, std::vector<int32_t>& ids) {
  std::vector<int32_t> pending = {id};
  while (!pending.empty()) {
    const int32_t top = pending.back();
    pending.pop_back();
    const auto it = splits.find(top);
    if (it == splits.end()) {
      ids.push_back(top);
    } else {
      pending.push_back(it->second.second);
      pending.push_back(it->second.first);
    }
  }
}

}  // namespace

BpeModel::BpeModel(Options options, Vocab vocab, MergeTable merges)
    : options_(std::move(options)), vocab_(std::move(vocab)), merges_(std::move(merges)), late_fallback_(false) {}

BpeModel::BpeModel(Options options, Vocab vocab, MergeTable merges, SentencePieceRules rules)
    : options_(std::move(options)), vocab_(std::move(vocab)), merges_(std::move(merges)), late_fallback_(true), rules_(std::move(rules)) {
  for (size_t i = 0; i < rules_.loose_chars.size(); ++i) loose_[rules_.loose_chars[i]] = vocab_.size() + static_cast<int32_t>(i);
}

int32_t BpeModel::FindSymbol(std::string_view text) const {
  const int32_t id = vocab_.Find(text);
  if (id >= 0 && !rules_.not_from_text.contains(id)) return id;
  const auto loose = loose_.find(text);
  return loose == loose_.end() ? -1 : loose->second;
}

absl::Status BpeModel::Tokenize(std::string_view word, std::vector<int32_t>& ids) const {
  if (options_.ignore_merges || !rules_.whole_words.empty()) {
    const int32_t id = vocab_.Find(word);
    if (id >= 0 && (options_.ignore_merges || rules_.whole_words.contains(id))) {
      ids.push_back(id);
      return absl::OkStatus();
    }
  }
  return late_fallback_ ? TokenizeLate(word, ids) : TokenizeEarly(word, ids);
}

// The ids of the word's characters. An unknown token is held back until the next known character,
// so the bytes of later characters come before it.
absl::Status BpeModel::AppendSymbols(std::string_view word, std::vector<int32_t>& symbols) const {
  const UnknownPolicy& policy = options_.unknown;
  bool unknown_waits = false;
  std::string affixed;
  for (size_t begin = 0, length = 0; begin < word.size(); begin += length) {
    length = DecodeUtf8(word.substr(begin)).length;
    std::string_view text = word.substr(begin, length);
    const std::string_view prefix = begin > 0 ? std::string_view(options_.continuing_subword_prefix) : "";
    const std::string_view suffix = begin + length == word.size() ? std::string_view(options_.end_of_word_suffix) : "";
    if (!prefix.empty() || !suffix.empty()) text = affixed = absl::StrCat(Text(prefix), Text(text), Text(suffix));
    if (const int32_t id = vocab_.Find(text); id >= 0) {
      if (unknown_waits) symbols.push_back(policy.unk_id);
      unknown_waits = false;
      symbols.push_back(id);
    } else if (!AppendBytes(text, policy, vocab_, symbols)) {
      if (policy.unk_id < 0) LIME_RETURN_IF_ERROR(NoUnknownToken(text, policy));
      if (unknown_waits && !policy.fuse_unk) symbols.push_back(policy.unk_id);
      unknown_waits = policy.unk_id >= 0;
    }
  }
  if (unknown_waits) symbols.push_back(policy.unk_id);
  return absl::OkStatus();
}

// As in the tokenizers library: characters become ids before any merge, unknown ones by the policy.
absl::Status BpeModel::TokenizeEarly(std::string_view word, std::vector<int32_t>& ids) const {
  std::vector<int32_t> initial;
  initial.reserve(word.size());
  LIME_RETURN_IF_ERROR(AppendSymbols(word, initial));
  std::vector<Symbol> symbols(initial.size());
  for (size_t i = 0; i < symbols.size(); ++i) symbols[i] = {.id = initial[i], .length = 1};
  Merger(merges_, symbols).Run([](int32_t, int32_t, int32_t) {});
  for (const Symbol& symbol : symbols) {
    if (symbol.length > 0) ids.push_back(symbol.id);
  }
  return absl::OkStatus();
}

// As in SentencePiece: symbols that are no pieces after all merges fall back, and unused pieces are
// split again.
absl::Status BpeModel::TokenizeLate(std::string_view word, std::vector<int32_t>& ids) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (size_t begin = 0; begin < word.size(); begin += symbols.back().length) {
    const auto length = static_cast<uint32_t>(DecodeUtf8(word.substr(begin)).length);
    symbols.push_back({.id = FindSymbol(word.substr(begin, length)), .begin = static_cast<uint32_t>(begin), .length = length});
  }
  Splits splits;
  Merger(merges_, symbols).Run([&](int32_t result, int32_t left, int32_t right) {
    if (rules_.unused.contains(result)) splits[result] = {left, right};
  });
  size_t unknown_end = std::string_view::npos;
  std::vector<int32_t> parts;
  for (const Symbol& symbol : symbols) {
    if (symbol.length == 0) continue;
    parts.clear();
    AppendSplit(symbol.id, splits, parts);
    for (const int32_t id : parts) {
      LIME_RETURN_IF_ERROR(AppendToken(id, word.substr(symbol.begin, symbol.length), unknown_end, ids));
    }
  }
  return absl::OkStatus();
}

// `unknown_end`: the length of `ids` after the last unknown token.
absl::Status BpeModel::AppendToken(int32_t id, std::string_view text, size_t& unknown_end, std::vector<int32_t>& ids) const {
  const UnknownPolicy& policy = options_.unknown;
  const int32_t loose = id - vocab_.size();
  if (id >= 0 && loose < 0) {
    ids.push_back(id);
    return absl::OkStatus();
  }
  if (loose >= 0) text = rules_.loose_chars[loose];
  if (AppendBytes(text, policy, vocab_, ids)) return absl::OkStatus();
  if (policy.unk_id < 0) return NoUnknownToken(text, policy);
  if (policy.fuse_unk && unknown_end == ids.size()) return absl::OkStatus();
  ids.push_back(policy.unk_id);
  unknown_end = ids.size();
  return absl::OkStatus();
}

}  // namespace lime
