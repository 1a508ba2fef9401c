// Samples the tokens of a plan's sequences on the device that ends the head. Each request has its
// own parameters.
//
// A token is the one that a single process would choose: a function of logits, parameters, ids so
// far, request and position. If an earlier plan began a request, its known tokens stay as they are.
// Their logits may be computed again, so that the hash covers all of them. Hash and scores are of
// the logits themselves, before penalties, biases and masks.
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
#include "common/order_message.h"
#include "common/sampling/logits_hash.h"
#include "common/sampling/row_score.h"
#include "daemon/engine/token_sampler.h"
#include "daemon/stage/mask_maker.h"
#include "kernels/cpu/row_scorer.h"

namespace lime {

class PlanSampler final : public TokenSampler {
 public:
  PlanSampler();
  ~PlanSampler() override;

  // The texts of the tokens, for requests with a format.  REQUIRES: called before Expect, if at all
  void UseVocabulary(json_schema::VocabularyPtr vocabulary) { masks_.UseVocabulary(std::move(vocabulary)); }
  // Says how the tokens of a request will be chosen. Called before the engine gets its AdmitOrder.
  void Expect(int64_t request, const RequestSampling& sampling);

  // The format is compiled from now on, beside the prompt.
  void Admit(const AdmitOrder& order) override;
  void Retire(int32_t sequence) override;
  // A token that was sampled behind `positions` cannot be taken back from a hash, a score or the mask
  // of a format: the sequence fails with its next logits then.
  void RollBack(int32_t sequence, int64_t positions) override;
  absl::StatusOr<int64_t> LogitsUsed(int32_t sequence) override;
  absl::StatusOr<int32_t> Sample(const BatchRow& row, std::span<const float> logits) override;

  // Hash and scores of a token's logits, if its request asks for them.
  struct TokenReport {
    // XXH3-64 of the logits of the request's positions so far; with scores: of all scored
    // positions.
    uint64_t logits_hash = 0;
    std::string hash_state;  // behind a scored prompt with a hash of its own; else empty
    std::optional<cpu::RowScore> score;
  };
  // States from which the hashes can go on elsewhere, by slot. Only of sequences with a hash.
  std::vector<std::pair<int32_t, std::string>> HashStates();

  // Called once for each token, in the order in which they were sampled.
  TokenReport OnSampled(const SampledToken& token);

 private:
  struct Sequence;
  absl::StatusOr<Sequence*> Find(int32_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<int32_t> SampleNext(Sequence& sequence, std::span<const float> logits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Report(Sequence& sequence, const BatchRow& row, std::span<const float> logits, int32_t token, bool known)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::map<int64_t, RequestSampling> expected_ ABSL_GUARDED_BY(mutex_);             // by request
  std::map<int32_t, std::unique_ptr<Sequence>> sequences_ ABSL_GUARDED_BY(mutex_);  // by slot
  struct ReportOf {
    int32_t sequence = 0, position = 0;
    TokenReport report;
  };
  std::vector<ReportOf> reports_ ABSL_GUARDED_BY(mutex_);  // of tokens that ask for it, oldest first
  size_t returned_ ABSL_GUARDED_BY(mutex_) = 0;            // how many of them OnSampled has returned
  std::shared_ptr<LogitsHash> scored_hash_ ABSL_GUARDED_BY(mutex_);
  MaskMaker masks_;
  Sampler sampler_;            // used by the compute thread
  cpu::RowScorer row_scorer_;  // used by the compute thread
};

}  // namespace lime
