#include "coordinator/generation/sampling_defaults.h"

#include <gmock/gmock.h>

namespace lime {
namespace {

TEST(SamplingDefaultsTest, TheFileSaysThem) {
  const auto defaults = ParseSamplingDefaults(
      R"({"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1, "do_sample": true, "eos_token_id": 2})",
      "f");
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(*defaults, (SamplingDefaults{.temperature = 0.6, .top_p = 0.9, .min_p = 0.1, .repetition_penalty = 1.1, .top_k = 20}));
}

TEST(SamplingDefaultsTest, WithoutFieldsTheTemperatureIsOne) {
  EXPECT_EQ(ParseSamplingDefaults("{}", "f").value(), SamplingDefaults());
  EXPECT_EQ(SamplingDefaults().temperature, 1);
  EXPECT_EQ(ParseSamplingDefaults(R"({"top_k": -1, "temperature": null})", "f").value(), SamplingDefaults());
}

TEST(SamplingDefaultsTest, AModelThatDoesNotSampleIsGreedy) {
  EXPECT_EQ(ParseSamplingDefaults(R"({"do_sample": false})", "f").value().temperature, 0);
  EXPECT_EQ(ParseSamplingDefaults(R"({"do_sample": false, "temperature": 0.7})", "f").value().temperature, 0);
}

TEST(SamplingDefaultsTest, WrongFilesAreErrorsThatNameThem) {
  for (const char* text : {"[]", R"({"temperature": "hot"})", R"({"temperature": -1})", R"({"top_p": NaN})", R"({"min_p": 2})"}) {
    const auto defaults = ParseSamplingDefaults(text, "f.json");
    EXPECT_THAT(std::string(defaults.status().message()), testing::StartsWith("f.json")) << text;
  }
}

TEST(SamplingDefaultsTest, TheRequestComesFirst) {
  const SamplingDefaults defaults = {.temperature = 0, .top_p = 0.9, .min_p = 0.1, .repetition_penalty = 1.1, .top_k = 20};
  const SamplingParams kept = ParamsOf({}, defaults, 7);
  EXPECT_EQ(kept.temperature, 0);
  EXPECT_EQ(kept.top_k, 20);
  EXPECT_EQ(kept.seed, 7u);
  RequestedSampling requested = {.temperature = 0.5, .top_p = 1, .min_p = 0, .repetition_penalty = 1, .top_k = 0, .frequency_penalty = 0.5};
  requested.presence_penalty = -1;
  requested.logit_bias = {{5, -100}, {6, 1.5}};
  const SamplingParams asked = ParamsOf(requested, defaults, 7);
  EXPECT_EQ(asked.temperature, 0.5);
  EXPECT_EQ(asked.top_p, 1);
  EXPECT_EQ(asked.min_p, 0);
  EXPECT_EQ(asked.repetition_penalty, 1);
  EXPECT_EQ(asked.top_k, 0);
  EXPECT_EQ(asked.frequency_penalty, 0.5);
  EXPECT_EQ(asked.presence_penalty, -1);
  EXPECT_EQ(asked.logit_bias, (std::vector<LogitBias>{{5, -100}, {6, 1.5}}));
}

}  // namespace
}  // namespace lime
