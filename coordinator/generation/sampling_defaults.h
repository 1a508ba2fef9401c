// How a model's generation_config.json says that its tokens are chosen.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/sampling/sampler.h"
#include "coordinator/api/api_request.h"
#include "planner/base/status.h"

namespace lime {

// For requests that say nothing themselves. Without a file: temperature 1, all else off.
struct SamplingDefaults {
  double temperature = 1, top_p = 1, min_p = 0, repetition_penalty = 1;
  int32_t top_k = 0;

  friend bool operator==(const SamplingDefaults&, const SamplingDefaults&) = default;
};

// `text`: the file. With "do_sample": false, the temperature is 0. Fields of other types and values
// that no sampling has are errors, which begin with `name`.
absl::StatusOr<SamplingDefaults> ParseSamplingDefaults(std::string_view text, std::string_view name);

// What the request wants, else the default.
SamplingParams ParamsOf(const RequestedSampling& requested, const SamplingDefaults& defaults, uint64_t seed);

}  // namespace lime
