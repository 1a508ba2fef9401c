// One simulated request, and the check of its answer: the right tokens, each once and in order, and
// an end at the right place.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/logic/request.h"
#include "planner/plan/model/model_spec.h"
#include "tests/sim/hash_model.h"

namespace lime {

class SimRequest {
 public:
  // REQUIRES: `spec` outlives this
  SimRequest(const ModelSpec& spec, const Request& request);

  // The coordinator reports a token. Returns the fault of the token; empty: it is right.
  std::string OnToken(int32_t position, int32_t token, bool again, FinishReason reason);
  // Ends the request early. False if it has ended already.
  bool Stop();

  bool over() const { return over_; }  // nothing more may come

 private:
  HashReference reference_;
  int64_t next_ = 0;                           // position of the next token
  int64_t last_ = 0;                           // of its last token
  FinishReason ends_ = FinishReason::kLength;  // why that is the last
  bool over_ = false;
};

}  // namespace lime
