#include "common/exposition/exposition.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <unistd.h>

#include "absl/time/clock.h"
#include "common/exposition/process_metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/exposition/exposition_parser.h"

namespace lime {
namespace {

TEST(ExpositionTest, FamiliesAndSamplesComeInTheOrderOfNamesAndLabels) {
  prometheus::Registry registry;
  auto& requests = prometheus::BuildCounter().Name("requests_total").Help("Requests.").Register(registry);
  for (const char* const route : {"/c", "/a", "/b"}) requests.Add({{"route", route}}).Increment(2);
  prometheus::BuildHistogram()
      .Name("seconds")
      .Help("Times.")
      .Register(registry)
      .Add({}, prometheus::Histogram::BucketBoundaries{0.5, 1})
      .Observe(0.75);
  MetricFamilies families = registry.Collect();
  families.push_back(
      GaugeFamily("memory_bytes", "Memory.", {{.labels = {{"kind", "kv"}}, .value = 1e12}, {.labels = {{"kind", "ring"}}, .value = 0.25}}));
  families.push_back(CounterFamily("a_total", "First.", {{.value = 3}}));
  EXPECT_EQ(ExpositionText(std::move(families)), R"(# HELP a_total First.
# TYPE a_total counter
a_total 3
# HELP memory_bytes Memory.
# TYPE memory_bytes gauge
memory_bytes{kind="kv"} 1000000000000
memory_bytes{kind="ring"} 0.25
# HELP requests_total Requests.
# TYPE requests_total counter
requests_total{route="/a"} 2
requests_total{route="/b"} 2
requests_total{route="/c"} 2
# HELP seconds Times.
# TYPE seconds histogram
seconds_count 1
seconds_sum 0.75
seconds_bucket{le="0.5"} 0
seconds_bucket{le="1"} 1
seconds_bucket{le="+Inf"} 1
)");
}

TEST(ExpositionTest, AnyTextMayBeTheValueOfALabel) {
  const std::string text = ExpositionText({GaugeFamily("a", "A.", {{.labels = {{"model", "a \"b\"\\\nc é"}}, .value = 1}})});
  EXPECT_EQ(text, "# HELP a A.\n# TYPE a gauge\na{model=\"a \\\"b\\\"\\\\\\nc é\"} 1\n");
  EXPECT_TRUE(ParseExposition(text).ok());
}

TEST(ExpositionTest, AFamilyWithoutSamplesKeepsItsHelp) {
  const absl::StatusOr<ParsedMetrics> parsed = ParseExposition(ExpositionText({CounterFamily("sent_bytes_total", "Sent.", {})}));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->families.at("sent_bytes_total").help, "Sent.");
}

TEST(ExpositionTest, TheProcessSaysWhatItUsesAndWhenItStarted) {
  const absl::StatusOr<ParsedMetrics> parsed = ParseExposition(ExpositionText(ProcessMetrics()));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->families.size(), 4u);
  EXPECT_GT(parsed->at("process_cpu_seconds_total"), 0);
  EXPECT_GT(parsed->at("process_resident_memory_bytes"), 1e6);
  const double now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  EXPECT_LE(parsed->at("process_start_time_seconds"), now + 1);
  EXPECT_GT(parsed->at("process_start_time_seconds"), now - 3600);
}

TEST(ExpositionTest, OpenFilesAreCounted) {
  const auto open = [] { return ParseExposition(ExpositionText(ProcessMetrics()))->at("process_open_fds"); };
  const double before = open();
  EXPECT_GE(before, 3);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(open(), before + 2);
  close(ends[0]), close(ends[1]);
  EXPECT_EQ(open(), before);
}

TEST(ExpositionParserTest, RefusesWhatTheFormatForbids) {
  const std::string family = "# HELP a A.\n# TYPE a gauge\n";
  EXPECT_TRUE(ParseExposition(family + "a{b=\"c\"} 1\n").ok());
  for (const std::string& wrong :
       {family + "a 1", family + "b 1\n", family + "a one\n", family + "a 1\na 1\n", family + family, family + "a{b=c} 1\n",
        family + "a{b=\"\n\"} 1\n", std::string("a 1\n"), std::string("# HELP a A.\na 1\n"), std::string("# TYPE a gauge\n"),
        std::string("# HELP a A.\n# TYPE a counter\na 1\n"),
        std::string("# HELP h H.\n# TYPE h histogram\nh_count 2\nh_sum 1\nh_bucket{le=\"+Inf\"} 1\n")})
    EXPECT_FALSE(ParseExposition(wrong).ok()) << wrong;
}

}  // namespace
}  // namespace lime
