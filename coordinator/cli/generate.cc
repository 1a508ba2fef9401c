#include "coordinator/cli/generate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/logits_hash.h"
#include "coordinator/cli/text_stream.h"
#include "daemon/engine/process_memory.h"

namespace lime::cli {
namespace {

using Clock = TextStream::Clock;

class Generator {
 public:
  Generator(Engine& engine, const Tokenizer& tokenizer, const GenerateOptions& options, const RequestScheduler::Options& scheduling)
      : engine_(engine), options_(options), scheduler_(scheduling), max_sequences_(scheduling.max_sequences), tokenizer_(tokenizer) {}
  ~Generator() { engine_.set_on_block({}); }

  absl::Status Add(const std::vector<int32_t>& prompt) {
    const int64_t max_new_tokens = options_.MaxNewTokens(streams_.size());
    const auto id = scheduler_.Add({.prompt = prompt, .max_new_tokens = max_new_tokens, .end_tokens = options_.end_tokens});
    if (!id.ok()) return id.status();
    streams_.push_back(std::make_unique<TextStream>(tokenizer_, options_, streams_.size(), prompt));
    hashes_.emplace_back();
    history_.push_back(prompt);
    history_.back().reserve(prompt.size() + static_cast<size_t>(max_new_tokens));
    return absl::OkStatus();
  }

  absl::StatusOr<GenerateSummary> Run() {
    start_ = Clock::now();
    if (options_.on_prompt) engine_.set_on_block([this](int done, int total) { TellPrompt(done, total); });
    while (!Cancelled() && scheduler_.NextStep(step_)) {
      for (const auto& admitted : step_.admitted) LIME_RETURN_IF_ERROR(engine_.StartSequence(admitted.slot, admitted.positions));
      EnterPhase(/*decoding=*/step_.batch.rows.size() == step_.sampled.size() && step_.admitted.empty());
      const Clock::time_point begin = Clock::now();
      const absl::StatusOr<std::span<const float>> logits = engine_.Step(step_.batch);
      if (Cancelled() && absl::IsCancelled(logits.status())) break;  // a step that waits for its disk can be long
      LIME_RETURN_IF_ERROR(logits.status());
      prompt_rows_done_ += std::ssize(step_.batch.rows);
      if (!step_.sampled.empty()) engine_.set_on_block({});
      LIME_RETURN_IF_ERROR(TakeLogits(*logits));
      Count(Clock::now() - begin);
    }
    return Summary();
  }

 private:
  bool Cancelled() const { return options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed); }

  absl::Status TakeLogits(std::span<const float> logits) {
    const size_t vocab = engine_.spec().config.vocab_size;
    for (size_t i = 0; i < step_.sampled.size(); ++i) {
      LIME_RETURN_IF_ERROR(TakeRow(step_.sampled[i], logits.subspan(i * vocab, vocab)));
    }
    return absl::OkStatus();
  }

  // Samples the next token of one request and carries it to text.
  absl::Status TakeRow(RequestId id, std::span<const float> logits) {
    if (options_.hash_logits) hashes_[id].Add(logits);
    const uint64_t position = history_[id].size();
    LIME_ASSIGN_OR_RETURN(const int32_t token, sampler_.Sample(logits, options_.sampling, history_[id],
                                                               {.request = static_cast<uint64_t>(id), .position = position}));
    history_[id].push_back(token);
    const int32_t slot = scheduler_.slot(id);
    const FinishReason scheduled = scheduler_.OnToken(id, token), reason = streams_[id]->Take(token, scheduled);
    if (reason == FinishReason::kNone) return absl::OkStatus();
    if (scheduled == FinishReason::kNone) scheduler_.Stop(id);
    engine_.EndSequence(slot);
    Close(id, reason);
    return absl::OkStatus();
  }

  // Before the first token every row is one of a prompt.
  void TellPrompt(int done, int total) const {
    int64_t rows = 0;
    for (size_t i = 0; i < history_.size() && static_cast<int64_t>(i) < max_sequences_; ++i) rows += std::ssize(history_[i]);
    const double in_step = static_cast<double>(std::ssize(step_.batch.rows)) * done / total;
    options_.on_prompt((static_cast<double>(prompt_rows_done_) + in_step) / static_cast<double>(std::max<int64_t>(1, rows)));
  }

  void Close(RequestId id, FinishReason reason) {
    streams_[id]->result().logits_hash = hashes_[id].value();
    streams_[id]->Close(reason, start_);
  }

  DecodeUse ReadUse() {
    DecodeUse use{.cpu = ReadCpuUsage(), .disk_bytes = ProcessDiskReadBytes()};
    if (Streamer* const streamer = engine_.streamer()) {
      const PieceLoader::Stats stats = streamer->stats();
      use.streamed_bytes = stats.bytes_read;
      use.disk_busy_seconds = absl::ToDoubleSeconds(stats.busy);
    }
    return use;
  }

  // What is used is counted from one change of phase to the next: asking for it takes system calls, and decode steps make none.
  void EnterPhase(bool decoding) {
    if (decoding == decoding_) return;
    decoding_ = decoding;
    if (decoding && options_.before_decoding && !std::exchange(has_decoded_, true)) options_.before_decoding();
    const DecodeUse now = ReadUse();
    if (!decoding) {
      summary_.use.cpu += now.cpu - before_.cpu;
      summary_.use.disk_bytes += now.disk_bytes - before_.disk_bytes;
      summary_.use.streamed_bytes += now.streamed_bytes - before_.streamed_bytes;
      summary_.use.disk_busy_seconds += now.disk_busy_seconds - before_.disk_busy_seconds;
    }
    before_ = now;
  }

  void Count(Clock::duration duration) {
    const double ms = Milliseconds(duration);
    (decoding_ ? summary_.decode_ms : summary_.prefill_ms) += ms;
    if (!decoding_) return;
    summary_.decode_ms_squared += ms * ms;
    ++summary_.decode_steps;
    summary_.decode_tokens += static_cast<int64_t>(step_.sampled.size());
  }

  GenerateSummary Summary() {
    EnterPhase(/*decoding=*/false);
    summary_.interrupted = Cancelled();
    for (RequestId id = 0; id < static_cast<RequestId>(streams_.size()); ++id) {
      if (!scheduler_.finished(id)) {
        if (scheduler_.running(id)) engine_.EndSequence(scheduler_.slot(id));
        scheduler_.Stop(id);
        Close(id, FinishReason::kInterrupted);
      }
      summary_.results.push_back(std::move(streams_[id]->result()));
    }
    return std::move(summary_);
  }

  Engine& engine_;
  const GenerateOptions& options_;
  RequestScheduler scheduler_;
  const int64_t max_sequences_;
  const Tokenizer& tokenizer_;
  Sampler sampler_;
  RequestScheduler::Step step_;
  std::vector<std::unique_ptr<TextStream>> streams_;  // by request id
  std::vector<LogitsHash> hashes_;                    // by request id
  std::vector<std::vector<int32_t>> history_;         // prompt and generated ids, by request id
  GenerateSummary summary_;
  bool decoding_ = false;  // the step at hand holds no prompt rows
  bool has_decoded_ = false;
  int64_t prompt_rows_done_ = 0;
  DecodeUse before_;  // when this phase began
  Clock::time_point start_;
};

}  // namespace

double GenerateSummary::StepDeviationMs() const {
  if (decode_steps < 2) return 0;
  const double n = static_cast<double>(decode_steps), mean = decode_ms / n;
  return std::sqrt(std::max(0.0, (decode_ms_squared - n * mean * mean) / (n - 1)));
}

absl::StatusOr<GenerateSummary> Generate(Engine& engine, const Tokenizer& tokenizer, const std::vector<std::vector<int32_t>>& prompts,
                                         int64_t max_sequences, const GenerateOptions& options) {
  const RequestScheduler::Options scheduling{
      .max_rows = options.chunk + max_sequences, .chunk = options.chunk, .max_sequences = max_sequences, .context = engine.context()};
  Generator generator(engine, tokenizer, options, scheduling);
  for (const std::vector<int32_t>& prompt : prompts) LIME_RETURN_IF_ERROR(generator.Add(prompt));
  return generator.Run();
}

}  // namespace lime::cli
