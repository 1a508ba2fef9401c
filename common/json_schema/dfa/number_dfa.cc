#include "common/json_schema/dfa/number_dfa.h"

#include <algorithm>
#include <charconv>
#include <deque>
#include <map>
#include <tuple>

#include "common/json_schema/dfa/char_dfa.h"
#include "common/json_schema/dfa/regex.h"

namespace lime::json_schema {
namespace {

constexpr size_t kMostDigits = 19;
constexpr int kMaxStates = 30'000;

int CompareMagnitudes(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (const int order = a.whole.compare(b.whole); order != 0) return order;
  return a.fraction.compare(b.fraction);  // without trailing zeros, so the longer one is larger
}

// What the digits after the sign may be.
struct Magnitudes {
  std::optional<NumberBound> low, high;
  bool is_possible = true;
  bool has_zero = true;
};

Magnitudes Positive(const NumberRange& range) {
  Magnitudes magnitudes;
  if (range.min && !range.min->value.is_negative) magnitudes.low = range.min;
  if (range.max) {
    magnitudes.high = range.max;
    magnitudes.is_possible = !range.max->value.is_negative;
  }
  return magnitudes;
}

Magnitudes Negative(const NumberRange& range) {
  Magnitudes magnitudes{.has_zero = false};
  if (range.max && range.max->value.is_negative) magnitudes.low = range.max;
  if (range.min) {
    magnitudes.high = range.min;
    magnitudes.is_possible = range.min->value.is_negative;
  }
  return magnitudes;
}

// Reads digits and keeps their order against both bounds.
class MagnitudeDfa {
 public:
  MagnitudeDfa(const NumberRange& range, Magnitudes magnitudes, size_t max_digits, ByteDfaBuilder& builder)
      : range_(range), magnitudes_(std::move(magnitudes)), max_digits_(max_digits), builder_(builder) {}

  // False if there are too many states.
  bool AddTo(int start) {
    if (!magnitudes_.is_possible) return true;
    states_.emplace(State{}, start);
    todo_.push_back(State{});
    for (; !todo_.empty() && states_.size() < static_cast<size_t>(kMaxStates); todo_.pop_front()) AddEdges(todo_.front());
    return todo_.empty();
  }

 private:
  struct State {
    int phase = kStart;
    size_t digits = 0;           // all
    size_t fraction_digits = 0;  // as far as a bound needs it
    int low = 0, high = 0;       // the order of the digits so far and those of the bound
    int64_t remainder = 0;
    bool is_zero = true;                             // all digits so far
    auto operator<=>(const State&) const = default;  // NOLINT(modernize-use-nullptr): no pointer is compared
  };
  enum Phase { kStart, kZero, kWhole, kPoint, kFraction };

  int Number(const State& state) {
    const auto [found, is_new] = states_.try_emplace(state, 0);
    if (is_new) {
      found->second = builder_.AddState(Accepts(state));
      todo_.push_back(state);
    }
    return found->second;
  }

  void AddEdges(const State& state) {
    const int from = states_.at(state);
    const bool has_room = state.digits < max_digits_;
    for (int digit = 0; digit < 10 && has_room && state.phase != kZero; ++digit)
      builder_.AddEdge(from, static_cast<char>('0' + digit), Number(AfterDigit(state, digit)));
    if ((state.phase == kZero || state.phase == kWhole) && has_room && !range_.is_integer && range_.multiple_of == 0)
      builder_.AddEdge(from, '.', Number(AfterPoint(state)));
  }

  State AfterDigit(const State& before, int digit) const {
    State state = before;
    const bool is_whole = before.phase == kStart || before.phase == kWhole;
    ++state.digits;
    state.is_zero &= digit == 0;
    if (range_.multiple_of > 0) state.remainder = (before.remainder * 10 + digit) % range_.multiple_of;
    state.phase = !is_whole ? kFraction : before.phase == kStart && digit == 0 ? kZero : kWhole;
    const auto advance = [&](const std::optional<NumberBound>& bound, int& order) {
      if (!bound || order != 0) return;
      const std::string& digits = is_whole ? bound->value.whole : bound->value.fraction;
      const size_t at = is_whole ? before.digits : before.fraction_digits;
      const int other = at < digits.size() ? digits[at] - '0' : 0;
      order = digit < other ? -1 : digit > other ? 1 : 0;
    };
    advance(magnitudes_.low, state.low);
    advance(magnitudes_.high, state.high);
    if (!is_whole) ++state.fraction_digits;
    return is_whole ? state : Simplified(state);
  }

  State AfterPoint(const State& before) const {
    State state = before;
    state.phase = kPoint;
    state.low = WholeOrder(before, magnitudes_.low, before.low);
    state.high = WholeOrder(before, magnitudes_.high, before.high);
    return Simplified(state);
  }

  // Where no bound needs the place of a digit of the fraction, the states are one.
  State Simplified(State state) const {
    const bool needs_low = magnitudes_.low && state.low == 0;
    const bool needs_high = magnitudes_.high && state.high == 0;
    if (!needs_low && !needs_high) state.fraction_digits = 0;
    return state;
  }

  // The order of a whole number and the whole part of the bound.
  static int WholeOrder(const State& state, const std::optional<NumberBound>& bound, int order) {
    if (!bound || state.digits == bound->value.whole.size()) return order;
    return state.digits < bound->value.whole.size() ? -1 : 1;
  }

  int FinalOrder(const State& state, const std::optional<NumberBound>& bound, int order) const {
    if (state.phase != kFraction) order = WholeOrder(state, bound, order);
    if (!bound || order != 0) return order;
    const size_t fraction = state.phase == kFraction ? state.fraction_digits : 0;
    return fraction < bound->value.fraction.size() ? -1 : 0;
  }

  bool Accepts(const State& state) const {
    if (state.phase == kStart || state.phase == kPoint || state.remainder != 0) return false;
    if (state.is_zero && !magnitudes_.has_zero) return false;
    const int low = FinalOrder(state, magnitudes_.low, state.low);
    const int high = FinalOrder(state, magnitudes_.high, state.high);
    return (!magnitudes_.low || low > 0 || (low == 0 && !magnitudes_.low->is_exclusive)) &&
           (!magnitudes_.high || high < 0 || (high == 0 && !magnitudes_.high->is_exclusive));
  }

  const NumberRange& range_;
  const Magnitudes magnitudes_;
  const size_t max_digits_;
  ByteDfaBuilder& builder_;
  std::map<State, int> states_;
  std::deque<State> todo_;
};

size_t MaxDigits(const NumberRange& range) {
  size_t digits = range.is_integer || range.multiple_of > 0 ? 18 : 15;
  for (const auto& bound : {range.min, range.max}) {
    if (bound) digits = std::max(digits, std::min(kMostDigits, bound->value.whole.size() + bound->value.fraction.size()));
  }
  return digits;
}

}  // namespace

Decimal Decimal::Parse(std::string_view number) {
  Decimal decimal;
  decimal.is_negative = number.starts_with('-');
  if (decimal.is_negative) number.remove_prefix(1);
  const size_t exponent_at = std::min(number.find_first_of("eE"), number.size());
  int exponent = 0;
  if (exponent_at < number.size()) {
    std::string_view digits = number.substr(exponent_at + 1);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    std::from_chars(digits.data(), digits.data() + digits.size(), exponent);
  }
  exponent = std::clamp(exponent, -2000, 2000);
  const std::string_view mantissa = number.substr(0, exponent_at);
  const size_t point = std::min(mantissa.find('.'), mantissa.size());
  std::string whole(mantissa.substr(0, point));
  std::string fraction(point < mantissa.size() ? mantissa.substr(point + 1) : std::string_view());
  for (; exponent > 0; --exponent) {
    whole += fraction.empty() ? '0' : fraction.front();
    if (!fraction.empty()) fraction.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    fraction.insert(fraction.begin(), whole.empty() ? '0' : whole.back());
    if (!whole.empty()) whole.pop_back();
  }
  whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size()));
  fraction.erase(fraction.find_last_not_of('0') + 1);
  decimal.whole = whole.empty() ? "0" : whole;
  decimal.fraction = fraction;
  if (decimal.IsZero()) decimal.is_negative = false;
  return decimal;
}

int Compare(const Decimal& a, const Decimal& b) {
  if (a.is_negative != b.is_negative) return a.is_negative ? -1 : 1;
  return a.is_negative ? CompareMagnitudes(b, a) : CompareMagnitudes(a, b);
}

bool NumberRange::Contains(const Decimal& number) const {
  if (is_integer && !number.IsWhole()) return false;
  if (min && (Compare(number, min->value) < (min->is_exclusive ? 1 : 0))) return false;
  if (max && (Compare(number, max->value) > (max->is_exclusive ? -1 : 0))) return false;
  if (multiple_of == 0) return true;
  int64_t remainder = 0;
  for (const char digit : number.whole) remainder = (remainder * 10 + (digit - '0')) % multiple_of;
  return number.IsWhole() && remainder == 0;
}

absl::StatusOr<ByteDfaPtr> NumberDfa(const NumberRange& range, const ByteSet& writable) {
  if (!range.min && !range.max && range.multiple_of == 0) {
    const auto compile = [](std::string_view pattern) {
      int64_t work_left = kMaxPatternWork;
      return new CharDfa(CompilePattern(pattern, work_left).value());
    };
    static const CharDfa* const integer = compile("^(?:0|-?[1-9][0-9]{0,17})$");
    static const CharDfa* const number = compile("^-?(?:0|[1-9][0-9]{0,14})(?:\\.[0-9]{1,15})?(?:[eE][+-]?[0-9]{1,2})?$");
    return (range.is_integer ? integer : number)->ToBytes(Spelling::kRaw, "", writable);
  }
  ByteDfaBuilder builder;
  const int start = builder.AddState(false), negative = builder.AddState(false);
  builder.AddEdge(start, '-', negative);
  const size_t digits = MaxDigits(range);
  if (!MagnitudeDfa(range, Positive(range), digits, builder).AddTo(start) ||
      !MagnitudeDfa(range, Negative(range), digits, builder).AddTo(negative))
    return absl::ResourceExhaustedError("needs too many states; make the multiple smaller");
  return builder.Finish(start, writable);
}

}  // namespace lime::json_schema
