#include "coordinator/chat/local_chat.h"

#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "coordinator/api/answers/answer_json.h"
#include "coordinator/api/answers/answer_writer.h"
#include "coordinator/generation/answer_reader.h"

namespace lime::cli {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(50);  // how often a wait for tokens looks at `stop`

uint64_t RandomBits() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

// The same codes as of ApiClient, so that a chat treats both alike.
absl::Status StatusOf(const ApiError& error) {
  std::string sentence = error.message;
  while (sentence.ends_with('.')) sentence.pop_back();
  if (error.code == "context_length_exceeded") return absl::ResourceExhaustedError(sentence);
  return error.status >= 500 ? absl::InternalError(sentence) : absl::InvalidArgumentError(sentence);
}

// Tokens on their way from the thread of Serving to that of the chat.
//
// Bounds: max_new_tokens, whose memory is reserved ahead.
class PassedTokens final : public RequestSink {
 public:
  struct News {
    std::vector<ServedToken> tokens;  // without text and score
    std::optional<RequestEnd> end;    // without text; behind the tokens
  };

  explicit PassedTokens(int64_t max_new_tokens) { news_.tokens.reserve(static_cast<size_t>(max_new_tokens)); }

  void OnToken(const ServedToken& token) override {
    const absl::MutexLock lock(&mutex_);
    news_.tokens.push_back(token);
    news_.tokens.back().text = {};
    news_.tokens.back().score = nullptr;
  }
  void OnEnd(const RequestEnd& end) override {
    const absl::MutexLock lock(&mutex_);
    news_.end = end;
    news_.end->text = {};
  }
  // What has come since the last call. Waits for something, but no longer than kLook.
  void Wait(News& news) {
    news.tokens.clear();
    const absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &PassedTokens::HasNews), kLook);
    std::swap(news_.tokens, news.tokens);
    news.end = news_.end;
    if (news_.tokens.capacity() < news.tokens.capacity()) news_.tokens.reserve(news.tokens.capacity());
  }

 private:
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !news_.tokens.empty() || news_.end.has_value(); }

  absl::Mutex mutex_;
  News news_ ABSL_GUARDED_BY(mutex_);
};

// Passes on the events of the one choice, instead of writing them as JSON.
class ReplyWriter final : public AnswerWriter {
 public:
  ReplyWriter(const ChatPieces& pieces, ChatReply& reply) : pieces_(pieces), reply_(reply) {}

  void Add(int64_t, ChoiceEvent event) override {
    if (const auto* const content = std::get_if<ContentPiece>(&event); content != nullptr && !content->text.empty()) {
      reply_.content += content->text;
      pieces_.on_content(content->text);
    } else if (const auto* const reasoning = std::get_if<ReasoningPiece>(&event); reasoning != nullptr && !reasoning->text.empty()) {
      reply_.reasoning += reasoning->text;
      pieces_.on_reasoning(reasoning->text);
    } else if (const auto* const end = std::get_if<ChoiceEnd>(&event)) {
      reply_.finish = std::string(FinishName(end->finish));
    }
  }
  void Finish(const AnswerReport&) override {}
  void Fail(const ApiError&) override {}
  void Write(std::string&) override {}
  std::string_view KeepAlive() const override { return {}; }
  bool done() const override { return false; }
  std::string_view content_type() const override { return {}; }

 private:
  const ChatPieces& pieces_;
  ChatReply& reply_;
};

}  // namespace

absl::StatusOr<ChatReply> LocalChat::Ask(const ApiRequest& request, const ChatPieces& pieces, const std::atomic<bool>& stop) {
  const absl::CivilSecond now = absl::ToCivilSecond(absl::Now(), absl::LocalTimeZone());
  const ApiResult<Generation> generation = PrepareGeneration(model_, Endpoint::kChat, request, {.now = now, .random = RandomBits});
  if (!generation.ok()) return StatusOf(generation.error());
  return Generate(*generation, pieces, stop);
}

absl::StatusOr<ChatReply> LocalChat::Generate(const Generation& generation, const ChatPieces& pieces, const std::atomic<bool>& stop) {
  ChatReply reply;
  ReplyWriter writer(pieces, reply);
  AnswerReader reader(model_, generation, RandomBits, writer);
  const int64_t recoveries = serving_.recoveries(), changes = serving_.changes();
  const auto tokens = std::make_shared<PassedTokens>(generation.requests.front().max_new_tokens);
  LIME_ASSIGN_OR_RETURN(const RequestId id, serving_.Submit(generation.requests.front(), tokens));
  PassedTokens::News news;
  bool cancelled = false;
  while (!news.end) {
    tokens->Wait(news);
    bool is_enough = stop.load(std::memory_order_relaxed);
    for (const ServedToken& token : news.tokens) is_enough = !reader.OnToken(0, token) || is_enough;
    if (is_enough && !std::exchange(cancelled, true)) serving_.Cancel(id);
  }
  if (!news.end->status.ok() && !reader.has_ended(0))
    return absl::IsCancelled(news.end->status) ? absl::StatusOr<ChatReply>(reply) : news.end->status;
  reader.OnEnd(0, *news.end);
  reply.has_counts = true;
  reply.report = reader.Report();
  const std::shared_ptr<const ServedPlan> plan = plan_.get();
  reply.report.numerics_id = plan->numerics_id;
  reply.report.plan_epoch = plan->plan.epoch;
  reply.report.predicted_ms_per_token = plan->MsPerToken(/*running=*/1);
  reply.report.recoveries = serving_.recoveries() - recoveries;
  reply.report.plan_changes = serving_.changes() - changes;
  return reply;
}

}  // namespace lime::cli
