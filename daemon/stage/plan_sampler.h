// Samples the tokens of a plan's sequences on the device that ends the head, each request by its own parameters.
//
// A token is the one that a single process would choose: a function of logits, parameters, ids so far, request and position. Where a
// request was begun by an earlier plan, the tokens known stay as they are; their logits may be made again, so that the hash is over all of
// them.
//
// Threads: any; LogitsUsed and Sample are the compute thread's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/activation.h"
#include "common/logits_hash.h"
#include "common/order_message.h"
#include "common/row_score.h"
#include "daemon/engine/token_sampler.h"
#include "kernels/cpu/row_scorer.h"

namespace lime {

class PlanSampler final : public TokenSampler {
 public:
  PlanSampler();
  ~PlanSampler() override;

  // How the tokens of a request will be chosen.  Before its AdmitOrder is given to the engine.
  void Expect(int64_t request, const RequestSampling& sampling);

  void Admit(const AdmitOrder& order) override;
  void Retire(int32_t sequence) override;
  absl::StatusOr<int64_t> LogitsUsed(int32_t sequence) override;
  absl::StatusOr<int32_t> Sample(const BatchRow& row, std::span<const float> logits) override;

  // What the logits that a token was taken from say, where its request asks for it.
  struct Told {
    uint64_t logits_hash = 0;  // XXH3-64 of the logits of all positions of the request up to it; of all that are scored, where it is
    std::optional<cpu::RowScore> score;
  };
  // What the hashes of the sequences go on from elsewhere, by slot, of those that have one.
  std::vector<std::pair<int32_t, std::string>> HashStates();

  // Once for each token, in the order in which they were sampled.
  Told Take(const SampledToken& token);

 private:
  struct Sequence;
  absl::StatusOr<Sequence*> Find(int32_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::map<int64_t, RequestSampling> expected_ ABSL_GUARDED_BY(mutex_);             // by request
  std::map<int32_t, std::unique_ptr<Sequence>> sequences_ ABSL_GUARDED_BY(mutex_);  // by slot
  struct ToldOf {
    int32_t sequence = 0, position = 0;
    Told told;
  };
  std::vector<ToldOf> told_ ABSL_GUARDED_BY(mutex_);  // of the tokens that ask for it, oldest first
  size_t taken_ ABSL_GUARDED_BY(mutex_) = 0;          // of them
  std::shared_ptr<LogitsHash> scored_hash_ ABSL_GUARDED_BY(mutex_);
  Sampler sampler_;            // the compute thread's
  cpu::RowScorer row_scorer_;  // likewise
};

}  // namespace lime
