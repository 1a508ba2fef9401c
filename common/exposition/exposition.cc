#include "common/exposition/exposition.h"

#include <prometheus/text_serializer.h>

#include <algorithm>

namespace lime {
namespace {

prometheus::MetricFamily FamilyOf(prometheus::MetricType type, std::string name, std::string help,
                                  const std::vector<MetricSample>& samples) {
  prometheus::MetricFamily family{.name = std::move(name), .help = std::move(help), .type = type, .metric = {}};
  for (const MetricSample& sample : samples) {
    prometheus::ClientMetric metric;
    for (const auto& [label, value] : sample.labels) metric.label.push_back({label, value});
    std::ranges::sort(metric.label, [](const auto& a, const auto& b) { return a < b; });
    metric.counter.value = metric.gauge.value = sample.value;
    family.metric.push_back(std::move(metric));
  }
  return family;
}

}  // namespace

prometheus::MetricFamily CounterFamily(std::string name, std::string help, const std::vector<MetricSample>& samples) {
  return FamilyOf(prometheus::MetricType::Counter, std::move(name), std::move(help), samples);
}

prometheus::MetricFamily GaugeFamily(std::string name, std::string help, const std::vector<MetricSample>& samples) {
  return FamilyOf(prometheus::MetricType::Gauge, std::move(name), std::move(help), samples);
}

// A registry gives its samples in the order of hash tables.
std::string ExpositionText(MetricFamilies families) {
  std::ranges::sort(families, {}, &prometheus::MetricFamily::name);
  for (prometheus::MetricFamily& family : families)
    std::ranges::sort(family.metric, [](const auto& a, const auto& b) { return a.label < b.label; });
  return static_cast<const prometheus::Serializer&>(prometheus::TextSerializer()).Serialize(families);
}

}  // namespace lime
