// A prompt to continue, and why its continuation ends. Pure data.
#pragma once

#include <cstdint>
#include <vector>

namespace lime {

using RequestId = int64_t;  // counts up as long as a server runs

struct Request {
  std::vector<int32_t> prompt;      // at least one token
  int64_t max_new_tokens = 0;       // at least one; 0 for a request that is only scored
  std::vector<int32_t> end_tokens;  // generation ends after one of these
  // Whether KV of earlier requests may be used, and KV of this one by later requests.
  bool cache_prompt = false;
  int64_t cache_group = 0;  // KV is shared only within a group
};

enum class FinishReason {
  kNone,         // still running
  kEndToken,     // an end token was generated
  kLength,       // max_new_tokens reached
  kStopped,      // the text reached a stop string
  kInterrupted,  // the call was interrupted before it was done
};

}  // namespace lime
