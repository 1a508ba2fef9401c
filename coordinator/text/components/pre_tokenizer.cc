#include "coordinator/text/components/pre_tokenizer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/text/components/normalizer.h"
#include "coordinator/text/unicode/byte_level.h"
#include "coordinator/text/unicode/unicode.h"
#include "coordinator/text/unicode/utf8.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr std::string_view kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Part of a word: a match of the pattern, or the text between two matches.
struct SplitPart {
  TextRange range;
  bool matched;
};

std::vector<SplitPart> Alternate(const std::vector<TextRange>& matches, size_t size, bool invert) {
  std::vector<SplitPart> stretches;
  size_t done = 0;
  for (const TextRange& match : matches) {
    if (done < match.begin) stretches.push_back({{done, match.begin}, invert});
    stretches.push_back({match, !invert});
    done = match.end;
  }
  if (done < size) stretches.push_back({{done, size}, invert});
  return stretches;
}

// Joins each stretch to the one before it if joins(previous, current) is true.
template <typename Joins>
void Join(std::vector<SplitPart>& stretches, Joins joins) {
  std::vector<SplitPart> joined;
  for (size_t i = 0; i < stretches.size(); ++i) {
    if (i > 0 && joins(stretches[i - 1], stretches[i])) {
      joined.back().range.end = stretches[i].range.end;
    } else {
      joined.push_back(stretches[i]);
    }
  }
  stretches = std::move(joined);
}

void ApplyBehavior(SplitBehavior behavior, std::vector<SplitPart>& stretches) {
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return;
    case SplitBehavior::kRemoved:
      stretches.erase(std::remove_if(stretches.begin(), stretches.end(), [](const SplitPart& s) { return s.matched; }), stretches.end());
      return;
    case SplitBehavior::kMergedWithPrevious:
      return Join(stretches, [](const SplitPart& before, const SplitPart& now) { return now.matched && !before.matched; });
    case SplitBehavior::kMergedWithNext:
      return Join(stretches, [](const SplitPart& before, const SplitPart& now) { return before.matched && !now.matched; });
    case SplitBehavior::kContiguous:
      return Join(stretches, [](const SplitPart& before, const SplitPart& now) { return before.matched == now.matched; });
  }
}

// Rewrites every word, character by character, and adds a prefix. `prefix(word, text)` is the
// prefix for the word's new text.
template <typename Change, typename Prefix>
absl::Status RewriteWords(Words& words, Change change, Prefix prefix) {
  std::string text;
  text.reserve(words.text.size() * 5 / 4);
  for (Words::Word& word : words.words) {
    const size_t begin = text.size();
    const std::string changed = change(words.Text(word));
    const std::string_view before = prefix(word, changed);
    if (word.start_bytes > 0) word.start_bytes = before.size() + change(words.Text(word).substr(0, word.start_bytes)).size();
    text.append(before).append(changed);
    word.range = {begin, text.size()};
  }
  words.text = std::move(text);
  return CheckTextSize(words.text.size());
}

absl::StatusOr<SplitBehavior> ParseBehavior(const TokenizerJson& json) {
  LIME_ASSIGN_OR_RETURN(const std::string name, StringField(json, "behavior", "Isolated"));
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return Invalid("split behavior \"", name,
                 "\" is not supported; supported are Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous");
}

PreTokenizeStep RegexSplit(Regex regex, SplitBehavior behavior, bool invert) {
  const auto find = [regex = std::move(regex)](std::string_view word, std::vector<TextRange>& ranges) {
    return regex.FindAll(word, ranges);
  };
  return SplitStep(find, behavior, invert);
}

using Steps = std::vector<PreTokenizeStep>;

absl::Status AppendPattern(std::string_view pattern, SplitBehavior behavior, bool invert, Steps& steps) {
  LIME_ASSIGN_OR_RETURN(auto regex, Regex::Compile(pattern));
  steps.push_back(RegexSplit(std::move(regex), behavior, invert));
  return absl::OkStatus();
}

// Matches every character for which `matches` is true.
PreTokenizeStep CharacterSplit(bool (*matches)(char32_t), SplitBehavior behavior) {
  const auto find = [matches](std::string_view word, std::vector<TextRange>& ranges) {
    for (size_t begin = 0, length = 0; begin < word.size(); begin += length) {
      const Utf8Char next = DecodeUtf8(word.substr(begin));
      length = next.length;
      if (matches(next.code)) ranges.push_back({begin, begin + length});
    }
    return absl::OkStatus();
  };
  return SplitStep(find, behavior, false);
}

// 0: white space, 1: part of a word, 2: anything else.
int WhitespaceKind(char32_t code) {
  return IsUnicodeWord(code) ? 1 : IsUnicodeSpace(code) ? 0 : 2;
}

// Finds words and runs of other characters, as Rust's \w+|[^\w\s]+ does.
absl::Status FindWords(std::string_view text, std::vector<TextRange>& ranges) {
  int last = 0;
  for (size_t begin = 0, length = 0; begin < text.size(); begin += length) {
    const Utf8Char next = DecodeUtf8(text.substr(begin));
    length = next.length;
    const int kind = WhitespaceKind(next.code);
    if (kind != 0 && kind == last) {
      ranges.back().end = begin + length;
    } else if (kind != 0) {
      ranges.push_back({begin, begin + length});
    }
    last = kind;
  }
  return absl::OkStatus();
}

PreTokenizeStep FixedLengthSplit(int64_t length) {
  const auto find = [length](std::string_view word, std::vector<TextRange>& ranges) {
    int64_t remaining = 0;
    for (size_t begin = 0; begin < word.size(); begin = ranges.back().end, --remaining) {
      const size_t end = begin + DecodeUtf8(word.substr(begin)).length;
      if (remaining == 0) {
        ranges.push_back({begin, end});
        remaining = length;
      }
      ranges.back().end = end;
    }
    return absl::OkStatus();
  };
  return SplitStep(find, SplitBehavior::kIsolated, false);
}

absl::Status AppendSplit(const TokenizerJson& json, Steps& steps) {
  LIME_ASSIGN_OR_RETURN(auto regex, ParsePattern(json));
  LIME_ASSIGN_OR_RETURN(const auto behavior, ParseBehavior(json));
  LIME_ASSIGN_OR_RETURN(const bool invert, BoolField(json, "invert", false));
  steps.push_back(RegexSplit(std::move(regex), behavior, invert));
  return absl::OkStatus();
}

absl::Status AppendByteLevel(const TokenizerJson& json, Steps& steps) {
  LIME_ASSIGN_OR_RETURN(const bool add_prefix_space, BoolField(json, "add_prefix_space", true));
  LIME_ASSIGN_OR_RETURN(const bool use_regex, BoolField(json, "use_regex", true));
  if (add_prefix_space) {
    steps.push_back([](Words& words) {
      return RewriteWords(
          words, [](std::string_view text) { return std::string(text); },
          [](const Words::Word&, std::string_view text) { return text.starts_with(" ") ? "" : " "; });
    });
  }
  if (use_regex) LIME_RETURN_IF_ERROR(AppendPattern(kGpt2Pattern, SplitBehavior::kIsolated, false, steps));
  steps.push_back([](Words& words) { return RewriteWords(words, ToByteLevel, [](const Words::Word&, std::string_view) { return ""; }); });
  return absl::OkStatus();
}

absl::StatusOr<std::string> PrependScheme(const TokenizerJson& json) {
  LIME_ASSIGN_OR_RETURN(const bool add_prefix_space, BoolField(json, "add_prefix_space", true));
  LIME_ASSIGN_OR_RETURN(const std::string scheme, StringField(json, "prepend_scheme", add_prefix_space ? "always" : "never"));
  if (!add_prefix_space && scheme != "never") return Invalid("add_prefix_space is false, but prepend_scheme is \"", scheme, "\"");
  if (scheme == "always" || scheme == "first" || scheme == "never") return scheme;
  return Invalid("prepend_scheme \"", scheme, "\" is not supported; supported are always, first, never");
}

absl::Status AppendMetaspace(const TokenizerJson& json, Steps& steps) {
  LIME_ASSIGN_OR_RETURN(const std::string mark, StringField(json, "replacement", "\u2581"));
  LIME_ASSIGN_OR_RETURN(const std::string scheme, PrependScheme(json));
  LIME_ASSIGN_OR_RETURN(const bool split, BoolField(json, "split", true));
  steps.push_back([mark, scheme](Words& words) {
    return RewriteWords(
        words, [&](std::string_view text) { return ReplaceLiteral(text, " ", mark); },
        [&](const Words::Word& word, std::string_view text) -> std::string_view {
          const bool wanted = scheme == "always" || (scheme == "first" && word.start_bytes > 0);
          return wanted && !text.starts_with(mark) ? std::string_view(mark) : "";
        });
  });
  if (!split) return absl::OkStatus();
  LIME_ASSIGN_OR_RETURN(auto regex, Regex::Literal(mark));
  steps.push_back(RegexSplit(std::move(regex), SplitBehavior::kMergedWithNext, false));
  return absl::OkStatus();
}

// The kinds with one field.
absl::Status AppendWithField(const std::string& type, const TokenizerJson& json, Steps& steps) {
  if (type == "Digits") {
    LIME_ASSIGN_OR_RETURN(const bool individual, BoolField(json, "individual_digits", false));
    steps.push_back(CharacterSplit(IsUnicodeNumber, individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous));
  } else if (type == "FixedLength") {
    LIME_ASSIGN_OR_RETURN(const int64_t length, IntField(json, "length", 5));
    if (length < 1) return Invalid("pre_tokenizer \"FixedLength\" has length ", length, ", need at least 1");
    steps.push_back(FixedLengthSplit(length));
  } else if (type == "CharDelimiterSplit") {
    LIME_ASSIGN_OR_RETURN(const std::string delimiter, RequiredString(json, "delimiter"));
    LIME_ASSIGN_OR_RETURN(auto regex, Regex::Literal(delimiter));
    steps.push_back(RegexSplit(std::move(regex), SplitBehavior::kRemoved, false));
  } else {
    LIME_ASSIGN_OR_RETURN(const auto behavior, ParseBehavior(json));
    steps.push_back(CharacterSplit(IsUnicodePunctuation, behavior));
  }
  return absl::OkStatus();
}

absl::Status Unsupported(std::string_view type) {
  return absl::UnimplementedError(
      absl::StrCat("pre_tokenizer \"", Text(type),
                   "\" is not supported; supported are ByteLevel, Split, Digits, Punctuation, Metaspace, Whitespace, WhitespaceSplit, "
                   "CharDelimiterSplit, FixedLength, BertPreTokenizer and Sequence"));
}

absl::Status AppendSteps(const TokenizerJson& json, Steps& steps) {
  LIME_ASSIGN_OR_RETURN(const std::string type, ComponentType(json));
  if (type.empty()) return absl::OkStatus();
  if (type == "Sequence") {
    for (const TokenizerJson& part : Field(json, "pretokenizers")) LIME_RETURN_IF_ERROR(AppendSteps(part, steps));
    return absl::OkStatus();
  }
  if (type == "ByteLevel") return AppendByteLevel(json, steps);
  if (type == "Metaspace") return AppendMetaspace(json, steps);
  if (type == "Split") return AppendSplit(json, steps);
  if (type == "Digits" || type == "FixedLength" || type == "CharDelimiterSplit" || type == "Punctuation")
    return AppendWithField(type, json, steps);
  if (type == "Whitespace") {
    steps.push_back(SplitStep(FindWords, SplitBehavior::kRemoved, true));
  } else if (type == "WhitespaceSplit") {
    steps.push_back(CharacterSplit(IsUnicodeSpace, SplitBehavior::kRemoved));
  } else if (type == "BertPreTokenizer") {
    steps.push_back(CharacterSplit(IsUnicodeSpace, SplitBehavior::kRemoved));
    steps.push_back(CharacterSplit(IsUnicodePunctuation, SplitBehavior::kIsolated));
  } else {
    return Unsupported(type);
  }
  return absl::OkStatus();
}

}  // namespace

PreTokenizeStep SplitStep(FindRanges find, SplitBehavior behavior, bool invert) {
  return [find = std::move(find), behavior, invert](Words& words) -> absl::Status {
    std::vector<Words::Word> result;
    std::vector<TextRange> ranges;
    for (const Words::Word& word : words.words) {
      ranges.clear();
      LIME_RETURN_IF_ERROR(find(words.Text(word), ranges));
      std::vector<SplitPart> stretches = Alternate(ranges, word.range.end - word.range.begin, invert);
      ApplyBehavior(behavior, stretches);
      for (const auto& [range, matched] : stretches) {
        if (range.begin == range.end) continue;
        const size_t start_bytes = std::min(word.start_bytes - std::min(word.start_bytes, range.begin), range.end - range.begin);
        result.push_back({{word.range.begin + range.begin, word.range.begin + range.end}, start_bytes});
      }
    }
    words.words = std::move(result);
    return absl::OkStatus();
  };
}

absl::StatusOr<std::vector<PreTokenizeStep>> ParsePreTokenizer(const TokenizerJson& json) {
  Steps steps;
  LIME_RETURN_IF_ERROR(AppendSteps(json, steps));
  return steps;
}

}  // namespace lime
