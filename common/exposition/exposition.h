// Metrics as text, in the format that Prometheus reads (text format 0.0.4). Pure.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lime {

inline constexpr std::string_view kExpositionType = "text/plain; version=0.0.4; charset=utf-8";

using MetricFamilies = std::vector<prometheus::MetricFamily>;

// A value that is known when the text is made.
struct MetricSample {
  std::vector<std::pair<std::string, std::string>> labels;
  double value = 0;
};
// REQUIRES: the name of a counter ends in _total; `help` is one line
prometheus::MetricFamily CounterFamily(std::string name, std::string help, const std::vector<MetricSample>& samples);
prometheus::MetricFamily GaugeFamily(std::string name, std::string help, const std::vector<MetricSample>& samples);

// In the order of names and labels.
std::string ExpositionText(MetricFamilies families);

}  // namespace lime
