// The server over a model that computes in this process: chats, streams and choices have the text
// that a session gives for the same seed.
#include <memory>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/model_files.h"
#include "coordinator/cli/model_weights.h"
#include "coordinator/cli/served_model_files.h"
#include "coordinator/server/answer_service.h"
#include "coordinator/server/api_server.h"
#include "coordinator/sessions/cluster_plan.h"
#include "coordinator/sessions/opened_model.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/common/http/http_client.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using nlohmann::json;

const std::string kModel = LIME_SOURCE_DIR "/models/lime-fables";

class ServeLocalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    flags_.model.model = kModel;
    flags_.model.context = 256;
    flags_.model.threads = 1;
    server_ = *ApiServer::Listen({.http = {}, .places = {}, .keys = {}, .random = [this] { return ++bits_ << 11; }, .log = [](auto) {}});
    auto files = cli::ModelFiles::Open(kModel);
    ASSERT_TRUE(files.ok()) << files.status();
    auto weights = cli::LookAtWeights(kModel);
    ASSERT_TRUE(weights.ok()) << weights.status();
    auto model = cli::OpenServedModel(*weights, *files, {});
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    auto opened = cli::OpenedModel::Open({.flags = flags_, .spec = files->spec, .parallel = 3, .progress = nullptr});
    ASSERT_TRUE(opened.ok()) << opened.status();
    opened_ = *std::move(opened);
    model_->SetPlan(opened_->context(), opened_->numerics_ids());
    plan_.Set({.plan = opened_->devices().plan(), .numerics_id = opened_->numerics_ids().front(), .step_ms = {1}});
    opened_->devices().UseVocabulary(model_->vocabulary());
    Serving::Options serving = opened_->HowToServe(nullptr);
    serving.vocabulary = model_->vocabulary();
    serving.queue.most_waiting = 64;
    serving_ = std::make_unique<Serving>(opened_->devices(), std::move(serving));
    service_ = std::make_unique<AnswerService>(AnswerService::Options{.model = *model_,
                                                                      .serving = *serving_,
                                                                      .plan = plan_,
                                                                      .observer = server_->observer(),
                                                                      .random = [this] { return ++bits_ << 11; },
                                                                      .on_failure = nullptr});
    server_->Open(*service_);
  }
  void TearDown() override {
    server_->Stop(absl::InfinitePast());
    service_.reset();
    serving_.reset();
  }

  HttpClient::Answer Post(std::string_view path, const json& body) const {
    HttpClient client(server_->port());
    const std::string text = body.dump();
    client.Send(absl::StrCat("POST ", std::string(path),
                             " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ", text.size(), "\r\n\r\n",
                             text));
    return client.ReadAnswer();
  }
  static json Chat(int tokens) {
    return {{"messages", {{{"role", "user"}, {"content", "Once upon a time, there was a little"}}}},
            {"max_tokens", tokens},
            {"temperature", 0.9},
            {"seed", 11},
            {"ignore_eos", true}};
  }
  // The texts of `lime run` with these prompts.
  std::vector<cli::Generated> Run(const std::vector<std::string>& prompts, int64_t tokens) const {
    const auto files = cli::ModelFiles::Open(kModel);
    cli::ModelFlags flags = flags_.model;
    const auto session = cli::LocalSession::Open(flags, {.context = 256, .sequences = static_cast<int32_t>(prompts.size())});
    EXPECT_TRUE(session.ok()) << session.status();
    std::vector<std::vector<int32_t>> ids;
    ids.reserve(prompts.size());
    for (const std::string& prompt : prompts) ids.push_back(*files->EncodePrompt(prompt));
    cli::GenerateOptions options;
    options.sampling.temperature = 0.9;
    options.sampling.seed = 11;
    options.max_new_tokens = {tokens};
    options.hash_logits = true;
    const auto summary = (*session)->Generate(*files->tokenizer, ids, options);
    EXPECT_TRUE(summary.ok()) << summary.status();
    return summary->results;
  }

  uint64_t bits_ = 0;
  cli::PlacingFlags flags_;
  std::unique_ptr<ServedModel> model_;
  std::unique_ptr<cli::OpenedModel> opened_;
  PlanInUse plan_;
  std::unique_ptr<ApiServer> server_;
  std::unique_ptr<Serving> serving_;
  std::unique_ptr<AnswerService> service_;
};

TEST_F(ServeLocalTest, ThePlanReservesTheMemoryOfMasks) {
  const auto files = cli::ModelFiles::Open(kModel);
  const auto opened = cli::OpenedModel::Open({.flags = flags_, .spec = files->spec, .progress = nullptr, .masks = 512 * kMiB});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_GE((*opened)->devices().plan().devices[0].memory.runtime, 512 * kMiB);
}

// The plan chooses the device with the head, so each of them reserves it.
TEST(ServedPlanTest, DevicesOfAClusterReserveTheMemoryOfMasks) {
  const TempDir dir;
  dir.Write("c.toml", "[cluster]\nname = \"c\"\n[[device]]\nname = \"a\"\naddress = \"127.0.0.1:1\"\nmemory = \"1GiB\"\n");
  dir.Write("c.profiles.json", R"({"devices": [{"name": "a", "memory": "1GiB", "runtime_bytes": 10000000,
                                   "read_bytes_per_second": 1e10, "flops": 1e11}]})");
  cli::ClusterSession::Options options{.cluster = dir / "c.toml", .model = kModel};
  options.context = 256;
  const auto runtime = [&] {
    const absl::StatusOr<PlanInputs> inputs = cli::InputsOf(options, {}, {});
    EXPECT_TRUE(inputs.ok()) << inputs.status();
    return inputs.ok() ? inputs->devices.at(0).runtime : 0;
  };
  const Bytes before = runtime();
  options.beside = 30 * kMiB;
  EXPECT_EQ(runtime(), before + 30 * kMiB);
}

TEST_F(ServeLocalTest, AChatHasTheTextAndTheBitsOfARun) {
  const std::string prompt = "Once upon a time, there was a little";
  const cli::Generated run = Run({prompt}, 40).front();
  json body = Chat(40);
  body["hash_logits"] = true;
  const json answer = json::parse(Post("/v1/chat/completions", body).body);
  EXPECT_EQ(answer["choices"][0]["message"]["content"], run.text);
  EXPECT_EQ(answer["choices"][0]["logits_xxh3"], absl::StrCat(absl::Hex(run.logits_hash, absl::kZeroPad16)));
  EXPECT_EQ(answer["usage"]["prompt_tokens"], run.prompt_tokens);
}

TEST_F(ServeLocalTest, AStreamHasTheTextOfAWholeAnswer) {
  const json answer = json::parse(Post("/v1/chat/completions", Chat(60)).body);
  json body = Chat(60);
  body["stream"] = true;
  const std::string stream = Post("/v1/chat/completions", body).body;
  std::string text;
  for (size_t at = stream.find("data: {"); at != std::string::npos; at = stream.find("data: {", at + 1)) {
    const json chunk = json::parse(stream.substr(at + 6, stream.find('\n', at) - at - 6));
    for (const json& choice : chunk["choices"]) text += choice["delta"].value("content", "");
  }
  EXPECT_EQ(text, answer["choices"][0]["message"]["content"]);
}

TEST_F(ServeLocalTest, ChoicesAreThePromptsOfARun) {
  const std::string prompt = "Once upon a time, there was a little";
  const std::vector<cli::Generated> run = Run({prompt, prompt, prompt}, 20);
  json body = Chat(20);
  body["n"] = 3;
  const json answer = json::parse(Post("/v1/chat/completions", body).body);
  ASSERT_EQ(answer["choices"].size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(answer["choices"][i]["message"]["content"], run[i].text) << i;
}

TEST_F(ServeLocalTest, AnAnswerIsTheSameInCompany) {
  const json alone = json::parse(Post("/v1/chat/completions", Chat(40)).body);
  std::vector<std::unique_ptr<HttpClient>> others;
  for (int i = 0; i < 4; ++i) {
    json body = Chat(30 + i);
    body["seed"] = i;
    const std::string text = body.dump();
    others.push_back(std::make_unique<HttpClient>(server_->port()));
    others.back()->Send(absl::StrCat("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n",
                                     "Content-Length: ", text.size(), "\r\n\r\n", text));
  }
  const json among = json::parse(Post("/v1/chat/completions", Chat(40)).body);
  EXPECT_EQ(among["choices"][0]["message"]["content"], alone["choices"][0]["message"]["content"]);
  for (const auto& other : others) EXPECT_EQ(other->ReadAnswer().status, 200);
}

TEST_F(ServeLocalTest, EchoScoresAPrompt) {
  const json answer =
      json::parse(Post("/v1/completions", {{"prompt", "Once upon a time"}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 2}}).body);
  const json& logprobs = answer["choices"][0]["logprobs"];
  ASSERT_TRUE(logprobs.is_object()) << answer;
  EXPECT_EQ(logprobs["tokens"].size(), answer["usage"]["prompt_tokens"].get<size_t>());
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_LT(logprobs["token_logprobs"][1].get<double>(), 0);
}

}  // namespace
}  // namespace lime
