#include "coordinator/text/unicode/regex.h"

#include <oniguruma.h>

#include <algorithm>
#include <mutex>

#include "coordinator/text/unicode/regex_classes.h"
#include "coordinator/text/unicode/utf8.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr size_t kMaxPatternBytes = 64 * 1024;
constexpr unsigned kMaxNesting = 250;

// Bounds of one FindAll, in backtracking steps. Hostile patterns reach them within seconds;
// patterns of tokenizers need a few steps per byte.
constexpr uint64_t kBaseSteps = 200'000;
constexpr uint64_t kStepsPerByte = 256;
constexpr uint64_t kFirstSteps = 1024;                // steps of one search that are not counted
constexpr uint64_t kMaxStepsPerSearch = 100'000'000;  // a few seconds
// Each has about 40 bytes. A repeated character takes one entry.
constexpr unsigned kMaxStackEntries = 16 * 1024 * 1024;

const OnigUChar* Start(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}

void InitializeOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
    onig_set_parse_depth_limit(kMaxNesting);
    onig_set_warn_func(onig_null_warn);
    onig_set_verb_warn_func(onig_null_warn);
  });
}

absl::StatusOr<std::shared_ptr<re_pattern_buffer>> CompileOniguruma(std::string_view pattern) {
  InitializeOnce();
  regex_t* code = nullptr;
  OnigErrorInfo info = {};
  const int rc =
      onig_new(&code, Start(pattern), Start(pattern) + pattern.size(), ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_ONIGURUMA, &info);
  if (rc == ONIG_NORMAL) return std::shared_ptr<re_pattern_buffer>(code, onig_free);
  OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN] = {};
  onig_error_code_to_str(text, rc, &info);
  return absl::InvalidArgumentError(reinterpret_cast<const char*>(text));
}

// The search memory of one thread.
class Searcher {
 public:
  Searcher() : region_(onig_region_new()), param_(onig_new_match_param()) {
    onig_initialize_match_param(param_);
    onig_set_match_stack_limit_size_of_match_param(param_, kMaxStackEntries);
  }
  Searcher(const Searcher&) = delete;
  Searcher& operator=(const Searcher&) = delete;
  ~Searcher() {
    onig_free_match_param(param_);
    onig_region_free(region_, 1);
  }

  // Returns Oniguruma's return code, and the match in `range`. Subtracts the steps that the search
  // needs from `steps_left`. It tries with few steps first, then with more. So the steps needed are
  // known to within a factor, and do not depend on the clock.
  int Search(regex_t* code, std::string_view text, size_t start, uint64_t& steps_left, TextRange& range) {
    const auto too_few = [](int rc) { return rc == ONIGERR_RETRY_LIMIT_IN_MATCH_OVER || rc == ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER; };
    int rc = Try(code, text, start, kFirstSteps, range);
    for (uint64_t steps = 16 * kFirstSteps; too_few(rc) && steps_left > 0; steps *= 16) {
      steps = std::min({steps, steps_left, kMaxStepsPerSearch});
      rc = Try(code, text, start, steps, range);
      steps_left -= steps;
      if (steps == kMaxStepsPerSearch) break;
    }
    return rc;
  }

 private:
  int Try(regex_t* code, std::string_view text, size_t start, uint64_t steps, TextRange& range) {
    onig_set_retry_limit_in_match_of_match_param(param_, steps);
    onig_set_retry_limit_in_search_of_match_param(param_, steps);
    const OnigUChar *begin = Start(text), *end = begin + text.size();
    onig_region_clear(region_);
    const int rc = onig_search_with_param(code, begin, end, begin + start, end, region_, ONIG_OPTION_NONE, param_);
    if (rc >= 0) range = {static_cast<size_t>(region_->beg[0]), static_cast<size_t>(region_->end[0])};
    return rc;
  }

  OnigRegion* region_;
  OnigMatchParam* param_;
};

std::string SearchError(int rc) {
  OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN] = {};
  onig_error_code_to_str(text, rc);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

absl::StatusOr<Regex> Regex::Compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes)
    return Invalid("the regular expression has ", pattern.size(), " bytes, the limit is ", kMaxPatternBytes);
  LIME_ASSIGN_OR_RETURN(const std::string spelled, SpellOutClasses(pattern));
  auto code = CompileOniguruma(spelled);
  // A class that is spelled out is not allowed in every place where its name is.
  if (!code.ok()) code = CompileOniguruma(pattern);
  if (!code.ok()) return Invalid("regular expression \"", Text(pattern), "\" does not compile: ", code.status().message());
  Regex regex(pattern);
  regex.code_ = *std::move(code);
  return regex;
}

absl::StatusOr<Regex> Regex::Literal(std::string_view literal) {
  if (literal.empty()) return Compile("");
  return Regex(literal);
}

void Regex::FindLiteral(std::string_view text, std::vector<TextRange>& matches) const {
  for (size_t at = 0; (at = text.find(pattern_, at)) != std::string_view::npos; at += pattern_.size()) {
    matches.push_back({at, at + pattern_.size()});
  }
}

absl::Status Regex::FindAll(std::string_view text, std::vector<TextRange>& matches) const {
  if (code_ == nullptr) {
    FindLiteral(text, matches);
    return absl::OkStatus();
  }
  if (text.empty()) return absl::OkStatus();
  thread_local Searcher searcher;
  uint64_t steps_left = kBaseSteps + kStepsPerByte * text.size();
  size_t start = 0;
  size_t last_end = std::string_view::npos;
  while (start <= text.size()) {
    TextRange match;
    const int rc = searcher.Search(code_.get(), text, start, steps_left, match);
    if (rc == ONIG_MISMATCH) break;
    if (rc < 0) {
      return Invalid("regular expression \"", Text(pattern_), "\" failed on a text of ", text.size(), " bytes: ", SearchError(rc));
    }
    if (match.begin == match.end && match.begin == last_end) {
      if (start == text.size()) break;
      start += DecodeUtf8(text.substr(start)).length;
      continue;
    }
    matches.push_back(match);
    start = last_end = match.end;
  }
  return absl::OkStatus();
}

}  // namespace lime
