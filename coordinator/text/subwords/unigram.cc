#include "coordinator/text/subwords/unigram.h"

#include <algorithm>
#include <limits>

#include "coordinator/text/unicode/utf8.h"

namespace lime {
namespace {

constexpr double kUnknownPenalty = 10.0;  // below the worst piece, as in SentencePiece

// The best path to a position of the word.
struct Node {
  double score = -std::numeric_limits<double>::infinity();
  int32_t id = -1;   // piece that ends here; the unknown token's id: an unknown character
  size_t begin = 0;  // where that piece begins
};

void Relax(Node& node, double score, int32_t id, size_t begin) {
  if (score > node.score) node = {score, id, begin};
}

}  // namespace

UnigramModel::UnigramModel(Options options, Vocab vocab) : options_(std::move(options)), vocab_(std::move(vocab)) {
  double min_score = 0;
  bool first = true;
  for (int32_t id = 0; id < vocab_.size(); ++id) {
    if (options_.not_from_text.contains(id)) continue;
    trie_.Insert(vocab_.TokenText(id), id);
    if (options_.user_defined.contains(id)) continue;
    const double score = options_.scores[id];
    min_score = first ? score : std::min(min_score, score);
    max_score_ = first ? score : std::max(max_score_, score);
    first = false;
  }
  unknown_score_ = min_score - kUnknownPenalty;
}

double UnigramModel::Score(int32_t id, size_t length) const {
  if (options_.user_defined.contains(id)) return static_cast<double>(length) * max_score_ - 0.1;
  return options_.scores[id];
}

// Encodes a run of characters without a piece, or of the unknown token's own piece.
void UnigramModel::AppendUnknown(std::string_view text, std::vector<int32_t>& ids) const {
  const int32_t id = vocab_.Find(text);
  if (id >= 0 && id == options_.unknown.unk_id && !options_.not_from_text.contains(id)) {
    ids.push_back(id);
  } else if (!AppendBytes(text, options_.unknown, vocab_, ids)) {
    ids.push_back(options_.unknown.unk_id);
  }
}

absl::Status UnigramModel::Tokenize(std::string_view word, std::vector<int32_t>& ids) const {
  std::vector<Node> nodes(word.size() + 1);
  nodes[0].score = 0;
  for (size_t begin = 0, char_length = 0; begin < word.size(); begin += char_length) {
    char_length = DecodeUtf8(word.substr(begin)).length;
    const double score = nodes[begin].score;
    bool covered = false;  // the character is itself a piece
    trie_.ForEachPrefix(word.substr(begin), [&](size_t length, int32_t id) {
      Relax(nodes[begin + length], score + Score(id, length), id, begin);
      covered = covered || length == char_length;
    });
    if (covered) continue;
    Node& behind = nodes[begin + char_length];
    // As in the library, even if the character has byte tokens.
    if (options_.unknown.unk_id < 0 && score + unknown_score_ > behind.score)
      return NoUnknownToken(word.substr(begin, char_length), options_.unknown);
    Relax(behind, score + unknown_score_, options_.unknown.unk_id, begin);
  }
  std::vector<size_t> ends;
  for (size_t end = word.size(); end > 0; end = nodes[end].begin) ends.push_back(end);
  std::string_view unknown;  // current run of unknown characters
  for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
    const Node& node = nodes[*end];
    if (node.id == options_.unknown.unk_id) {
      const size_t begin = unknown.empty() ? node.begin : static_cast<size_t>(unknown.data() - word.data());
      unknown = word.substr(begin, *end - begin);
      continue;
    }
    if (!unknown.empty()) AppendUnknown(unknown, ids);
    unknown = {};
    ids.push_back(node.id);
  }
  if (!unknown.empty()) AppendUnknown(unknown, ids);
  return absl::OkStatus();
}

}  // namespace lime
