// An order as a coordinator gives it to a device: where it admits a request, with how the tokens of
// that request are chosen.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/order.h"
#include "common/sampler.h"

namespace lime {

// How the tokens of one request are chosen.
struct RequestSampling {
  SamplingParams params;
  // Which of its caller's requests it is: it draws at (seed, choice, position). Nothing: its number.
  std::optional<uint64_t> choice;
  bool hash_logits = false;
  std::string hash_state;  // LogitsHash::State, that it goes on from; empty: it begins
  // So many likeliest ids of every position of the prompt are told, and the log-probabilities of
  // its ids; the hash goes on over all requests that are scored, in the order in which they are
  // computed. Nothing: it is not scored.
  std::optional<int32_t> score_top;
};

struct OrderMessage {
  Order order;
  RequestSampling sampling;  // of an AdmitOrder
};

}  // namespace lime
