#include "coordinator/cli/generate.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/logits_hash.h"
#include "coordinator/text/detokenizer.h"
#include "coordinator/text/stop_strings.h"
#include "daemon/engine/process_memory.h"

namespace lime::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Of the text of one prompt, reserved so that nothing grows while tokens come: more than a tokenizer gives on average.
constexpr int64_t kBytesPerToken = 16;
constexpr int64_t kMaxReservedBytes = 16 * kMiB;

double Milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

// One prompt on its way to text.
struct Stream {
  Stream(const Tokenizer& tokenizer, const std::vector<std::string>& stops) : detokenizer(tokenizer), stop_strings(stops) {}

  StreamingDetokenizer detokenizer;
  StopStrings stop_strings;
  LogitsHash hash;
  Generated result;
  Clock::time_point first_token, last_token;
};

class Generator {
 public:
  Generator(Engine& engine, const Tokenizer& tokenizer, const GenerateOptions& options, const RequestScheduler::Options& scheduling)
      : engine_(engine), options_(options), scheduler_(scheduling), tokenizer_(tokenizer) {}

  absl::Status Add(const std::vector<int32_t>& prompt) {
    const auto id = scheduler_.Add({.prompt = prompt, .max_new_tokens = options_.max_new_tokens, .end_tokens = options_.end_tokens});
    if (!id.ok()) return id.status();
    auto stream = std::make_unique<Stream>(tokenizer_, options_.stop_strings);
    stream->result.prompt_tokens = static_cast<int64_t>(prompt.size());
    stream->result.token_ids.reserve(options_.max_new_tokens);
    if (options_.keep_times) stream->result.token_times.reserve(options_.max_new_tokens);
    stream->result.text.reserve(std::min(options_.max_new_tokens * kBytesPerToken, kMaxReservedBytes));
    for (const int32_t token : prompt) stream->detokenizer.Push(token);  // the text goes on where the prompt ends
    streams_.push_back(std::move(stream));
    history_.push_back(prompt);
    history_.back().reserve(prompt.size() + options_.max_new_tokens);
    return absl::OkStatus();
  }

  absl::StatusOr<GenerateSummary> Run() {
    start_ = Clock::now();
    while (!Cancelled() && scheduler_.NextStep(step_)) {
      for (const auto& admitted : step_.admitted) LIME_RETURN_IF_ERROR(engine_.StartSequence(admitted.slot, admitted.positions));
      EnterPhase(/*decoding=*/step_.batch.rows.size() == step_.sampled.size() && step_.admitted.empty());
      const Clock::time_point begin = Clock::now();
      const absl::StatusOr<std::span<const float>> logits = engine_.Step(step_.batch);
      if (Cancelled() && absl::IsCancelled(logits.status())) break;  // a step that waits for its disk can be long
      LIME_RETURN_IF_ERROR(logits.status());
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
    Stream& stream = *streams_[id];
    if (options_.hash_logits) stream.hash.Add(logits);
    const uint64_t position = history_[id].size();
    LIME_ASSIGN_OR_RETURN(const int32_t token, sampler_.Sample(logits, options_.sampling, history_[id],
                                                               {.request = static_cast<uint64_t>(id), .position = position}));
    stream.last_token = Clock::now();
    if (stream.result.token_ids.empty()) stream.first_token = stream.last_token;
    stream.result.token_ids.push_back(token);
    if (options_.keep_times)
      stream.result.token_times.push_back(std::chrono::duration<double>(stream.last_token.time_since_epoch()).count());
    history_[id].push_back(token);
    const int32_t slot = scheduler_.slot(id);
    FinishReason reason = scheduler_.OnToken(id, token);
    if (reason != FinishReason::kEndToken) Emit(id, stream.detokenizer.Push(token));
    if (reason == FinishReason::kNone && stream.stop_strings.stopped()) {
      scheduler_.Stop(id);
      reason = FinishReason::kStopped;
    }
    if (reason == FinishReason::kNone) return absl::OkStatus();
    engine_.EndSequence(slot);
    Close(id, reason);
    return absl::OkStatus();
  }

  void Emit(RequestId id, std::string_view text) { Deliver(id, streams_[id]->stop_strings.Push(text)); }

  void Deliver(RequestId id, std::string_view text) {
    if (text.empty()) return;
    streams_[id]->result.text.append(text);
    if (options_.on_text) options_.on_text(static_cast<size_t>(id), text);
  }

  // Hands out what was held back, and settles the figures.
  void Close(RequestId id, FinishReason reason) {
    Stream& stream = *streams_[id];
    if (!stream.stop_strings.stopped()) {
      Emit(id, stream.detokenizer.Finish());
      Deliver(id, stream.stop_strings.Finish());
    }
    Generated& result = stream.result;
    result.finish = reason;
    result.logits_hash = stream.hash.value();
    if (result.token_ids.empty()) return;
    result.ttft_ms = Milliseconds(stream.first_token - start_);
    const int64_t later = static_cast<int64_t>(result.token_ids.size()) - 1;
    result.ms_per_token = later > 0 ? Milliseconds(stream.last_token - stream.first_token) / static_cast<double>(later) : 0;
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
    (decoding_ ? summary_.decode_ms : summary_.prefill_ms) += Milliseconds(duration);
    if (!decoding_) return;
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
        Close(id, FinishReason::kStopped);
      }
      summary_.results.push_back(std::move(streams_[id]->result));
    }
    return std::move(summary_);
  }

  Engine& engine_;
  const GenerateOptions& options_;
  RequestScheduler scheduler_;
  const Tokenizer& tokenizer_;
  Sampler sampler_;
  RequestScheduler::Step step_;
  std::vector<std::unique_ptr<Stream>> streams_;  // by request id
  std::vector<std::vector<int32_t>> history_;     // prompt and generated ids, by request id
  GenerateSummary summary_;
  bool decoding_ = false;  // the step at hand holds no prompt rows
  DecodeUse before_;       // when this phase began
  Clock::time_point start_;
};

}  // namespace

absl::StatusOr<GenerateSummary> Generate(Engine& engine, const Tokenizer& tokenizer, const std::vector<std::vector<int32_t>>& prompts,
                                         int64_t max_sequences, const GenerateOptions& options) {
  const RequestScheduler::Options scheduling{
      .max_rows = options.chunk + max_sequences, .chunk = options.chunk, .max_sequences = max_sequences, .context = engine.context()};
  Generator generator(engine, tokenizer, options, scheduling);
  for (const std::vector<int32_t>& prompt : prompts) LIME_RETURN_IF_ERROR(generator.Add(prompt));
  return generator.Run();
}

}  // namespace lime::cli
