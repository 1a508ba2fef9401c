// An order as a device receives it. If it admits a request, it includes how to sample the tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/order.h"
#include "common/sampling/sampler.h"

namespace lime {

// How to sample the tokens of one request.
struct RequestSampling {
  SamplingParams params;
  // Index of this completion for its caller. Random numbers depend on (seed, choice, position).
  // nullopt: the request's number.
  std::optional<uint64_t> choice;
  bool hash_logits = false;
  std::string hash_state;  // LogitsHash::State to continue from; empty: a new hash
  // Requests scores: for every position of the prompt this many likeliest ids, and the
  // log-probability of the prompt's id. The hash continues over all scored requests in the order of
  // computing. nullopt: no scores.
  std::optional<int32_t> score_top;
};

struct OrderMessage {
  Order order;
  RequestSampling sampling;  // used by AdmitOrder
};

}  // namespace lime
