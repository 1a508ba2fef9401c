// Reads Prometheus' text format 0.0.4 as strictly as its documentation describes it, for tests.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/status.h"

namespace lime {

struct ParsedMetrics {
  struct Family {
    std::string help, type;
    std::map<std::string, double> samples;  // by NAME{label="value",...} as written
  };
  std::map<std::string, Family> families;

  // Of all families. REQUIRES: it is there; a test fails with the name otherwise
  double at(const std::string& sample) const {
    for (const auto& [name, family] : families) {
      if (const auto found = family.samples.find(sample); found != family.samples.end()) return found->second;
    }
    return std::nan(sample.c_str());
  }
};

// Of a family of histograms: for each set of labels, buckets that grow up to the count, and a sum.
inline absl::Status CheckHistogram(const std::string& name, const ParsedMetrics::Family& family) {
  static const std::regex kBucket(R"re(^(.*)_bucket\{(.*?),?le="([^"]*)"\}$)re");
  std::map<std::string, std::map<double, double>> buckets;  // by labels, by upper bound
  for (const auto& [sample, value] : family.samples) {
    std::smatch match;
    if (!std::regex_match(sample, match, kBucket)) continue;
    buckets[match[2]][match[3] == "+Inf" ? INFINITY : std::stod(match[3])] = value;
  }
  if (buckets.empty()) return Invalid(name, " has no buckets");
  for (const auto& [labels, by_bound] : buckets) {
    const std::string of = labels.empty() ? "" : absl::StrCat("{", labels, "}");
    const auto count = family.samples.find(absl::StrCat(name, "_count", of));
    if (count == family.samples.end() || !family.samples.contains(absl::StrCat(name, "_sum", of)))
      return Invalid(name, of, " lacks its count or sum");
    if (!std::isinf(by_bound.rbegin()->first)) return Invalid(name, of, " has no bucket +Inf");
    double before = 0;
    for (const auto& [bound, value] : by_bound) {
      if (value < before) return Invalid(name, of, ": the bucket ", bound, " has less than the one before");
      before = value;
    }
    if (before != count->second) return Invalid(name, of, ": the last bucket is not the count");
  }
  return absl::OkStatus();
}

// A family is HELP, TYPE and its samples, without anything between them, once.
inline absl::StatusOr<ParsedMetrics> ParseExposition(const std::string& text) {
  static const std::regex kHelp(R"re(^# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) (.+)$)re");
  static const std::regex kType(R"re(^# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram|summary|untyped)$)re");
  static const std::regex kSample(
      R"re(^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*",?)+\})? ([^ ]+)$)re");
  ParsedMetrics parsed;
  if (text.empty() || text.back() != '\n') return Invalid("the text does not end with a line feed");
  std::istringstream lines(text);
  std::string line, family, helped;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::smatch match;
    if (std::regex_match(line, match, kHelp)) {
      helped = match[1];
      if (parsed.families.contains(helped)) return Invalid("line ", number, ": a second time ", helped);
      parsed.families[helped].help = match[2];
      family.clear();
    } else if (std::regex_match(line, match, kType)) {
      if (match[1] != helped || !family.empty()) return Invalid("line ", number, ": TYPE without its HELP: ", line);
      family = helped;
      parsed.families[family].type = match[2];
      const bool is_counter = match[2] == "counter";
      if (is_counter != family.ends_with("_total")) return Invalid("line ", number, ": only a counter ends in _total: ", line);
    } else if (std::regex_match(line, match, kSample)) {
      const std::string name = match[1];
      ParsedMetrics::Family& of = parsed.families[family];
      const bool fits = name == family ||
                        (of.type == "histogram" && (name == family + "_bucket" || name == family + "_sum" || name == family + "_count"));
      if (family.empty() || !fits) return Invalid("line ", number, ": a sample outside its family: ", line);
      double value = 0;
      const std::string written = match[3];
      if (written == "+Inf" || written == "Nan" || written == "-Inf") return Invalid("line ", number, ": no number: ", line);
      const auto [end, error] = std::from_chars(written.data(), written.data() + written.size(), value);
      if (error != std::errc() || end != written.data() + written.size()) return Invalid("line ", number, ": no number: ", line);
      if (!of.samples.emplace(name + match[2].str(), value).second) return Invalid("line ", number, ": a second time: ", line);
    } else {
      return Invalid("line ", number, ": ", line);
    }
  }
  for (const auto& [name, of] : parsed.families) {
    if (of.type.empty()) return Invalid(name, " has no TYPE");
    if (of.type == "histogram") LIME_RETURN_IF_ERROR(CheckHistogram(name, of));
  }
  return parsed;
}

}  // namespace lime
