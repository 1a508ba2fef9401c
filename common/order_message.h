// An order as a device receives it. If it admits a request, it includes how to sample the tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/order.h"
#include "common/sampling/row_score.h"
#include "common/sampling/sampler.h"
#include "planner/base/bytes.h"

namespace lime {

// How to sample the tokens of one request.
struct RequestSampling {
  static constexpr Bytes kMaxFormatBytes = 64 * kKiB;

  SamplingParams params;
  // Index of this completion for its caller. Random numbers depend on (seed, choice, position).
  // nullopt: the request's number.
  std::optional<uint64_t> choice;
  bool hash_logits = false;
  std::string hash_state;  // LogitsHash::State to continue from; empty: a new hash
  // Requests scores: for every position of the prompt this many likeliest ids, and the
  // log-probability of the prompt's id. With hash_logits the request has a hash of its own, whose
  // state comes with the token behind the prompt. Without it the hash continues over all such
  // requests in the order of computing, but not under another plan. nullopt: no scores.
  std::optional<int32_t> score_top;
  // Requests the log-probability of every generated token, and this many likeliest ids, at most
  // kMostLogprobs. nullopt: none.
  std::optional<int32_t> logprobs;
  // What the generated tokens may be (json_schema/answer_format.h), at most kMaxFormatBytes. Empty:
  // anything. The mask of a token is a function of this text, the vocabulary, the generated ids and
  // AdmitOrder::positions, so it is the same after a recovery or under another plan.
  std::string format;

  friend bool operator==(const RequestSampling&, const RequestSampling&) = default;
};

struct OrderMessage {
  Order order;
  RequestSampling sampling;  // used by AdmitOrder
};

}  // namespace lime
