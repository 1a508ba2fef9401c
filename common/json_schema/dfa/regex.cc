#include "common/json_schema/dfa/regex.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "common/json_schema/dfa/regex_syntax.h"

namespace lime::json_schema {
namespace {

constexpr size_t kMaxPatternBytes = 4096;
constexpr size_t kMaxNfaStates = 20'000;

absl::Status RegexTooLarge() {
  return absl::ResourceExhaustedError("needs too many states; make it shorter, or its repeats smaller");
}

// A state has one kind of edge.
struct NfaState {
  std::vector<CodeRange> set;  // characters that lead to `to`
  int to = -1;
  std::vector<int> empty;  // without a character
  int at_begin = -1;       // without a character, at the beginning of the string
  int at_end = -1;         // at its end
};

// Built from the end to the beginning: a part is made with the state that follows it.
class NfaBuilder {
 public:
  // Any characters, the pattern, any characters.
  absl::Status Build(const PatternNode& pattern) {
    const int last = Add({.set = {{0, kLastCodePoint}}, .to = 0});
    const int begin = Make(pattern, last);
    start_ = Add({.set = {{0, kLastCodePoint}}});
    if (start_ < 0 || begin < 0) return RegexTooLarge();
    states_[static_cast<size_t>(start_)].to = start_;
    states_[static_cast<size_t>(start_)].empty = {begin};
    return absl::OkStatus();
  }

  const std::vector<NfaState>& states() const { return states_; }
  int start() const { return start_; }
  static constexpr int kFinal = 0;  // accepts, whatever follows

 private:
  int Add(NfaState state) {
    if (states_.size() >= kMaxNfaStates) return -1;
    states_.push_back(std::move(state));
    return static_cast<int>(states_.size()) - 1;
  }

  int Make(const PatternNode& node, int next) {
    if (next < 0) return -1;
    switch (node.kind) {
      case PatternKind::kSet:
        return Add({.set = node.set, .to = next});
      case PatternKind::kBegin:
        return Add({.at_begin = next});
      case PatternKind::kEnd:
        return Add({.at_end = next});
      case PatternKind::kAll:
        for (size_t i = node.parts.size(); i-- > 0;) next = Make(node.parts[i], next);
        return next;
      case PatternKind::kEither:
        return MakeEither(node, next);
      case PatternKind::kRepeat:
        return MakeRepeat(node, next);
    }
    return -1;
  }

  int MakeEither(const PatternNode& node, int next) {
    NfaState either;
    for (const PatternNode& part : node.parts) {
      either.empty.push_back(Make(part, next));
      if (either.empty.back() < 0) return -1;
    }
    return Add(std::move(either));
  }

  int MakeRepeat(const PatternNode& node, int next) {
    int state = next;
    if (node.max == PatternNode::kNoMax) {
      const int loop = Add({.empty = {next}});
      const int body = Make(node.parts[0], loop);
      if (body < 0) return -1;
      states_[static_cast<size_t>(loop)].empty.push_back(body);
      state = loop;
    }
    for (int i = node.min; i < node.max; ++i) {
      const int body = Make(node.parts[0], state);
      if (body < 0) return -1;
      state = Add({.empty = {next, body}});
    }
    for (int i = 0; i < node.min; ++i) state = Make(node.parts[0], state);
    return state;
  }

  std::vector<NfaState> states_;
  int start_ = 0;
};

// Sets of states of the NFA become states.
class Determiniser {
 public:
  Determiniser(const NfaBuilder& nfa, int64_t& work_left) : nfa_(nfa), work_left_(work_left) {}

  absl::StatusOr<CharDfa> Run() {
    Number(Closure({nfa_.start()}, /*at_begin=*/true, /*at_end=*/false), /*at_begin=*/true);
    for (size_t i = 0; i < sets_.size(); ++i) {
      AddRanges(i);
      if (sets_.size() > CharDfa::kMaxStates || work_left_ < 0) return RegexTooLarge();
    }
    return std::move(dfa_);
  }

 private:
  using States = std::vector<int>;  // ascending

  States Closure(States todo, bool at_begin, bool at_end) {
    std::set<int> found(todo.begin(), todo.end());
    const auto add = [&](int state) {
      if (state >= 0 && found.insert(state).second) todo.push_back(state);
    };
    while (!todo.empty()) {
      const NfaState& state = nfa_.states()[static_cast<size_t>(todo.back())];
      todo.pop_back();
      work_left_ -= 4 + static_cast<int64_t>(state.empty.size());
      std::ranges::for_each(state.empty, add);
      if (at_begin) add(state.at_begin);
      if (at_end) add(state.at_end);
    }
    if (found.contains(NfaBuilder::kFinal)) return {NfaBuilder::kFinal};
    return {found.begin(), found.end()};
  }

  int Number(States set, bool at_begin) {
    const auto [found, is_new] = numbers_.try_emplace({set, at_begin}, static_cast<int>(sets_.size()));
    if (is_new) {
      const States at_end = Closure(set, at_begin, /*at_end=*/true);
      dfa_.states().push_back({.accepts = at_end.front() == NfaBuilder::kFinal});
      sets_.push_back(std::move(set));
    }
    return found->second;
  }

  void AddRanges(size_t from) {
    const States set = sets_[from];
    std::set<uint32_t> begins;
    for (const int state : set) {
      for (const CodeRange& range : nfa_.states()[static_cast<size_t>(state)].set)
        begins.insert(range.first), begins.insert(range.last + 1);
    }
    for (auto begin = begins.begin(); begin != begins.end(); ++begin) {
      States targets;
      for (const int state : set) {
        const NfaState& source = nfa_.states()[static_cast<size_t>(state)];
        work_left_ -= 1 + static_cast<int64_t>(source.set.size()) / 8;
        const auto range = std::ranges::lower_bound(source.set, *begin, {}, &CodeRange::last);
        if (range != source.set.end() && range->first <= *begin) targets.push_back(source.to);
      }
      if (targets.empty() || work_left_ < 0) continue;
      const int to = Number(Closure(std::move(targets), /*at_begin=*/false, /*at_end=*/false), /*at_begin=*/false);
      AddRange(dfa_.states()[from].ranges, {*begin, *std::next(begin) - 1, to});
    }
  }

  static void AddRange(std::vector<CharRange>& ranges, const CharRange& range) {
    if (!ranges.empty() && ranges.back().to == range.to && ranges.back().last + 1 == range.first) {
      ranges.back().last = range.last;
    } else {
      ranges.push_back(range);
    }
  }

  const NfaBuilder& nfa_;
  CharDfa dfa_;
  std::vector<States> sets_;
  std::map<std::pair<States, bool>, int> numbers_;
  int64_t& work_left_;
};

struct Format {
  std::string_view name;
  std::string pattern;
};

// Days of months and leap years as in the calendar; no leap seconds.
std::vector<Format> Formats() {
  const std::string year = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})";
  const std::string leap_year = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)";
  const std::string day =
      "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))";
  const std::string date = "(?:" + year + "-" + day + "|" + leap_year + "-02-29)";
  const std::string time = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
  return {{"date", "^" + date + "$"},
          {"time", "^" + time + "$"},
          {"date-time", "^" + date + "T" + time + "$"},
          {"uuid", "^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"}};
}

}  // namespace

absl::StatusOr<CharDfa> CompilePattern(std::string_view pattern, int64_t& work_left) {
  if (pattern.size() > kMaxPatternBytes) return Invalid("is longer than ", kMaxPatternBytes, " bytes");
  LIME_ASSIGN_OR_RETURN(const PatternNode node, ParsePattern(pattern));
  NfaBuilder nfa;
  LIME_RETURN_IF_ERROR(nfa.Build(node));
  return Determiniser(nfa, work_left).Run();
}

std::shared_ptr<const CharDfa> FormatDfa(std::string_view name) {
  static const auto* const formats = [] {
    auto* made = new std::map<std::string_view, std::shared_ptr<const CharDfa>>();
    for (const Format& format : Formats()) {
      int64_t work_left = kMaxPatternWork;
      made->emplace(format.name, std::make_shared<const CharDfa>(CompilePattern(format.pattern, work_left).value()));
    }
    return made;
  }();
  const auto found = formats->find(name);
  return found == formats->end() ? nullptr : found->second;
}

}  // namespace lime::json_schema
