// Connections without sockets, in simulated time.
#include "common/http/connection.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Limits = HttpConnection::Limits;

// Gives `pieces` one by one, then ends if `ends`.
class Pieces final : public BodySource {
 public:
  struct State {
    std::vector<std::string> waiting;
    bool ends = false, deleted = false;
    int pulls = 0;
  };
  explicit Pieces(State& state) : state_(state) {}
  ~Pieces() override { state_.deleted = true; }
  bool Pull(std::string& out) override {
    ++state_.pulls;
    for (const std::string& piece : state_.waiting) out.append(piece);
    state_.waiting.clear();
    return state_.ends;
  }
  void OnSilence(std::string& out) override { out.append("alive"); }

 private:
  State& state_;
};

class HttpConnectionTest : public ::testing::Test, public HttpConnection::Owner {
 protected:
  std::optional<HttpResponse> OnHead(const HttpRequest&) override {
    ++heads_;
    return refuses_;
  }
  void OnRequest(HttpRequest request) override { requests_.push_back(std::move(request)); }
  HttpResponse OnRefusal(const HttpRefusal& refusal, const HttpRequest* request) override {
    refused_ = request == nullptr ? std::nullopt : std::optional(*request);
    return {.status = refusal.status(), .headers = {}, .body = refusal.what};
  }
  void OnEnd(HttpEnd end) override { ends_.push_back(end); }

  HttpConnection& connection() {
    if (!connection_) connection_.emplace(limits_, HttpConnection::Ends{.local = "127.0.0.1", .remote = "127.0.0.2"}, *this, now_);
    return *connection_;
  }
  void Receive(std::string_view bytes) { connection().OnBytes(bytes, now_); }
  // Sends all that is there, and returns it.
  std::string Sent() {
    std::string sent;
    for (std::string bytes(connection().ToWrite()); !bytes.empty(); bytes = std::string(connection().ToWrite())) {
      sent += bytes;
      connection().OnWritten(bytes.size(), now_);
    }
    return sent;
  }
  // Time passes, with a call at each deadline, as a server does it.
  void Pass(absl::Duration time) {
    const absl::Time until = now_ + time;
    while (connection().deadline() <= until) {
      now_ = std::max(now_, connection().deadline());
      connection().OnTime(now_);
    }
    now_ = until;
  }
  void Answer(std::string body) { connection().Send({.status = 200, .headers = {}, .body = std::move(body)}, now_); }
  void StreamFrom(Pieces::State& state, absl::Duration silence = absl::Seconds(10)) {
    connection().Stream({.status = 200, .headers = {{"Content-Type", "text/event-stream"}}, .body = {}}, silence,
                        std::make_unique<Pieces>(state), now_);
  }

  Limits limits_;
  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  std::optional<HttpConnection> connection_;
  std::optional<HttpResponse> refuses_;
  std::optional<HttpRequest> refused_;
  std::vector<HttpRequest> requests_;
  std::vector<HttpEnd> ends_;
  int heads_ = 0;
};

constexpr std::string_view kGet = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";

TEST_F(HttpConnectionTest, ARequestGetsItsAnswer) {
  Receive(kGet);
  ASSERT_EQ(requests_.size(), 1u);
  EXPECT_EQ(requests_[0].local_address, "127.0.0.1");
  EXPECT_EQ(requests_[0].remote_address, "127.0.0.2");
  Answer("hello");
  EXPECT_THAT(ends_, IsEmpty());
  EXPECT_EQ(Sent(), "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nDate: Tue, 14 Nov 2023 22:13:20 GMT\r\n\r\nhello");
  EXPECT_THAT(ends_, ElementsAre(HttpEnd::kSent));
  EXPECT_FALSE(connection().closed() || connection().wants_shutdown());
  EXPECT_EQ(heads_, 0);  // no body follows
}

TEST_F(HttpConnectionTest, PipelinedRequestsAreAnsweredInOrder) {
  std::string many;
  for (int i = 0; i < 20; ++i) absl::StrAppend(&many, "\r\nPOST /", i, " HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
  Receive(many);
  for (size_t i = 0; i < 20; ++i) {
    ASSERT_EQ(requests_.size(), i + 1);
    EXPECT_EQ(requests_[i].path, absl::StrCat("/", i));
    EXPECT_EQ(requests_[i].body, "abc");
    Answer(absl::StrCat("answer ", i));
    EXPECT_THAT(Sent(), EndsWith(absl::StrCat("\r\n\r\nanswer ", i)));
  }
  EXPECT_EQ(ends_.size(), 20u);
}

TEST_F(HttpConnectionTest, BytesBehindARequestAreBounded) {
  limits_.read_ahead = 1000;
  Receive(kGet);
  EXPECT_TRUE(connection().wants_bytes());
  Receive(std::string(1000, 'x'));
  EXPECT_FALSE(connection().wants_bytes());
}

TEST_F(HttpConnectionTest, TheEndOfAClientIsLookedForWhileItIsNotRead) {
  limits_.read_ahead = std::ssize(kGet);
  EXPECT_FALSE(connection().wants_look());
  Receive(kGet);
  EXPECT_FALSE(connection().wants_look()) << "a read sees it";
  Receive(kGet);
  EXPECT_TRUE(connection().wants_look());
  Answer("first");
  EXPECT_FALSE(connection().wants_look()) << "nothing computes any more";
  Sent();
  ASSERT_EQ(requests_.size(), 2u);
  EXPECT_FALSE(connection().wants_look());
  Receive(kGet);
  EXPECT_TRUE(connection().wants_look());
  connection().OnEof(now_);
  EXPECT_FALSE(connection().wants_look());
  EXPECT_THAT(ends_, ElementsAre(HttpEnd::kSent, HttpEnd::kGone));
}

TEST_F(HttpConnectionTest, HeadGetsTheHeadersOfTheGet) {
  Receive("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(requests_.at(0).method, "GET");
  Answer("hello");
  EXPECT_THAT(Sent(), AllOf(HasSubstr("Content-Length: 5\r\n"), EndsWith("\r\n\r\n")));
  Receive("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
  Pieces::State state{.waiting = {"data"}};
  StreamFrom(state);
  EXPECT_THAT(Sent(), AllOf(HasSubstr("Transfer-Encoding: chunked\r\n"), EndsWith("\r\n\r\n")));
  EXPECT_TRUE(state.deleted);
  EXPECT_THAT(ends_, ElementsAre(HttpEnd::kSent, HttpEnd::kSent));
}

TEST_F(HttpConnectionTest, AnswersWithoutBodyHaveNoLength) {
  Receive(kGet);
  connection().Send({.status = 304, .headers = {}, .body = "x"}, now_);
  EXPECT_THAT(Sent(), AllOf(StartsWith("HTTP/1.1 304 Not Modified\r\n"), Not(HasSubstr("Content-Length")), EndsWith("\r\n\r\n")));
}

TEST_F(HttpConnectionTest, AHeaderCannotBecomeTwo) {
  Receive(kGet);
  connection().Send({.status = 200, .headers = {{"X", "a\r\nEvil: b"}}, .body = ""}, now_);
  EXPECT_THAT(Sent(), HasSubstr("X: a  Evil: b\r\n"));
}

TEST_F(HttpConnectionTest, ExpectContinueIsAnsweredBeforeTheBody) {
  Receive("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(Sent(), "HTTP/1.1 100 Continue\r\n\r\n");
  Receive("ab");
  Answer("done");
  EXPECT_THAT(Sent(), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST_F(HttpConnectionTest, TheOwnerRefusesABodyBeforeItComes) {
  refuses_ = HttpResponse{.status = 401, .headers = {}, .body = "no"};
  Receive("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_THAT(Sent(), AllOf(StartsWith("HTTP/1.1 401 Unauthorized\r\n"), HasSubstr("Connection: close\r\n"), EndsWith("no")));
  EXPECT_TRUE(connection().wants_shutdown());
  EXPECT_TRUE(connection().wants_bytes());  // and drops them
  Receive(std::string(100000, 'x'));
  EXPECT_THAT(requests_, IsEmpty());
  EXPECT_FALSE(connection().closed());
  Pass(absl::Seconds(2));
  EXPECT_TRUE(connection().closed());
  EXPECT_THAT(ends_, IsEmpty());
}

TEST_F(HttpConnectionTest, AClosedConnectionWaitsForTheClientToClose) {
  Receive("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  Answer("x");
  EXPECT_FALSE(connection().wants_shutdown());
  EXPECT_THAT(Sent(), HasSubstr("Connection: close\r\n"));
  EXPECT_TRUE(connection().wants_shutdown());
  connection().OnEof(now_);
  EXPECT_TRUE(connection().closed());
}

TEST_F(HttpConnectionTest, TheOwnerSeesTheHeadOfARequestThatIsRefused) {
  for (const char* body : {"Content-Length: 20000000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\nFFFFFFF\r\n"}) {
    connection_.reset();
    Receive(absl::StrCat("POST /path HTTP/1.1\r\nHost: a\r\nX-Request-Id: b\r\n", body));
    EXPECT_THAT(Sent(), StartsWith("HTTP/1.1 413 "));
    ASSERT_TRUE(refused_);
    EXPECT_EQ(refused_->path, "/path");
    EXPECT_EQ(refused_->header("x-request-id"), "b");
    EXPECT_EQ(refused_->remote_address, "127.0.0.2");
    refused_.reset();
  }
  connection_.reset();
  Receive("GET / HTTP/1.1\r\n\r\n");
  EXPECT_THAT(Sent(), StartsWith("HTTP/1.1 400 "));
  EXPECT_FALSE(refused_);
}

TEST_F(HttpConnectionTest, AMalformedRequestIsAnsweredAndClosed) {
  Receive("nonsense\r\n\r\n");
  EXPECT_THAT(Sent(), AllOf(StartsWith("HTTP/1.1 400 Bad Request\r\n"), HasSubstr("Connection: close\r\n")));
  Receive(kGet);
  EXPECT_THAT(requests_, IsEmpty());
}

// ---- Streams

TEST_F(HttpConnectionTest, AStreamIsSentInChunksAsItCanBeTaken) {
  Receive(kGet);
  Pieces::State state{.waiting = {"one"}};
  StreamFrom(state);
  EXPECT_THAT(Sent(),
              AllOf(HasSubstr("Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"), EndsWith("\r\n\r\n3\r\none\r\n")));
  state.waiting = {"two"};
  connection().Wake(now_);
  const std::string sending(connection().ToWrite());
  EXPECT_EQ(sending, "3\r\ntwo\r\n");
  // The socket does not take it yet: what comes meanwhile waits in the source, and goes out together.
  const int pulls = state.pulls;
  for (int i = 0; i < 1000; ++i) {
    state.waiting.push_back("three");
    connection().Wake(now_);
  }
  connection().OnWritten(4, now_);
  EXPECT_EQ(state.pulls, pulls);
  EXPECT_EQ(std::string(connection().ToWrite()), sending.substr(4));
  state.ends = true;
  connection().OnWritten(sending.size() - 4, now_);
  EXPECT_EQ(state.pulls, pulls + 1);
  EXPECT_THAT(Sent(), AllOf(StartsWith("1388\r\nthreethree"), EndsWith("three\r\n0\r\n\r\n")));
  EXPECT_THAT(ends_, ElementsAre(HttpEnd::kSent));
  EXPECT_TRUE(state.deleted);
  Receive(kGet);  // on the same connection
  EXPECT_EQ(requests_.size(), 2u);
}

TEST_F(HttpConnectionTest, AStreamToHttp10EndsWithTheConnection) {
  Receive("GET / HTTP/1.0\r\nHost: a\r\n\r\n");
  Pieces::State state{.waiting = {"one", "two"}, .ends = true};
  StreamFrom(state);
  EXPECT_THAT(Sent(), AllOf(HasSubstr("Connection: close\r\n"), Not(HasSubstr("chunked")), EndsWith("\r\n\r\nonetwo")));
  EXPECT_TRUE(connection().wants_shutdown());
}

TEST_F(HttpConnectionTest, ASilentStreamShowsSignsOfLife) {
  Receive(kGet);
  Pieces::State state;
  StreamFrom(state, absl::Milliseconds(2500));
  EXPECT_THAT(Sent(), EndsWith("\r\n\r\n"));
  Pass(absl::Milliseconds(2499));
  EXPECT_EQ(Sent(), "");
  Pass(absl::Milliseconds(1));
  EXPECT_EQ(Sent(), "5\r\nalive\r\n");
  Pass(absl::Milliseconds(2000));
  state.waiting = {"data"};
  connection().Wake(now_);
  EXPECT_EQ(Sent(), "4\r\ndata\r\n");
  Pass(absl::Milliseconds(2000));
  EXPECT_EQ(Sent(), "");
}

TEST_F(HttpConnectionTest, AnAbortedStreamHasNoEnd) {
  Receive(kGet);
  Pieces::State state{.waiting = {"one"}};
  StreamFrom(state);
  connection().Abort(now_);
  EXPECT_TRUE(connection().closed());
  EXPECT_THAT(ends_, ElementsAre(HttpEnd::kAborted));
  EXPECT_TRUE(state.deleted);
}

TEST_F(HttpConnectionTest, AStreamThatNobodyWakesGoesOnUntilItsSourceHasNothing) {
  for (const bool ends : {false, true}) {
    SCOPED_TRACE(ends);
    Receive(kGet);
    Pieces::State state{.waiting = {"one"}};
    StreamFrom(state);
    state.waiting = {"two"};
    state.ends = ends;
    connection().Drop(now_);  // "one" is not sent yet
    EXPECT_THAT(Sent(), EndsWith(ends ? "3\r\ntwo\r\n0\r\n\r\n" : "3\r\ntwo\r\n"));
    EXPECT_EQ(ends_.back(), ends ? HttpEnd::kSent : HttpEnd::kAborted);
    EXPECT_EQ(connection().closed(), !ends);
    connection_.reset();
  }
}

TEST_F(HttpConnectionTest, AForgottenRequestIsAnsweredWith500) {
  Receive(kGet);
  connection().Drop(now_);
  EXPECT_THAT(Sent(), StartsWith("HTTP/1.1 500 "));
  EXPECT_THAT(ends_, ElementsAre(HttpEnd::kSent));
}

// ---- Answers that take time

TEST_F(HttpConnectionTest, AQuickAnswerIsPlain) {
  Receive(kGet);
  connection().Delay({.status = 200, .headers = {{"A", "early"}}, .body = {}}, absl::Seconds(10), nullptr, now_);
  Pass(absl::Seconds(9));
  connection().Send({.status = 429, .headers = {{"A", "late"}}, .body = "{}"}, now_);
  EXPECT_THAT(Sent(), AllOf(StartsWith("HTTP/1.1 429 "), HasSubstr("A: late\r\nContent-Length: 2\r\n"), EndsWith("{}")));
}

TEST_F(HttpConnectionTest, ASlowAnswerHasBlanksAheadOfIt) {
  Receive(kGet);
  int heads = 0;
  connection().Delay(
      {.status = 200, .headers = {{"A", "early"}}, .body = {}}, absl::Seconds(10), [&heads] { ++heads; }, now_);
  Pass(absl::Seconds(9));
  EXPECT_EQ(heads, 0);
  Pass(absl::Seconds(1));
  EXPECT_EQ(heads, 1);
  EXPECT_THAT(Sent(), AllOf(StartsWith("HTTP/1.1 200 OK\r\nA: early\r\nTransfer-Encoding: chunked\r\n"), EndsWith("\r\n\r\n1\r\n \r\n")));
  Pass(absl::Seconds(20));
  EXPECT_EQ(Sent(), "1\r\n \r\n");  // nothing is added while the socket has some
  Pass(absl::Seconds(10));
  EXPECT_EQ(Sent(), "1\r\n \r\n");
  connection().Send({.status = 500, .headers = {{"A", "late"}}, .body = "{}"}, now_);
  EXPECT_EQ(Sent(), "2\r\n{}\r\n0\r\n\r\n");
  EXPECT_THAT(ends_, ElementsAre(HttpEnd::kSent));
}

TEST_F(HttpConnectionTest, ASlowAnswerToHttp10HasBlanksToo) {
  Receive("GET / HTTP/1.0\r\nHost: a\r\n\r\n");
  connection().Delay({.status = 200, .headers = {}, .body = {}}, absl::Seconds(10), nullptr, now_);
  Pass(absl::Seconds(10));
  EXPECT_THAT(Sent(), EndsWith("\r\n\r\n "));
  Answer("{}");
  EXPECT_EQ(Sent(), "{}");
  EXPECT_TRUE(connection().wants_shutdown());
}

// ---- Clients that leave or are slow

TEST_F(HttpConnectionTest, AClientThatLeavesEndsItsRequest) {
  Receive(kGet);
  connection().OnEof(now_);
  EXPECT_THAT(ends_, ElementsAre(HttpEnd::kGone));
  EXPECT_TRUE(connection().closed());
}

TEST_F(HttpConnectionTest, AClientThatLeavesEndsItsStream) {
  Receive(kGet);
  Pieces::State state;
  StreamFrom(state);
  connection().OnReset(now_);
  EXPECT_THAT(ends_, ElementsAre(HttpEnd::kGone));
  EXPECT_TRUE(state.deleted);
}

TEST_F(HttpConnectionTest, AClientMayCloseItsSideBeforeItTakesACompleteAnswer) {
  Receive(kGet);
  Answer("hello");
  connection().OnEof(now_);
  EXPECT_FALSE(connection().closed());
  EXPECT_THAT(Sent(), EndsWith("hello"));
  EXPECT_THAT(ends_, ElementsAre(HttpEnd::kSent));
  EXPECT_TRUE(connection().closed());
}

TEST_F(HttpConnectionTest, AClientThatTakesNothingIsCutOff) {
  Receive(kGet);
  Answer(std::string(100, 'x'));
  Pass(absl::Seconds(59));
  (void)connection().ToWrite();
  connection().OnWritten(1, now_);
  Pass(absl::Seconds(59));
  EXPECT_THAT(ends_, IsEmpty());
  Pass(absl::Seconds(1));
  EXPECT_THAT(ends_, ElementsAre(HttpEnd::kStalled));
  EXPECT_TRUE(connection().closed() && connection().abortive());
}

TEST_F(HttpConnectionTest, SlowHeadersAreCutOff) {
  for (int i = 0; i < 20; ++i) {
    Receive(kGet.substr(static_cast<size_t>(i), 1));
    Pass(absl::Milliseconds(499));
  }
  EXPECT_EQ(Sent(), "");
  Pass(absl::Milliseconds(20));
  EXPECT_THAT(Sent(), StartsWith("HTTP/1.1 408 Request Timeout\r\n"));
  Pass(absl::Seconds(2));
  EXPECT_TRUE(connection().closed());
}

TEST_F(HttpConnectionTest, ABodyHasToKeepItsRate) {
  Receive("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
  for (int i = 0; i < 30; ++i) {  // a thousand bytes a second are enough
    Pass(absl::Seconds(1));
    Receive(std::string(i == 0 ? 2000 : 1000, 'x'));
  }
  EXPECT_EQ(Sent(), "");
  for (int i = 0; i < 20; ++i) {
    Pass(absl::Seconds(1));
    Receive(std::string(500, 'x'));
  }
  EXPECT_THAT(Sent(), StartsWith("HTTP/1.1 408 "));
}

TEST_F(HttpConnectionTest, AnIdleConnectionIsClosedWithoutWords) {
  Receive(kGet);
  Answer("x");
  Sent();
  Pass(absl::Seconds(74));
  EXPECT_FALSE(connection().closed());
  Pass(absl::Seconds(1));
  EXPECT_TRUE(connection().closed());
  EXPECT_EQ(Sent(), "");
}

TEST_F(HttpConnectionTest, TimeDoesNotEndARequestThatIsAnswered) {
  Receive(kGet);
  EXPECT_EQ(connection().deadline(), absl::InfiniteFuture());
}

// ---- The end of the server

TEST_F(HttpConnectionTest, ARetiredConnectionTakesNoFurtherRequest) {
  Receive(absl::StrCat(std::string(kGet), std::string(kGet)));
  connection().Retire(now_);
  Answer("last");
  EXPECT_THAT(Sent(), AllOf(HasSubstr("Connection: close\r\n"), EndsWith("last")));
  EXPECT_EQ(requests_.size(), 1u);
  EXPECT_TRUE(connection().wants_shutdown());
}

TEST_F(HttpConnectionTest, AnIdleConnectionRetiresAtOnce) {
  connection().Retire(now_);
  EXPECT_TRUE(connection().closed());
}

TEST_F(HttpConnectionTest, AStoppedConnectionEndsItsRequest) {
  Receive(kGet);
  connection().Stop();
  EXPECT_THAT(ends_, ElementsAre(HttpEnd::kStopped));
}

}  // namespace
}  // namespace lime
