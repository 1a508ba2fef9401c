#include "coordinator/text/pre_tokenizer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/text/byte_level.h"
#include "coordinator/text/normalizer.h"

namespace lime {
namespace {

constexpr std::string_view kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kPunctuationPattern = R"([\p{P}$+<=>^`|~])";  // with the ASCII symbols, as Rust's is_ascii_punctuation

// A stretch of a word, matched by the pattern or lying between matches.
struct Stretch {
  TextRange range;
  bool matched;
};

std::vector<Stretch> Alternate(const std::vector<TextRange>& matches, size_t size, bool invert) {
  std::vector<Stretch> stretches;
  size_t done = 0;
  for (const TextRange& match : matches) {
    if (done < match.begin) stretches.push_back({{done, match.begin}, invert});
    stretches.push_back({match, !invert});
    done = match.end;
  }
  if (done < size) stretches.push_back({{done, size}, invert});
  return stretches;
}

// Joins each stretch to the one before it where joins(previous, current) says so.
template <typename Joins>
void Join(std::vector<Stretch>& stretches, Joins joins) {
  std::vector<Stretch> joined;
  for (size_t i = 0; i < stretches.size(); ++i) {
    if (i > 0 && joins(stretches[i - 1], stretches[i])) {
      joined.back().range.end = stretches[i].range.end;
    } else {
      joined.push_back(stretches[i]);
    }
  }
  stretches = std::move(joined);
}

void ApplyBehavior(SplitBehavior behavior, std::vector<Stretch>& stretches) {
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return;
    case SplitBehavior::kRemoved:
      stretches.erase(std::remove_if(stretches.begin(), stretches.end(), [](const Stretch& s) { return s.matched; }), stretches.end());
      return;
    case SplitBehavior::kMergedWithPrevious:
      return Join(stretches, [](const Stretch& before, const Stretch& now) { return now.matched && !before.matched; });
    case SplitBehavior::kMergedWithNext:
      return Join(stretches, [](const Stretch& before, const Stretch& now) { return before.matched && !now.matched; });
    case SplitBehavior::kContiguous:
      return Join(stretches, [](const Stretch& before, const Stretch& now) { return before.matched == now.matched; });
  }
}

// Rewrites every word by `rewrite`.
template <typename Rewrite>
absl::Status RewriteWords(Words& words, Rewrite rewrite) {
  std::string text;
  text.reserve(words.text.size() * 5 / 4);
  for (Words::Word& word : words.words) {
    const size_t begin = text.size();
    rewrite(word, words.Text(word), text);
    word.range = {begin, text.size()};
  }
  words.text = std::move(text);
  return CheckTextSize(words.text.size());
}

absl::StatusOr<SplitBehavior> ParseBehavior(const Json& json) {
  LIME_ASSIGN_OR_RETURN(const std::string name, StringField(json, "behavior", "Isolated"));
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return absl::InvalidArgumentError(absl::StrCat(
      "split behavior \"", name, "\" is not supported; supported are Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous"));
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

absl::Status AppendSplit(const Json& json, Steps& steps) {
  LIME_ASSIGN_OR_RETURN(auto regex, ParsePattern(json));
  LIME_ASSIGN_OR_RETURN(const auto behavior, ParseBehavior(json));
  LIME_ASSIGN_OR_RETURN(const bool invert, BoolField(json, "invert", false));
  steps.push_back(RegexSplit(std::move(regex), behavior, invert));
  return absl::OkStatus();
}

absl::Status AppendByteLevel(const Json& json, Steps& steps) {
  LIME_ASSIGN_OR_RETURN(const bool add_prefix_space, BoolField(json, "add_prefix_space", true));
  LIME_ASSIGN_OR_RETURN(const bool use_regex, BoolField(json, "use_regex", true));
  if (add_prefix_space) {
    steps.push_back([](Words& words) {
      return RewriteWords(words, [](const Words::Word&, std::string_view word, std::string& out) {
        out.append(word.starts_with(" ") ? "" : " ").append(word);
      });
    });
  }
  if (use_regex) LIME_RETURN_IF_ERROR(AppendPattern(kGpt2Pattern, SplitBehavior::kIsolated, false, steps));
  steps.push_back([](Words& words) {
    return RewriteWords(words, [](const Words::Word&, std::string_view word, std::string& out) {
      for (const char c : word) out.append(ByteLevelChar(static_cast<unsigned char>(c)));
    });
  });
  return absl::OkStatus();
}

absl::StatusOr<std::string> PrependScheme(const Json& json) {
  LIME_ASSIGN_OR_RETURN(const bool add_prefix_space, BoolField(json, "add_prefix_space", true));
  LIME_ASSIGN_OR_RETURN(const std::string scheme, StringField(json, "prepend_scheme", add_prefix_space ? "always" : "never"));
  if (scheme == "always" || scheme == "first" || scheme == "never") return scheme;
  return absl::InvalidArgumentError(absl::StrCat("prepend_scheme \"", scheme, "\" is not supported; supported are always, first, never"));
}

absl::Status AppendMetaspace(const Json& json, Steps& steps) {
  LIME_ASSIGN_OR_RETURN(const std::string mark, StringField(json, "replacement", "\u2581"));
  LIME_ASSIGN_OR_RETURN(const std::string scheme, PrependScheme(json));
  LIME_ASSIGN_OR_RETURN(const bool split, BoolField(json, "split", true));
  steps.push_back([mark, scheme](Words& words) {
    return RewriteWords(words, [&](const Words::Word& word, std::string_view text, std::string& out) {
      const std::string marked = ReplaceLiteral(text, " ", mark);
      const bool wanted = scheme == "always" || (scheme == "first" && word.at_start);
      out.append(wanted && !marked.starts_with(mark) ? mark : "").append(marked);
    });
  });
  if (!split) return absl::OkStatus();
  LIME_ASSIGN_OR_RETURN(auto regex, Regex::Literal(mark));
  steps.push_back(RegexSplit(std::move(regex), SplitBehavior::kMergedWithNext, false));
  return absl::OkStatus();
}

absl::Status AppendSteps(const Json& json, Steps& steps) {
  LIME_ASSIGN_OR_RETURN(const std::string type, ComponentType(json));
  if (type.empty()) return absl::OkStatus();
  if (type == "Sequence") {
    for (const Json& part : Field(json, "pretokenizers")) LIME_RETURN_IF_ERROR(AppendSteps(part, steps));
    return absl::OkStatus();
  }
  if (type == "ByteLevel") return AppendByteLevel(json, steps);
  if (type == "Metaspace") return AppendMetaspace(json, steps);
  if (type == "Split") return AppendSplit(json, steps);
  if (type == "Whitespace") return AppendPattern(R"(\w+|[^\w\s]+)", SplitBehavior::kRemoved, true, steps);
  if (type == "WhitespaceSplit") return AppendPattern(R"(\s)", SplitBehavior::kRemoved, false, steps);
  if (type == "Digits") {
    LIME_ASSIGN_OR_RETURN(const bool individual, BoolField(json, "individual_digits", false));
    return AppendPattern(R"(\p{N})", individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, false, steps);
  }
  if (type == "Punctuation") {
    LIME_ASSIGN_OR_RETURN(const auto behavior, ParseBehavior(json));
    return AppendPattern(kPunctuationPattern, behavior, false, steps);
  }
  if (type == "CharDelimiterSplit") {
    LIME_ASSIGN_OR_RETURN(const std::string delimiter, RequiredString(json, "delimiter"));
    LIME_ASSIGN_OR_RETURN(auto regex, Regex::Literal(delimiter));
    steps.push_back(RegexSplit(std::move(regex), SplitBehavior::kRemoved, false));
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      absl::StrCat("pre_tokenizer \"", type,
                   "\" is not supported; supported are ByteLevel, Split, Digits, Punctuation, Metaspace, Whitespace, WhitespaceSplit, "
                   "CharDelimiterSplit and Sequence"));
}

}  // namespace

PreTokenizeStep SplitStep(FindRanges find, SplitBehavior behavior, bool invert) {
  return [find = std::move(find), behavior, invert](Words& words) -> absl::Status {
    std::vector<Words::Word> result;
    std::vector<TextRange> ranges;
    for (const Words::Word& word : words.words) {
      ranges.clear();
      LIME_RETURN_IF_ERROR(find(words.Text(word), ranges));
      std::vector<Stretch> stretches = Alternate(ranges, word.range.end - word.range.begin, invert);
      ApplyBehavior(behavior, stretches);
      for (const auto& [range, matched] : stretches) {
        if (range.begin == range.end) continue;
        result.push_back({{word.range.begin + range.begin, word.range.begin + range.end}, word.at_start && range.begin == 0});
      }
    }
    words.words = std::move(result);
    return absl::OkStatus();
  };
}

absl::StatusOr<std::vector<PreTokenizeStep>> ParsePreTokenizer(const Json& json) {
  Steps steps;
  LIME_RETURN_IF_ERROR(AppendSteps(json, steps));
  return steps;
}

}  // namespace lime
