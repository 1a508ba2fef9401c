// Answers and streams of made tokens as golden files: tests/golden/generation*.txt. "----" stands
// between two writes; special tokens of the model's answer are written out in the title.
#include <gtest/gtest.h>

#include "coordinator/api/answers/answer_writer.h"
#include "tests/coordinator/generation/made_model.h"
#include "tests/coordinator/golden.h"

namespace lime {
namespace {

// A whole answer: the client takes all after each part.
class WholeAnswer {
 public:
  WholeAnswer(const MadeModel& made, Endpoint endpoint, std::string_view body) : model_(made.Make()) {
    const ApiRequest request = RequestFor(*model_, endpoint, body);
    generation_ = Prepared(*model_, endpoint, request);
    writer_ = MakeAnswerWriter(endpoint, request, HeadOf(*model_, endpoint, request, generation_, 1721986200, CountedBits()));
    reader_ = std::make_unique<AnswerReader>(*model_, generation_, CountedBits(), *writer_);
    tokens_.resize(generation_.requests.size());
    Write();
  }

  WholeAnswer& Say(int64_t choice, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) {
      for (const int32_t id : IdsOf(*model_, part)) {
        if (!reader_->OnToken(choice, tokens_[static_cast<size_t>(choice)].Next(id))) break;
      }
      Write();
    }
    return *this;
  }
  WholeAnswer& Score(int64_t choice, std::string_view text) {
    for (const int32_t id : IdsOf(*model_, text)) reader_->OnToken(choice, tokens_[static_cast<size_t>(choice)].Next(id, /*known=*/true));
    Write();
    return *this;
  }
  WholeAnswer& End(int64_t choice, FinishReason reason = FinishReason::kEndToken) {
    if (reason == FinishReason::kEndToken) reader_->OnToken(choice, tokens_[static_cast<size_t>(choice)].Next(kImEndId));
    const ServingClock::time_point start = ServingClock::time_point() + std::chrono::milliseconds(50);
    reader_->OnEnd(choice, {.reason = reason, .text = {}, .submitted = start, .started = start + std::chrono::milliseconds(20)});
    if (reader_->is_over()) {
      AnswerReport report = reader_->Report();
      report.numerics_id = "cpu-1";
      writer_->Finish(report);
    }
    Write();
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  void Write() {
    std::string out;
    writer_->Write(out);
    if (!text_.empty() && !out.empty()) text_ += "----\n";
    text_ += out;
    if (!out.empty() && out.back() != '\n') text_ += '\n';
  }

  std::unique_ptr<ServedModel> model_;
  Generation generation_;
  std::unique_ptr<AnswerWriter> writer_;
  std::unique_ptr<AnswerReader> reader_;
  std::vector<MadeTokens> tokens_;
  std::string text_;
};

const MadeModel kHermes = {.syntax = ToolSyntax::kHermes};
const std::vector<std::string> kCalls = {"<think>Sum? ",
                                         "Call.</think>",
                                         "I look. ",
                                         "<tool_call>{\"name\": \"add\", ",
                                         "\"arguments\": {\"a\"",
                                         ": 1}}</tool_call>",
                                         "\n<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>"};

std::string ChatBody(std::string_view fields) {
  return absl::StrCat(R"({"messages":[{"role":"user","content":"hi"}],"seed":7)", fields.empty() ? "" : ",", std::string(fields), "}");
}
const std::string kTools =
    R"("tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}}])";

TEST(GenerationGoldenTest, Chat) {
  Golden golden("generation_chat.txt");
  golden.Add("An answer.", WholeAnswer({}, Endpoint::kChat, ChatBody("")).Say(0, {"Hello ", "you."}).End(0).text());
  golden.Add("Thinking, text and calls.", WholeAnswer(kHermes, Endpoint::kChat, ChatBody(kTools)).Say(0, kCalls).End(0).text());
  golden.Add("The same as a stream.",
             WholeAnswer(kHermes, Endpoint::kChat, ChatBody(kTools + R"(,"stream":true)")).Say(0, kCalls).End(0).text());
  golden.Add("Two choices with counts at the end, one of them stopped by a string.",
             WholeAnswer({}, Endpoint::kChat, ChatBody(R"("n":2,"stop":"END","stream":true,"stream_options":{"include_usage":true})"))
                 .Say(0, {"A E", "ND"})
                 .Say(1, {"B EN"})
                 .End(0, FinishReason::kInterrupted)
                 .End(1)
                 .text());
  golden.Add("Log-probabilities, ids and a hash.",
             WholeAnswer({}, Endpoint::kChat,
                         ChatBody(R"("logprobs":true,"top_logprobs":2,"return_token_ids":true,"hash_logits":true,"max_tokens":2)"))
                 .Say(0, {"é"})
                 .End(0, FinishReason::kLength)
                 .text());
  golden.Expect();
}

TEST(GenerationGoldenTest, OtherEndpoints) {
  Golden golden("generation_other.txt");
  golden.Add("A scored prompt.",
             WholeAnswer({}, Endpoint::kCompletions, R"({"prompt":"xy","echo":true,"logprobs":1,"max_tokens":0,"seed":7})")
                 .Score(0, "xy")
                 .End(0, FinishReason::kLength)
                 .text());
  golden.Add("Completions of two prompts, as a stream with log-probabilities.",
             WholeAnswer({}, Endpoint::kCompletions, R"({"prompt":["x","é"],"logprobs":1,"stream":true,"seed":7})")
                 .Say(0, {"a"})
                 .Say(1, {"b"})
                 .End(1)
                 .End(0)
                 .text());
  golden.Add(
      "A response with thinking and a call, as a stream.",
      WholeAnswer(kHermes, Endpoint::kResponses,
                  R"({"input":"hi","stream":true,"seed":7,"tools":[{"type":"function","name":"add","parameters":{"type":"object"}}]})")
          .Say(0, kCalls)
          .End(0)
          .text());
  golden.Add("Ollama's lines.",
             WholeAnswer({}, Endpoint::kOllamaChat, R"({"messages":[{"role":"user","content":"hi"}],"options":{"seed":7}})")
                 .Say(0, {"<think>So.</think>", "Hello"})
                 .End(0)
                 .text());
  golden.Expect();
}

}  // namespace
}  // namespace lime
