#include "common/json_schema/dfa/char_dfa.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "common/json_schema/dfa/char_bytes.h"

namespace lime::json_schema {
namespace {

absl::Status TooLarge() {
  return absl::ResourceExhaustedError(
      absl::StrCat("needs more than ", CharDfa::kMaxStates, " states; make the pattern or the lengths smaller"));
}

int Target(const CharDfa::State& state, uint32_t code) {
  const auto range = std::ranges::lower_bound(state.ranges, code, {}, &CharRange::last);
  return range == state.ranges.end() || range->first > code ? -1 : range->to;
}

// The product of two automata, its states numbered as they are found.
class Product {
 public:
  Product(const CharDfa& a, const CharDfa& b, CharDfa& out) : a_(a), b_(b), out_(out) { Number(0, 0); }

  absl::Status Run() {
    for (; !todo_.empty(); todo_.pop_front()) {
      const auto [left, right] = todo_.front();
      Join(a_.states()[left].ranges, b_.states()[right].ranges);
      if (out_.states().size() > CharDfa::kMaxStates) return TooLarge();
    }
    return absl::OkStatus();
  }

 private:
  int Number(size_t left, size_t right) {
    const auto [found, is_new] = numbers_.try_emplace({left, right}, static_cast<int>(out_.states().size()));
    if (is_new) {
      out_.states().push_back({.accepts = a_.states()[left].accepts && b_.states()[right].accepts});
      todo_.emplace_back(left, right);
    }
    return found->second;
  }

  void Join(const std::vector<CharRange>& left, const std::vector<CharRange>& right) {
    const size_t from = done_++;
    for (size_t i = 0, k = 0; i < left.size() && k < right.size(); left[i].last < right[k].last ? ++i : ++k) {
      const uint32_t first = std::max(left[i].first, right[k].first);
      const uint32_t last = std::min(left[i].last, right[k].last);
      if (first > last) continue;
      const int to = Number(static_cast<size_t>(left[i].to), static_cast<size_t>(right[k].to));
      out_.states()[from].ranges.push_back({first, last, to});
    }
  }

  const CharDfa& a_;
  const CharDfa& b_;
  CharDfa& out_;
  std::map<std::pair<size_t, size_t>, int> numbers_;
  std::deque<std::pair<size_t, size_t>> todo_;
  size_t done_ = 0;
};

}  // namespace

std::vector<uint32_t> CodePoints(std::string_view utf8) {
  std::vector<uint32_t> codes;
  for (size_t i = 0; i < utf8.size();) {
    const auto lead = static_cast<uint8_t>(utf8[i]);
    const size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
    uint32_t code = length <= 1 ? lead : lead & (0x7Fu >> length);
    bool is_well_formed = length > 0 && i + length <= utf8.size();
    for (size_t k = 1; is_well_formed && k < length; ++k) {
      const auto next = static_cast<uint8_t>(utf8[i + k]);
      is_well_formed = (next & 0xC0) == 0x80;
      code = code << 6 | (next & 0x3Fu);
    }
    codes.push_back(is_well_formed ? code : 0xFFFD);
    i += is_well_formed ? length : 1;
  }
  return codes;
}

absl::StatusOr<CharDfa> CharDfa::OfLength(int64_t min, int64_t max) {
  CharDfa dfa;
  const bool is_bounded = max != INT64_MAX;
  const int64_t count = is_bounded ? max : min;
  if (count >= static_cast<int64_t>(kMaxStates)) return TooLarge();
  for (int64_t i = 0; i <= count; ++i) {
    State& state = dfa.states_.emplace_back(State{.accepts = i >= min});
    if (i < count) state.ranges = {{0, kLastCodePoint, static_cast<int>(i) + 1}};
    if (i == count && !is_bounded) state.ranges = {{0, kLastCodePoint, static_cast<int>(i)}};
  }
  return dfa;
}

absl::StatusOr<CharDfa> CharDfa::AllBut(const std::vector<std::string>& strings) {
  std::vector<std::map<uint32_t, int>> children(1);
  std::vector<bool> is_string(1);
  for (const std::string& string : strings) {
    int at = 0;
    for (const uint32_t code : CodePoints(string)) {
      const auto [child, is_new] = children[static_cast<size_t>(at)].try_emplace(code, static_cast<int>(children.size()));
      at = child->second;
      if (is_new) children.emplace_back(), is_string.push_back(false);
      if (children.size() > kMaxStates) return TooLarge();
    }
    is_string[static_cast<size_t>(at)] = true;
  }
  CharDfa dfa;
  const int any = static_cast<int>(children.size());
  for (size_t i = 0; i < children.size(); ++i) {
    State& state = dfa.states_.emplace_back(State{.accepts = !is_string[i]});
    uint32_t next = 0;
    for (const auto& [code, child] : children[i]) {
      if (code > next) state.ranges.push_back({next, code - 1, any});
      state.ranges.push_back({code, code, child});
      next = code + 1;
    }
    if (next <= kLastCodePoint) state.ranges.push_back({next, kLastCodePoint, any});
  }
  dfa.states_.push_back({.accepts = true, .ranges = {{0, kLastCodePoint, any}}});
  return dfa;
}

absl::StatusOr<CharDfa> CharDfa::Intersect(const CharDfa& a, const CharDfa& b) {
  CharDfa dfa;
  LIME_RETURN_IF_ERROR(Product(a, b, dfa).Run());
  return dfa;
}

bool CharDfa::Matches(std::string_view utf8) const {
  int state = 0;
  for (const uint32_t code : CodePoints(utf8)) {
    state = Target(states_[static_cast<size_t>(state)], code);
    if (state < 0) return false;
  }
  return states_[static_cast<size_t>(state)].accepts;
}

absl::StatusOr<ByteDfaPtr> CharDfa::ToBytes(Spelling spelling, std::string_view stop, const ByteSet& writable) const {
  ByteDfaBuilder builder;
  std::vector<int> numbers;
  for (size_t i = 0; i < states_.size(); ++i) numbers.push_back(builder.AddState(false));
  const int end = builder.AddState(true);
  CharBytes chars(spelling, builder);
  int start = numbers[0];
  int closing = end;
  if (spelling == Spelling::kJson) {
    start = builder.AddState(false);
    builder.AddEdge(start, '"', numbers[0]);
    stop = "\"";
  }
  for (size_t i = stop.size(); i-- > 1;) {
    const int before = builder.AddState(false);
    builder.AddEdge(before, stop[i], closing);
    closing = before;
  }
  for (size_t i = 0; i < states_.size(); ++i) {
    std::vector<CharRange> ranges = states_[i].ranges;
    if (spelling == Spelling::kRaw && !stop.empty()) ranges = WithoutCode(ranges, CodePoints(stop)[0]);
    for (CharRange& range : ranges) range.to = numbers[static_cast<size_t>(range.to)];
    chars.AddEdges(numbers[i], ranges);
    if (!states_[i].accepts) continue;
    if (stop.empty()) {
      builder.SetAccepts(numbers[i]);
    } else {
      builder.AddEdge(numbers[i], stop[0], closing);
    }
  }
  return builder.Finish(start, writable);
}

}  // namespace lime::json_schema
