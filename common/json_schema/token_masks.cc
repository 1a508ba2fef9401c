#include "common/json_schema/token_masks.h"

#include <algorithm>

#include "planner/base/check.h"

namespace lime::json_schema {
namespace {

constexpr int32_t kNoBudget = kEndless - 1;

// Near a bound of the length of a string, each number of characters has a mask of its own. Further
// away, tokens with more characters than this are not allowed if they might go beyond the bound.
constexpr int32_t kNear = 16;

constexpr Bytes kEntry = 256;  // of a cache, beside what it points to

void SetBits(std::span<const int32_t> ids, std::span<uint64_t> bits) {
  for (const int32_t id : ids) bits[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
}

}  // namespace

// Walks the vocabulary inside one scalar.
class TokenMasks::ScalarWalk {
 public:
  ScalarWalk(const Vocabulary& vocabulary, const Scalar& scalar, int32_t slack, ScalarMask& mask)
      : vocabulary_(vocabulary), tree_(vocabulary.tree()), scalar_(scalar), dfa_(*scalar.dfa), slack_(slack), mask_(mask) {}

  void Run(uint16_t state) {
    states_.assign(vocabulary_.longest() + 1, {state, 0});
    loop_groups_.assign(dfa_.num_states(), kUnknown);
    if (scalar_.Counts())
      Walk<true>();
    else
      Walk<false>();
    mask_.behind = TokenTree::Of(behind_);
  }

 private:
  struct Place {
    uint16_t state = 0;
    int32_t count = 0;
  };

  template <bool counts>
  void Walk() {
    const TokenTree::Node* const nodes = tree_.nodes.data();
    for (size_t i = 0, count = tree_.count(); i < count;) {
      const TokenTree::Node& node = nodes[i];
      Place place = states_[node.depth - 1u];
      if (Loops<counts>(node, place)) {
        AddAll(i, place);
        i = node.skip;
        continue;
      }
      if (!Advance<counts>(place, node.byte)) {
        if (node.depth > 1 && dfa_.Accepts(states_[node.depth - 1u].state)) AddBehind(i, nodes[i].skip, node.depth - 1u);
        i = node.skip;
        continue;
      }
      states_[node.depth] = place;
      if (nodes[i + 1].first_id != node.first_id) AddTokens(i, place);
      if (!dfa_.IsEnd(place.state)) {
        ++i;
        continue;
      }
      AddBehind(i + 1, node.skip, node.depth);
      i = node.skip;
    }
  }

  template <bool counts>
  bool Advance(Place& place, uint8_t byte) const {
    if constexpr (counts) return scalar_.Advance(place.state, place.count, byte);
    place.state = dfa_.Next(place.state, byte);
    return place.state != ByteDfa::kDead;
  }

  // Whether every byte from this node on leads from the place before it to the same state.
  template <bool counts>
  bool Loops(const TokenTree::Node& node, const Place& before) {
    if ((node.groups & TokenTree::kBroken) != 0 || (node.groups & ~LoopGroups(before.state)) != 0) return false;
    if (counts && (dfa_.boundary() != before.state || before.count > scalar_.max - (node.deepest - node.depth + 1))) return false;
    return scalar_.Least(before.state, before.count) + kCutBytes <= slack_;
  }

  // Groups of bytes of which each leads from the state to itself.
  uint64_t LoopGroups(uint16_t state) {
    uint64_t& known = loop_groups_[state];
    if (known != kUnknown) return known;
    uint64_t leaves = LoopsOnMultiByte(state) ? TokenTree::kBroken : TokenTree::kBroken | TokenTree::kMultiByte;
    for (uint8_t byte = 0; byte < 0x80; ++byte) {
      if (dfa_.Next(state, byte) != state) leaves |= uint64_t{1} << TokenTree::GroupOf(byte);
    }
    known = ~leaves;
    return known;
  }

  // Whether every character of several bytes leads from the state to itself. The second bytes that
  // only some first bytes have are left to the walk (TokenTree::Summarise).
  bool LoopsOnMultiByte(uint16_t state) const {
    for (int lead = 0xC2; lead <= 0xF4; ++lead) {
      if (lead == 0xE0 || lead == 0xED || lead == 0xF0 || lead == 0xF4) continue;
      if (!LoopsAfter(dfa_.Next(state, static_cast<uint8_t>(lead)), lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3, state)) return false;
    }
    return true;
  }

  bool LoopsAfter(uint16_t state, int missing, uint16_t target) const {
    const uint16_t next = dfa_.Next(state, 0x80);
    if (state == ByteDfa::kDead || next == ByteDfa::kDead) return false;
    for (int byte = 0x81; byte <= 0xBF; ++byte) {
      if (dfa_.Next(state, static_cast<uint8_t>(byte)) != next) return false;
    }
    return missing == 1 ? next == target : LoopsAfter(next, missing - 1, target);
  }

  void AddAll(size_t node, const Place& place) {
    mask_.largest_least = std::max(mask_.largest_least, scalar_.Least(place.state, place.count) + kCutBytes);
    const uint32_t begin = tree_.nodes[node].first_id, end = tree_.nodes[tree_.nodes[node].skip].first_id;
    SetBits(std::span(tree_.ids).subspan(begin, end - begin), mask_.bits);
  }

  void AddTokens(size_t node, const Place& place) {
    const int32_t least = scalar_.Least(place.state, place.count);
    if (least > slack_) return;
    mask_.largest_least = std::max(mask_.largest_least, least);
    SetBits(tree_.Ids(node), mask_.bits);
  }

  // The tokens of the nodes [begin, end) leave the scalar after `depth` bytes.
  void AddBehind(size_t begin, size_t end, size_t depth) {
    for (uint32_t k = tree_.nodes[begin].first_id; k < tree_.nodes[end].first_id; ++k)
      behind_.emplace_back(vocabulary_.Bytes(tree_.ids[k]).substr(depth), tree_.ids[k]);
  }

  const Vocabulary& vocabulary_;
  const TokenTree& tree_;
  const Scalar& scalar_;
  const ByteDfa& dfa_;
  const int32_t slack_;
  ScalarMask& mask_;
  static constexpr uint64_t kUnknown = ~uint64_t{0};  // no group of kBroken leads back
  static constexpr int32_t kCutBytes = 3;             // most bytes that a cut character needs
  std::vector<Place> states_;
  std::vector<uint64_t> loop_groups_;  // by state
  std::vector<std::pair<std::string_view, int32_t>> behind_;
};

TokenMasks::TokenMasks(VocabularyPtr vocabulary) : vocabulary_(std::move(vocabulary)) {}

// The largest tree of one mask has all tokens.
Bytes TokenMasks::MostMemory(size_t tokens) {
  const auto bits = static_cast<Bytes>((tokens + 63) / 64 * sizeof(uint64_t));
  return 2 * (static_cast<Bytes>(kMaxMasks) * bits + kMaxBeside) + static_cast<Bytes>(tokens * (sizeof(TokenTree::Node) + sizeof(int32_t)));
}

void TokenMasks::Write(const Matcher& matcher, int64_t tokens_left, std::span<uint64_t> bits) {
  LIME_CHECK_EQ(bits.size(), Words()) << "words of a mask";
  const int64_t least = matcher.LeastBytes();
  const int64_t for_end = least + 1 <= tokens_left ? 1 : 0;  // the token that ends the answer
  const int64_t budget = least > tokens_left ? kNoBudget : std::min<int64_t>(tokens_left - 1 - for_end, kNoBudget);
  key_.clear();
  matcher.AppendKey(key_);
  const auto* grammar = matcher.grammar().get();
  key_.append(reinterpret_cast<const char*>(&grammar), sizeof(void*));
  const auto found = answer_masks_.find(key_);
  if (found != answer_masks_.end() && found->second.largest_least <= budget) {
    std::ranges::copy(found->second.bits, bits.begin());
    return;
  }
  Make(matcher, static_cast<int32_t>(budget), bits);
  if (budget < kNoBudget && largest_least_ > budget) return;  // not the mask of an answer without a bound
  if (answer_masks_.size() >= kMaxMasks || beside_answers_ > kMaxBeside) answer_masks_.clear(), beside_answers_ = 0;
  beside_answers_ += kEntry + std::ssize(key_);
  answer_masks_[key_] = {.grammar = matcher.grammar(), .bits = {bits.begin(), bits.end()}, .largest_least = largest_least_};
}

// Notes the least bytes of tokens, also of those that the budget refuses.
bool TokenMasks::Allow(int32_t least, int32_t budget) {
  if (least >= kEndless) return false;
  largest_least_ = std::max(largest_least_, least);
  return least <= budget;
}

void TokenMasks::Make(const Matcher& matcher, int32_t budget, std::span<uint64_t> bits) {
  std::ranges::fill(bits, 0);
  largest_least_ = 0;
  if (matcher.IsComplete()) SetBits(vocabulary_->end_ids(), bits);
  const Grammar& grammar = *matcher.grammar();
  lists_ = matcher.lists();
  outside_.clear();
  for (const Thread& thread : matcher.threads()) {
    if (thread.mode != Thread::Mode::kScalar && thread.mode != Thread::Mode::kOthersKey) {
      outside_.push_back(thread);
      continue;
    }
    AddScalar(grammar, thread, budget, bits);
    const Scalar& scalar = grammar.scalars[static_cast<size_t>(thread.id)];
    if (scalar.dfa->Accepts(static_cast<uint16_t>(thread.state))) stepper_.AfterScalar(grammar, thread, lists_, outside_);
  }
  if (outside_.empty()) return;
  AddTokens(grammar, vocabulary_->tree(), outside_, budget, bits);
  AddSpecial(matcher, budget, bits);
}

void TokenMasks::AddScalar(const Grammar& grammar, const Thread& thread, int32_t budget, std::span<uint64_t> bits) {
  const Scalar& scalar = grammar.scalars[static_cast<size_t>(thread.id)];
  const auto state = static_cast<uint16_t>(thread.state);
  const int32_t rest = LeastOf(grammar, lists_, thread) - scalar.Least(state, thread.count);
  int32_t base = 0;
  const ScalarMask& mask = MaskOf(scalar, state, thread.count, budget - rest, base);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] |= mask.bits[i];
  largest_least_ = std::max(largest_least_, mask.largest_least + base + rest);
  if (mask.behind.count() == 0) return;
  after_.clear();
  stepper_.AfterScalar(grammar, thread, lists_, after_);
  AddTokens(grammar, mask.behind, after_, budget, bits);
}

// `slack`: the most bytes to the end of the scalar that a token may leave. `base`: bytes that the
// states of the mask need in addition, for characters that no token reaches.
const TokenMasks::ScalarMask& TokenMasks::MaskOf(const Scalar& scalar, uint16_t state, int32_t count, int32_t slack, int32_t& base) {
  const auto longest = static_cast<int32_t>(vocabulary_->longest());
  const int32_t needed = std::max(0, scalar.min - count);
  const int32_t remaining = scalar.max == Scalar::kNoMax ? Scalar::kNoMax : scalar.max - count;
  int32_t needed_here = needed;
  int32_t allowed = remaining > longest ? Scalar::kNoMax : std::min(remaining, kNear);
  if (needed > kNear) {
    needed_here = longest + 1;
    if (needed <= longest) allowed = std::min(allowed, kNear);
  }
  base = needed - needed_here;
  slack = std::max(slack - base, -1);  // below 0 no token stays inside
  const bool is_free = slack >= scalar.dfa->LargestLeast() + needed_here;
  if (is_free) slack = kNoBudget;
  const ScalarKey key(scalar.dfa.get(), state, needed_here, allowed, slack);
  const auto found = scalar_masks_.find(key);
  if (found != scalar_masks_.end()) return found->second;
  if (scalar_masks_.size() >= kMaxMasks || beside_scalars_ > kMaxBeside) scalar_masks_.clear(), beside_scalars_ = 0;
  ScalarMask& mask = scalar_masks_[key];
  mask.dfa = scalar.dfa;
  mask.bits.assign(Words(), 0);
  if (!is_free) mask.largest_least = kNoBudget;
  const Scalar relative = {.dfa = scalar.dfa, .min = needed_here, .max = allowed};
  ScalarWalk(*vocabulary_, relative, slack, mask).Run(state);
  beside_scalars_ += kEntry + mask.behind.memory();
  return mask;
}

void TokenMasks::AddTokens(const Grammar& grammar, const TokenTree& tree, std::span<const Thread> threads, int32_t budget,
                           std::span<uint64_t> bits) {
  const FrameLists::Size before = lists_.size();
  pool_.assign(threads.begin(), threads.end());
  ends_.assign(1, 0);
  ends_.push_back(pool_.size());  // ends_[d] .. ends_[d + 1]: the threads after d bytes
  sizes_.assign(1, before);
  for (size_t i = 0; i < tree.count();) {
    const TokenTree::Node& node = tree.nodes[i];
    const size_t depth = node.depth;
    ends_.resize(depth + 1);
    sizes_.resize(depth);
    pool_.resize(ends_[depth]);
    lists_.ShrinkTo(sizes_[depth - 1]);
    next_.clear();
    const std::span from = std::span(pool_).subspan(ends_[depth - 1], ends_[depth] - ends_[depth - 1]);
    stepper_.Step(grammar, from, node.byte, lists_, next_);
    if (next_.empty()) {
      i = node.skip;
      continue;
    }
    const std::span<const int32_t> ids = tree.Ids(i);
    if (!ids.empty() && Allow(LeastOf(grammar, lists_, next_), budget)) SetBits(ids, bits);
    pool_.insert(pool_.end(), next_.begin(), next_.end());
    ends_.push_back(pool_.size());
    sizes_.push_back(lists_.size());
    ++i;
  }
  lists_.ShrinkTo(before);
}

// Special tokens write texts outside of JSON alone.
void TokenMasks::AddSpecial(const Matcher& matcher, int32_t budget, std::span<uint64_t> bits) {
  const Grammar& grammar = *matcher.grammar();
  const auto is_no_text = [](const Thread& thread) { return thread.mode != Thread::Mode::kText; };
  if (std::ranges::all_of(outside_, is_no_text)) return;
  const FrameLists::Size before = lists_.size();
  for (const int32_t id : vocabulary_->special_ids()) {
    after_.assign(outside_.begin(), outside_.end());
    for (const char byte : vocabulary_->Bytes(id)) {
      std::erase_if(after_, is_no_text);
      next_.clear();
      stepper_.Step(grammar, after_, static_cast<uint8_t>(byte), lists_, next_);
      after_.swap(next_);
    }
    if (!after_.empty() && Allow(LeastOf(grammar, lists_, after_), budget)) SetBits(std::span(&id, 1), bits);
    lists_.ShrinkTo(before);
  }
}

}  // namespace lime::json_schema
