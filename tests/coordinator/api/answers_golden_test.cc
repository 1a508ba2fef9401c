// The bytes of answers and streams of every endpoint as golden files: tests/golden/api_*.txt, to be
// read in review. "----" stands between two writes.
//
// To write them anew: api_tests --files=answers_golden_test.cc --update_golden, then read the
// difference as you would read code.
#include <gtest/gtest.h>

#include "coordinator/api/answers/server_answers.h"
#include "tests/coordinator/api/answer_scenes.h"
#include "tests/coordinator/api/parse.h"
#include "tests/coordinator/golden.h"

namespace lime {
namespace {

std::vector<ChoiceEvent> TwoCalls() {
  return {ReasoningPiece{"Weather? "},
          ReasoningPiece{"Call."},
          ContentPiece{"I look."},
          CallBegin{"call_1", "weather"},
          CallArguments{"{\"city\":"},
          CallArguments{"\"Köln\"}"},
          CallEnd{},
          CallBegin{"call_2", "time"},
          CallArguments{"{}"},
          CallEnd{}};
}

const ApiError kLost = ClusterUnavailable("mini");

ApiRequest ChatRequest(std::string_view fields) {
  return Parsed(Endpoint::kChat,
                absl::StrCat(R"({"messages":[{"role":"user","content":"hi"}],)", absl::string_view(fields.data(), fields.size()), "}"));
}

Scene ChatScene(std::string_view fields) {
  return Scene(Endpoint::kChat, ChatRequest(fields), SmallHead("chatcmpl-1"));
}

TEST(AnswersGoldenTest, Chat) {
  Golden golden("api_chat.txt");
  golden.Add("An answer, after a blank as a sign of life.",
             ChatScene(R"("n":1)").KeepAlive().Say(0, {ContentPiece{"Hello"}, ContentPiece{" you."}, ChoiceEnd{}}).Finish().text());
  golden.Add("Thinking, text and calls.",
             ChatScene(R"("n":1)").Say(0, TwoCalls()).Say(0, {ChoiceEnd{AnswerFinish::kToolCalls}}).Finish().text());
  golden.Add(
      "Calls alone.",
      ChatScene(R"("n":1)").Say(0, {CallBegin{"call_1", "f"}, CallArguments{"{}"}, ChoiceEnd{AnswerFinish::kToolCalls}}).Finish().text());
  golden.Add("Two choices with log-probabilities, hashes and ids.",
             ChatScene(R"("n":2,"logprobs":true,"top_logprobs":2,"hash_logits":true,"return_token_ids":true)")
                 .Say(1, {ContentPiece{"B"}, Score("B", -0.5), TokenId{66}, ChoiceEnd{AnswerFinish::kLength, 255}})
                 .Say(0, {ContentPiece{"A"}, Score("A", -0.25), TokenId{65}, TokenId{2}, ChoiceEnd{AnswerFinish::kStop, 1}})
                 .Finish()
                 .text());
  golden.Add("A failure after the status went out.", ChatScene(R"("n":1)").KeepAlive().Say(0, {ContentPiece{"Hel"}}).Fail(kLost).text());
  golden.Expect();
}

TEST(AnswersGoldenTest, ChatStream) {
  Golden golden("api_chat_stream.txt");
  golden.Add("Text, with a sign of life before it. Two pieces waited in the last write.",
             ChatScene(R"("stream":true)")
                 .KeepAlive()
                 .Say(0, {ContentPiece{"Hello"}})
                 .Say(0, {ContentPiece{" you"}, ContentPiece{"."}})
                 .Say(0, {ChoiceEnd{}})
                 .Finish()
                 .text());
  golden.Add("A character in two pieces.", ChatScene(R"("stream":true)")
                                               .Say(0, {ContentPiece{"1 \xE2\x82"}})
                                               .Say(0, {ContentPiece{"\xAC"}})
                                               .Say(0, {ContentPiece{"\xE2"}, ChoiceEnd{AnswerFinish::kLength}})
                                               .Finish()
                                               .text());
  golden.Add("Thinking, text and calls.",
             ChatScene(R"("stream":true)").Say(0, TwoCalls()).Say(0, {ChoiceEnd{AnswerFinish::kToolCalls}}).Finish().text());
  golden.Add(
      "Two choices, with the counts, log-probabilities, hashes and ids.",
      ChatScene(R"("stream":true,"stream_options":{"include_usage":true},"n":2,"logprobs":true,"hash_logits":true,"return_token_ids":true)")
          .Say(0, {Score("A", -0.25), TokenId{65}})
          .Say(0, {ContentPiece{"A"}})
          .Say(1, {ContentPiece{"B"}, Score("B", -0.5), TokenId{66}, ChoiceEnd{AnswerFinish::kLength, 255}})
          .Say(0, {Score("C", -1), TokenId{2}, ChoiceEnd{AnswerFinish::kStop, 1}})
          .Finish()
          .text());
  golden.Add("Two choices without the counts.", ChatScene(R"("stream":true,"n":2)")
                                                    .Say(1, {ContentPiece{"B"}, ChoiceEnd{}})
                                                    .Say(0, {ContentPiece{"A"}, ChoiceEnd{}})
                                                    .Finish()
                                                    .text());
  golden.Add("A failure.", ChatScene(R"("stream":true)").Say(0, {ContentPiece{"Hel"}}).Fail(kLost).text());
  golden.Expect();
}

Scene CompletionScene(std::string_view fields, std::vector<int64_t> offsets = {}) {
  AnswerHead head = SmallHead("cmpl-1");
  head.first_offsets = std::move(offsets);
  return Scene(Endpoint::kCompletions,
               Parsed(Endpoint::kCompletions, absl::StrCat("{", absl::string_view(fields.data(), fields.size()), "}")), std::move(head));
}

TEST(AnswersGoldenTest, Completions) {
  Golden golden("api_completions.txt");
  golden.Add("Two prompts.", CompletionScene(R"("prompt":["a","b"])")
                                 .Say(1, {ContentPiece{"B"}, ChoiceEnd{AnswerFinish::kLength}})
                                 .Say(0, {ContentPiece{"A"}, ChoiceEnd{}})
                                 .Finish()
                                 .text());
  golden.Add("Log-probabilities behind a prompt of 3 characters; the token of the euro comes in two.",
             CompletionScene(R"("prompt":"abc","logprobs":2)", {3})
                 .Say(0, {ContentPiece{"x\xE2\x82\xACy"}, Score("x", -0.5), Score("\xE2\x82", -1), Score("\xAC", -0.125), Score("y", -0.5),
                          ChoiceEnd{}})
                 .Finish()
                 .text());
  golden.Add("A prompt that is scored.",
             CompletionScene(R"("prompt":"ab","logprobs":1,"echo":true,"max_tokens":0)")
                 .Say(0, {ContentPiece{"ab"}, TokenScore{.token = "<s>", .is_in_text = false}, Score("a", -0.5),
                          TokenScore{.token = "b", .logprob = -2, .top = {{"c", -0.25}}}, ChoiceEnd{AnswerFinish::kLength}})
                 .Finish()
                 .text());
  golden.Add("A stream with the counts.",
             CompletionScene(R"("prompt":"a","logprobs":0,"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true)")
                 .Say(0, {ContentPiece{"A"}, TokenScore{.token = "A", .logprob = -0.5}, TokenId{65}})
                 .KeepAlive()
                 .Say(0, {ContentPiece{"B"}, TokenScore{.token = "B", .logprob = -INFINITY}, TokenId{66}, ChoiceEnd{AnswerFinish::kLength}})
                 .Finish()
                 .text());
  golden.Add("A stream without.",
             CompletionScene(R"("prompt":"a","stream":true)").Say(0, {ContentPiece{"A"}}).Say(0, {ChoiceEnd{}}).Finish().text());
  golden.Expect();
}

Scene ResponsesScene(std::string_view fields) {
  return Scene(Endpoint::kResponses,
               Parsed(Endpoint::kResponses, absl::StrCat(R"({"input":"hi",)", absl::string_view(fields.data(), fields.size()), "}")),
               SmallHead("resp_1"));
}

TEST(AnswersGoldenTest, Responses) {
  Golden golden("api_responses.txt");
  golden.Add(
      "Thinking, text and calls.",
      ResponsesScene(
          R"("instructions":"Be short.","metadata":{"k":"v"},"temperature":0.5,"tools":[{"type":"function","name":"weather"},{"type":"function","name":"time"}])")
          .Say(0, TwoCalls())
          .Say(0, {ChoiceEnd{AnswerFinish::kToolCalls}})
          .Finish()
          .text());
  golden.Add(
      "Cut, with log-probabilities and a hash.",
      ResponsesScene(R"("max_output_tokens":1,"include":["message.output_text.logprobs"],"hash_logits":true,"return_token_ids":true)")
          .KeepAlive()
          .Say(0, {ContentPiece{"A"}, Score("A", -0.5), TokenId{65}, ChoiceEnd{AnswerFinish::kLength, 255}})
          .Finish()
          .text());
  golden.Add("A failure.", ResponsesScene(R"("store":false)").Say(0, {ContentPiece{"A"}}).Fail(kLost).text());
  golden.Add("A stream.", ResponsesScene(R"("stream":true)")
                              .KeepAlive()
                              .Say(0, {ReasoningPiece{"Hm"}})
                              .Say(0, {ReasoningPiece{"."}, ContentPiece{"He"}})
                              .Say(0, {ContentPiece{"llo"}, ContentPiece{"."}})
                              .Say(0, {CallBegin{"call_1", "f"}, CallArguments{"{\"x\""}})
                              .Say(0, {CallArguments{":1}"}, CallEnd{}})
                              .Say(0, {ChoiceEnd{AnswerFinish::kToolCalls}})
                              .Finish()
                              .text());
  golden.Add("A stream that is cut, with log-probabilities.",
             ResponsesScene(R"("stream":true,"include":["message.output_text.logprobs"],"top_logprobs":1)")
                 .Say(0, {ContentPiece{"A"}, Score("A", -0.5)})
                 .Say(0, {Score("B", -0.5), ChoiceEnd{AnswerFinish::kLength}})
                 .Finish()
                 .text());
  golden.Add("A stream without text.", ResponsesScene(R"("stream":true)").Say(0, {ChoiceEnd{}}).Finish().text());
  golden.Add("A stream that fails.", ResponsesScene(R"("stream":true)").Say(0, {ContentPiece{"A"}}).Fail(kLost).text());
  golden.Expect();
}

Scene OllamaScene(Endpoint endpoint, std::string_view fields) {
  return Scene(endpoint, Parsed(endpoint, fields), SmallHead("ollama-1"));
}

TEST(AnswersGoldenTest, Ollama) {
  constexpr std::string_view kChat = R"({"messages":[{"role":"user","content":"hi"}]})";
  constexpr std::string_view kChatPlain = R"({"messages":[{"role":"user","content":"hi"}],"stream":false})";
  Golden golden("api_ollama.txt");
  golden.Add("A stream of /api/chat.", OllamaScene(Endpoint::kOllamaChat, kChat)
                                           .KeepAlive()
                                           .Say(0, {ContentPiece{"Hel"}})
                                           .Say(0, {ContentPiece{"lo"}, ContentPiece{"."}})
                                           .Say(0, {ChoiceEnd{}})
                                           .Finish()
                                           .text());
  golden.Add("Thinking, text and calls.",
             OllamaScene(Endpoint::kOllamaChat, kChat).Say(0, TwoCalls()).Say(0, {ChoiceEnd{}}).Finish().text());
  golden.Add("Without a stream.", OllamaScene(Endpoint::kOllamaChat, kChatPlain)
                                      .KeepAlive()
                                      .Say(0, TwoCalls())
                                      .Say(0, {ChoiceEnd{AnswerFinish::kLength}})
                                      .Finish()
                                      .text());
  golden.Add("A stream of /api/generate.", OllamaScene(Endpoint::kOllamaGenerate, R"({"prompt":"a"})")
                                               .Say(0, {ReasoningPiece{"Hm."}, ContentPiece{"A"}})
                                               .Say(0, {ChoiceEnd{}})
                                               .Finish()
                                               .text());
  golden.Add("A failure.", OllamaScene(Endpoint::kOllamaChat, kChat).Say(0, {ContentPiece{"Hel"}}).Fail(kLost).text());
  golden.Add("A request that only loads.", OllamaLoadedJson(Endpoint::kOllamaChat, SmallHead("")));
  golden.Expect();
}

TEST(AnswersGoldenTest, Server) {
  const std::vector<ListedModel> models = {{.id = "org/tiny",
                                            .created = 1721986200,
                                            .context = 8192,
                                            .architecture = "llama",
                                            .parameter_size = "1.2B",
                                            .quantization = "BF16",
                                            .digest = "00ff",
                                            .bytes = 2400,
                                            .parameters = 1200,
                                            .chat_template = "{{ x }}",
                                            .has_tools = true,
                                            .has_thinking = true},
                                           {.id = "alias"}};
  const std::vector<int32_t> ids = {1, 2};
  const std::vector<std::string> pieces = {"a", "\xE2\x82"};
  Golden golden("api_server.txt");
  golden.Add("/v1/models", ModelsJson(models));
  golden.Add("/v1/models/org/tiny", ModelJson(models[0]));
  golden.Add("/health", HealthJson("ok", std::nullopt) + "\n" + HealthJson("loading", 0.5));
  golden.Add("/tokenize", TokensJson(ids, std::nullopt, 8192) + "\n" + TokensJson(ids, pieces, 8192));
  golden.Add("/detokenize", DetokenizedJson("a\xE2\x82"));
  golden.Add("/apply-template", PromptJson("<s>\n"));
  golden.Add("/api/version", OllamaVersionJson());
  golden.Add("/api/tags", OllamaTagsJson(models));
  golden.Add("/api/ps", OllamaPsJson({models.data(), 1}));
  golden.Add("/api/show", OllamaShowJson(models[0]));
  golden.Expect();
}

}  // namespace
}  // namespace lime
