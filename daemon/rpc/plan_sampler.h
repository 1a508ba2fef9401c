// Samples the tokens of a plan's sequences on the device with the head, each request by its own parameters.
//
// A token is the one that a single process would choose: a function of logits, parameters, ids so far, request and position. Where a request
// was begun by an earlier plan, the tokens known stay as they are; their logits may be made again, so that the hash is over all of them.
//
// Threads: any; Sample is the compute thread's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "daemon/engine/stage_engine.h"
#include "proto/convert.h"

namespace lime {

class PlanSampler final : public StageEngine::TokenSampler {
 public:
  PlanSampler();
  ~PlanSampler() override;

  // How the tokens of a request will be chosen.  Before its AdmitOrder is given to the engine.
  void Expect(int64_t request, const RequestSampling& sampling);

  void Admit(const AdmitOrder& order) override;
  void Retire(int32_t sequence) override;
  absl::StatusOr<int32_t> Sample(const BatchRow& row, std::span<const float> logits) override;

  // XXH3-64 of the logits of all positions of the token's request up to it; 0 where nobody asked, or it was taken already.
  uint64_t TakeLogitsHash(const SampledToken& token);

 private:
  struct Sequence;
  absl::Mutex mutex_;
  std::map<int64_t, RequestSampling> expected_ ABSL_GUARDED_BY(mutex_);             // by request
  std::map<int32_t, std::unique_ptr<Sequence>> sequences_ ABSL_GUARDED_BY(mutex_);  // by slot
  std::map<std::pair<int32_t, int32_t>, uint64_t> hashes_ ABSL_GUARDED_BY(mutex_);  // by slot and position
  Sampler sampler_;                                                                 // the compute thread's
};

}  // namespace lime
