// A server over real sockets, with a model of bytes and devices that compute nothing.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "coordinator/api/requests/parse_request.h"
#include "coordinator/server/answer_service.h"
#include "coordinator/server/api_server.h"
#include "nlohmann/json.hpp"
#include "tests/common/http/http_client.h"
#include "tests/coordinator/fake_devices.h"
#include "tests/coordinator/generation/made_model.h"

namespace lime {

// Counts what the server reports, and lets a test wait for it.
class CountedReports final : public ServerObserver {
 public:
  void OnAccepted() override { Add(accepted_); }
  void OnRejected(Rejection why) override { Add(rejected_[static_cast<size_t>(why)]); }
  void OnFirstToken(absl::Duration) override { Add(first_tokens_); }
  void OnToken(absl::Duration) override { Add(later_tokens_); }
  void OnAnswer(const SeenAnswer& answer) override {
    const absl::MutexLock lock(&mutex_);
    for (const SeenChoice& choice : answer.choices) {
      if (records_) finishes_.push_back(choice.finish);
    }
    prompt_tokens_ += answer.prompt_tokens;
  }
  void OnExchange(const SeenExchange& exchange) override {
    const absl::MutexLock lock(&mutex_);
    if (records_) exchanges_.push_back(absl::StrCat(std::string(exchange.method), " ", std::string(exchange.route), " ", exchange.status));
  }

  void ForgetAll() { records_ = false; }
  int64_t accepted() const { return Get(accepted_); }
  int64_t rejected(Rejection why) const { return Get(rejected_[static_cast<size_t>(why)]); }
  int64_t first_tokens() const { return Get(first_tokens_); }
  int64_t later_tokens() const { return Get(later_tokens_); }
  void AwaitFirstTokens(int64_t count) const {
    const absl::MutexLock lock(&mutex_);
    const auto are_there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return first_tokens_ >= count; };
    mutex_.Await(absl::Condition(&are_there));
  }
  void AwaitAccepted(int64_t count) const {
    const absl::MutexLock lock(&mutex_);
    const auto are_there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return accepted_ >= count; };
    mutex_.Await(absl::Condition(&are_there));
  }
  // Of the first `count` choices that have ended; waits for them.
  std::vector<GenerationFinish> AwaitFinishes(size_t count) const {
    const absl::MutexLock lock(&mutex_);
    const auto are_there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return finishes_.size() >= count; };
    mutex_.Await(absl::Condition(&are_there));
    return finishes_;
  }
  std::vector<std::string> AwaitExchanges(size_t count) const {
    const absl::MutexLock lock(&mutex_);
    const auto are_there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return exchanges_.size() >= count; };
    mutex_.Await(absl::Condition(&are_there));
    return exchanges_;
  }

 private:
  void Add(int64_t& count) {
    const absl::MutexLock lock(&mutex_);
    ++count;
  }
  int64_t Get(const int64_t& count) const {
    const absl::MutexLock lock(&mutex_);
    return count;
  }

  std::atomic<bool> records_ = true;
  mutable absl::Mutex mutex_;
  int64_t accepted_ = 0, first_tokens_ = 0, later_tokens_ = 0, prompt_tokens_ = 0, rejected_[4] = {};
  std::vector<GenerationFinish> finishes_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> exchanges_ ABSL_GUARDED_BY(mutex_);
};

struct ServedSetting {
  ApiServer::Options api;
  std::string source = MadeTemplate("");  // of the model's chat template
  int32_t slots = 2;
  int64_t queue = 64;
  absl::Duration max_wait = absl::Seconds(600), keep_alive = absl::Seconds(10);
  bool records = true;  // keeps the log, and what is reported of each request
};

class ServedTest : public ::testing::Test {
 protected:
  using Setting = ServedSetting;

  ~ServedTest() override { End(); }

  // Listens, without a model.
  void Listen(Setting setting = {}) {
    setting_ = std::move(setting);
    if (!setting_.records) reports_.ForgetAll();
    setting_.api.observer = &reports_;
    setting_.api.keep_alive = setting_.keep_alive;
    setting_.api.random = CountedBits();
    setting_.api.log = [this](std::string_view line) {
      const absl::MutexLock lock(&log_mutex_);
      if (setting_.records) log_.emplace_back(line);
    };
    auto server = ApiServer::Listen(setting_.api);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void Load() {
    model_ = MadeModel{.source = setting_.source, .context = 256}.Make();
    devices_ = std::make_unique<FakeDevices>(OneStage(setting_.slots));
    plan_.Set({.plan = devices_->plan(), .numerics_id = "cpu-1", .step_ms = {50}});
    Serving::Options serving;
    serving.queue = {.most_waiting = setting_.queue, .most_together = kMaxAllChoices, .most_wait = setting_.max_wait};
    serving.vocabulary = model_->vocabulary();
    serving_ = std::make_unique<Serving>(*devices_, std::move(serving));
    service_ = std::make_unique<AnswerService>(AnswerService::Options{.model = *model_,
                                                                      .serving = *serving_,
                                                                      .plan = plan_,
                                                                      .observer = reports_,
                                                                      .random = CountedBits(),
                                                                      .queue = setting_.queue,
                                                                      .max_wait = setting_.max_wait,
                                                                      .keep_alive = setting_.keep_alive,
                                                                      .on_failure = nullptr});
    server_->Open(*service_);
  }
  void Start(Setting setting = {}) {
    Listen(std::move(setting));
    Load();
  }
  void End() {
    if (server_ != nullptr) server_->Stop(absl::InfinitePast());
    service_.reset();
    serving_.reset();
    server_.reset();
  }

  // ---- Calls
  std::unique_ptr<HttpClient> Client(int receive_buffer_bytes = 0) const {
    HttpClient::Options options;
    options.receive_buffer_bytes = receive_buffer_bytes;
    return std::make_unique<HttpClient>(server_->port(), options);
  }
  static std::string Request(std::string_view method, std::string_view path, std::string_view body = "", std::string_view headers = "") {
    const std::string length = body.empty() ? "" : absl::StrCat("Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n");
    return absl::StrCat(std::string(method), " ", std::string(path), " HTTP/1.1\r\nHost: localhost\r\n", std::string(headers), length,
                        "\r\n", std::string(body));
  }
  HttpClient::Answer Call(std::string_view method, std::string_view path, std::string_view body = "", std::string_view headers = "") const {
    const auto client = Client();
    client->Send(Request(method, path, body, headers));
    return client->ReadAnswer(method != "HEAD");
  }
  // A chat of one message that asks for so many tokens, with more fields of the body.
  static std::string Chat(int tokens, std::string_view fields = "") {
    return absl::StrCat(R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":)", tokens, fields.empty() ? "" : ",",
                        std::string(fields), "}");
  }
  static constexpr std::string_view kChatPath = "/v1/chat/completions";
  static nlohmann::json JsonOf(const HttpClient::Answer& answer) { return nlohmann::json::parse(answer.body, nullptr, false); }
  static std::string CodeOf(const HttpClient::Answer& answer) {
    const nlohmann::json body = JsonOf(answer);
    return body.is_object() && body.contains("error") ? body["error"].value("code", "") : "";
  }
  static std::string ContentOf(const nlohmann::json& answer) { return answer["choices"][0]["message"]["content"]; }
  // The objects of a stream, without [DONE].
  static std::vector<nlohmann::json> EventsOf(std::string_view stream) {
    std::vector<nlohmann::json> events;
    constexpr std::string_view kData = "data: ";
    for (size_t at = stream.find(kData); at != std::string_view::npos; at = stream.find(kData, at + 1)) {
      const std::string_view line = stream.substr(at + kData.size(), stream.find('\n', at) - at - kData.size());
      if (line != "[DONE]") events.push_back(nlohmann::json::parse(line, nullptr, false));
    }
    return events;
  }
  static std::string StreamedContent(std::string_view stream) {
    std::string content;
    for (const nlohmann::json& event : EventsOf(stream)) {
      for (const nlohmann::json& choice : event.value("choices", nlohmann::json::array())) content += choice["delta"].value("content", "");
    }
    return content;
  }
  // Waits for so many lines of the log.
  std::vector<std::string> AwaitLog(size_t count) const {
    const absl::MutexLock lock(&log_mutex_);
    const auto are_there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(log_mutex_) { return log_.size() >= count; };
    log_mutex_.Await(absl::Condition(&are_there));
    return log_;
  }

  Setting setting_;
  CountedReports reports_;
  mutable absl::Mutex log_mutex_;
  std::vector<std::string> log_ ABSL_GUARDED_BY(log_mutex_);
  std::unique_ptr<ServedModel> model_;
  std::unique_ptr<FakeDevices> devices_;
  PlanInUse plan_;
  std::unique_ptr<Serving> serving_;
  std::unique_ptr<AnswerService> service_;
  std::unique_ptr<ApiServer> server_;
};

}  // namespace lime
