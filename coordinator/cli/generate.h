// The generation loop: scheduler, engine, sampler and text, one step after another.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/sampler.h"
#include "coordinator/logic/request_scheduler.h"
#include "coordinator/text/tokenizer.h"
#include "daemon/engine/engine.h"
#include "daemon/profile/cpu_usage.h"

namespace lime::cli {

struct GenerateOptions {
  SamplingParams sampling;
  std::vector<int64_t> max_new_tokens;  // by prompt; the last one's holds for all others.  REQUIRES: at least one
  int64_t chunk = 0;
  std::vector<int32_t> end_tokens;
  std::vector<std::string> stop_strings;
  bool hash_logits = false;
  bool keep_times = false;                      // token_times
  std::function<void()> before_decoding;        // called once, before the first step that only decodes. May be empty
  std::function<void(double share)> on_prompt;  // how much is computed of the prompts that begin together, until the first token. May be
                                                // empty
  const std::atomic<bool>* cancel = nullptr;
  // Text as it becomes certain, by prompt index. May be empty.
  std::function<void(size_t prompt, std::string_view text)> on_text;

  int64_t MaxNewTokens(size_t prompt) const { return max_new_tokens[std::min(prompt, max_new_tokens.size() - 1)]; }
};

struct Generated {
  std::vector<int32_t> token_ids;  // generated, an end token included
  std::string text;                // without special tokens, cut before a stop string
  int64_t prompt_tokens = 0;
  FinishReason finish = FinishReason::kNone;
  double ttft_ms = 0;               // from the start of generation to the first token
  double ms_per_token = 0;          // of the tokens after the first
  uint64_t logits_hash = 0;         // XXH3-64 of the logits of every generated position
  std::vector<double> token_times;  // when each was sampled: seconds of the steady clock, which on Linux all processes share
};

// What steps that only decode took of the machine.
struct DecodeUse {
  CpuUsage cpu;
  Bytes disk_bytes = 0;          // that this process read
  Bytes streamed_bytes = 0;      // of them, weights
  double disk_busy_seconds = 0;  // streaming them
};

struct GenerateSummary {
  std::vector<Generated> results;
  double prefill_ms = 0;         // steps that held prompt rows
  double decode_ms = 0;          // steps that only decoded
  double decode_ms_squared = 0;  // sum of the squares of their times
  int64_t decode_steps = 0;
  int64_t decode_tokens = 0;
  int64_t pauses = 0;   // on a cluster: steps that a recovery or a change of plans held up, which decode_* do not count
  double pause_ms = 0;  // of them together
  DecodeUse use;
  bool interrupted = false;

  double MsPerStep() const { return decode_steps > 0 ? decode_ms / static_cast<double>(decode_steps) : 0; }
  double StepDeviationMs() const;  // standard deviation; 0 for fewer than two steps
};

// Generates for every prompt, batched over the engine's sequence slots. The engine must have been created with `max_sequences` slots and
// logit rows.
absl::StatusOr<GenerateSummary> Generate(Engine& engine, const Tokenizer& tokenizer, const std::vector<std::vector<int32_t>>& prompts,
                                         int64_t max_sequences, const GenerateOptions& options);

}  // namespace lime::cli
