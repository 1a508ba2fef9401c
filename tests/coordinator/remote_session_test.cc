// Runs and scores over loopback, answered by a server in this process.
#include "coordinator/sessions/remote_session.h"

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/api/answers/answer_writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/base/json_text.h"
#include "tests/common/http/test_handler.h"
#include "tests/coordinator/api/answer_scenes.h"
#include "tests/coordinator/api/parse.h"

namespace lime::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Gives its text once and then waits or ends.
class OneText final : public BodySource {
 public:
  OneText(std::string text, bool ends) : text_(std::move(text)), ends_(ends) {}
  bool Pull(std::string& out) override {
    out += std::exchange(text_, {});
    return ends_;
  }
  void OnSilence(std::string&) override {}

 private:
  std::string text_;
  const bool ends_;
};

HttpResponse JsonReply(std::string body) {
  return {.status = 200, .headers = {{"Content-Type", "application/json"}}, .body = std::move(body)};
}

class RemoteSessionTest : public ::testing::Test {
 protected:
  using Events = std::vector<std::pair<int64_t, ChoiceEvent>>;

  void SetUp() override {
    server_ = MakeServer(handler_);
    ASSERT_NE(server_, nullptr);
    HttpCaller::Options options;
    options.url = *ParseServerUrl(absl::StrCat("http://127.0.0.1:", server_->port()));
    absl::StatusOr<std::unique_ptr<HttpCaller>> caller = HttpCaller::Create(std::move(options));
    ASSERT_TRUE(caller.ok());
    absl::StatusOr<std::unique_ptr<RemoteSession>> session =
        RemoteSession::Open(std::make_unique<ApiClient>(*std::move(caller)), "tiny", &cancel_);
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
    options_.max_new_tokens = {9};
    options_.sampling.temperature = 0.5;
    options_.sampling.seed = 18446744073709551615u;
  }

  absl::StatusOr<GenerateSummary> Generate(const std::vector<std::string>& prompts, bool ignore_eos = false) {
    { const absl::MutexLock lock(&mutex_); }  // the server's thread sees what the test has set
    absl::StatusOr<GenerateSummary> summary = session_->Generate(prompts, options_, ignore_eos);
    const absl::MutexLock lock(&mutex_);  // and the test what it has seen
    return summary;
  }
  absl::StatusOr<Scores> Score(const std::vector<std::vector<int32_t>>& windows) {
    { const absl::MutexLock lock(&mutex_); }
    absl::StatusOr<Scores> scores = session_->Score(windows, {.top = 1, .companions = {}, .cancel = nullptr});
    const absl::MutexLock lock(&mutex_);
    return scores;
  }

  void Answer(const HttpRequest& request, HttpAnswer& answer) {
    const absl::MutexLock lock(&mutex_);
    if (request.path == "/v1/models") return answer.Send(JsonReply(R"({"data": [{"id": "tiny", "max_model_len": 512}]})"));
    if (request.path == "/tokenize") return Tokenize(request, answer);
    if (request.path == "/detokenize") return answer.Send(JsonReply(JsonText(nlohmann::json{{"content", detokenized_}})));
    EXPECT_EQ(request.path, "/v1/completions");
    seen_ = Parsed(Endpoint::kCompletions, request.body);
    const std::unique_ptr<AnswerWriter> writer = MakeAnswerWriter(Endpoint::kCompletions, seen_, SmallHead("cmpl-1"));
    for (const auto& [choice, event] : events_) writer->Add(choice, event);
    AnswerReport report = SmallReport();
    if (seen_.hash_state && continues_hashes_) report.hash_state = *seen_.hash_state + "x";
    if (ends_) writer->Finish(report);
    std::string text;
    writer->Write(text);
    if (!seen_.stream) return answer.Send(JsonReply(std::move(text)));
    answer.Stream({.status = 200, .headers = {{"Content-Type", "text/event-stream"}}, .body = ""}, absl::Seconds(10),
                  std::make_unique<OneText>(std::move(text), ends_));
  }
  // As many ids as bytes, and BOS where it is asked for.
  static void Tokenize(const HttpRequest& request, HttpAnswer& answer) {
    const nlohmann::json body = nlohmann::json::parse(request.body);
    std::vector<int32_t> ids;
    if (body.contains("prompt")) ids.push_back(1);
    for (const char c : body.value(body.contains("prompt") ? "prompt" : "content", "")) ids.push_back(static_cast<unsigned char>(c));
    answer.Send(JsonReply(JsonText(nlohmann::json{{"tokens", ids}, {"count", ids.size()}})));
  }

  absl::Mutex mutex_;  // held by the server while it answers
  std::shared_ptr<HttpAnswer> held_;
  Events events_;
  bool ends_ = true, continues_hashes_ = true;
  std::string detokenized_;
  ApiRequest seen_;
  std::atomic<bool> cancel_ = false;
  GenerateOptions options_;
  TestHandler handler_{[this](const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
    Answer(request, *answer);
    const absl::MutexLock lock(&mutex_);
    held_ = answer;  // a stream without it ends
  }};
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<RemoteSession> session_;
};

TEST_F(RemoteSessionTest, APromptIsContinuedWithTheFiguresOfTheServer) {
  options_.hash_logits = true;
  std::string shown;
  int first_tokens = 0;
  options_.on_text = [&](size_t, std::string_view text) { shown += text; };
  options_.on_first_token = [&] { ++first_tokens; };
  events_ = {
      {0, ContentPiece{" a"}}, {0, TokenId{7}}, {0, ContentPiece{" b"}}, {0, TokenId{8}}, {0, ChoiceEnd{AnswerFinish::kLength, 0xAB}}};
  const absl::StatusOr<GenerateSummary> summary = Generate({"Once"}, /*ignore_eos=*/true);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(seen_.model, "tiny");
  EXPECT_EQ(std::get<TextPrompts>(seen_.prompt), TextPrompts{std::string("Once")});
  EXPECT_EQ(seen_.max_tokens, 9);
  EXPECT_EQ(seen_.sampling.temperature, 0.5);
  EXPECT_EQ(seen_.sampling.top_p, 1);
  EXPECT_EQ(seen_.sampling.seed, 18446744073709551615u);
  EXPECT_TRUE(seen_.ignore_eos && seen_.hash_logits && seen_.return_token_ids && seen_.stream);
  ASSERT_EQ(summary->results.size(), 1u);
  const Generated& result = summary->results.front();
  EXPECT_EQ(result.text, " a b");
  EXPECT_EQ(shown, " a b");
  EXPECT_EQ(first_tokens, 1);
  EXPECT_THAT(result.token_ids, ElementsAre(7, 8));
  EXPECT_EQ(result.finish, FinishReason::kLength);
  EXPECT_EQ(result.logits_hash, 0xABu);
  EXPECT_EQ(result.prompt_tokens, SmallReport().prompt_tokens);
  EXPECT_EQ(result.ttft_ms, SmallReport().ttft_ms);
  EXPECT_EQ(result.ms_per_token, SmallReport().ms_per_token);
  EXPECT_FALSE(summary->interrupted);
  EXPECT_EQ(session_->predicted_ms_per_token(), SmallReport().predicted_ms_per_token);
  EXPECT_EQ(session_->Describe().value("model", ""), "tiny");
}

TEST_F(RemoteSessionTest, AnEndTokenAndAStopStringAreToldApart) {
  events_ = {{0, ContentPiece{" a"}}, {0, TokenId{7}}, {0, ChoiceEnd{AnswerFinish::kStop}}};
  options_.stop_strings = {"END"};
  detokenized_ = " a";
  EXPECT_EQ(Generate({"Once"})->results.front().finish, FinishReason::kEndToken);
  detokenized_ = " aEND";
  EXPECT_EQ(Generate({"Once"})->results.front().finish, FinishReason::kStopped);
}

TEST_F(RemoteSessionTest, SeveralPromptsAreOneRequestAndEachHasItsTokens) {
  events_ = {{1, ContentPiece{"B"}},
             {0, ContentPiece{"A"}},
             {1, TokenId{8}},
             {1, ChoiceEnd{AnswerFinish::kStop}},
             {0, TokenId{7}},
             {0, TokenId{2}},
             {0, ChoiceEnd{AnswerFinish::kStop}}};
  const absl::StatusOr<GenerateSummary> summary = Generate({"ab", "abc"});
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(std::get<TextPrompts>(seen_.prompt), (TextPrompts{std::string("ab"), std::string("abc")}));
  ASSERT_EQ(summary->results.size(), 2u);
  EXPECT_EQ(summary->results[0].text, "A");
  EXPECT_THAT(summary->results[0].token_ids, ElementsAre(7, 2));
  EXPECT_EQ(summary->results[0].prompt_tokens, 3);
  EXPECT_EQ(summary->results[1].text, "B");
  EXPECT_EQ(summary->results[1].prompt_tokens, 4);
}

TEST_F(RemoteSessionTest, AnInterruptedAnswerIsReturnedAsFarAsItCame) {
  events_ = {{0, ContentPiece{"Once upon"}}};
  ends_ = false;
  options_.on_text = [&](size_t, std::string_view) { cancel_ = true; };
  const absl::StatusOr<GenerateSummary> summary = Generate({"x"});
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_TRUE(summary->interrupted);
  EXPECT_EQ(summary->results.front().text, "Once upon");
  EXPECT_THAT(summary->results.front().token_ids, IsEmpty());
  EXPECT_EQ(summary->results.front().finish, FinishReason::kInterrupted);
}

TEST_F(RemoteSessionTest, ATextIsEncodedByTheServer) {
  EXPECT_THAT(*session_->Encode("ab"), ElementsAre('a', 'b'));
  EXPECT_EQ(*session_->Bos(), 1);
  EXPECT_EQ(session_->context(), 512);
}

TEST_F(RemoteSessionTest, AScoredWindowHasAPositionForEachId) {
  events_ = {{0, TokenScore{.token = "<s>", .logprob = std::nullopt, .top = {}, .is_in_text = false, .next = {{7, 1.5F}}}},
             {0, TokenScore{.token = "a", .logprob = -0.25, .top = {}, .is_in_text = true, .next = {{3, -2}}}},
             {0, ChoiceEnd{AnswerFinish::kLength, 0xCD}}};
  absl::StatusOr<Scores> scores = Score({{1, 7}});
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_EQ(seen_.max_tokens, 0);
  EXPECT_TRUE(seen_.echo && seen_.hash_logits && seen_.return_token_ids);
  EXPECT_FALSE(seen_.cache_prompt);
  EXPECT_EQ(seen_.top_logprobs, 1);
  ASSERT_EQ(scores->positions.size(), 2u);
  EXPECT_EQ(scores->positions[0].id, 1);
  EXPECT_EQ(scores->positions[0].logprob, std::nullopt);
  EXPECT_THAT(scores->positions[0].top, ElementsAre(std::pair(7, 1.5F)));
  EXPECT_EQ(scores->positions[1].logprob, -0.25);
  EXPECT_THAT(scores->positions[1].top, ElementsAre(std::pair(3, -2.0F)));
  EXPECT_EQ(scores->logits_hash, 0xCDu);
  EXPECT_EQ(seen_.hash_state, std::nullopt) << "no other window continues it";

  scores = Score({{1, 7}, {1, 7}, {1, 7}});
  ASSERT_TRUE(scores.ok());
  EXPECT_EQ(scores->positions.size(), 6u);
  EXPECT_EQ(scores->logits_hash, 0xCDu);
  EXPECT_EQ(seen_.hash_state, "xx") << "the state behind the second window";

  continues_hashes_ = false;  // an older server
  scores = Score({{1, 7}, {1, 7}});
  ASSERT_TRUE(scores.ok());
  EXPECT_EQ(scores->positions.size(), 4u);
  EXPECT_EQ(scores->logits_hash, std::nullopt);
  EXPECT_EQ(seen_.hash_state, std::nullopt);

  const absl::Status other = Score({{1, 7, 9}}).status();
  EXPECT_THAT(std::string(other.message()), HasSubstr("does not score all ids"));
}

}  // namespace
}  // namespace lime::cli
