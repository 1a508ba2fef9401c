// Each fault has its sentence; certificates are judged by any clock; what is said before keys are
// shown is bounded.
#include "proto/diagnosis/diagnosis.h"

#include <cerrno>
#include <string>

#include "coordinator/cluster/key_maker.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/base/release.h"
#include "proto/convert/convert.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::time_t kNow = 1'800'000'000, kDay = 86400;
const Validity kUsual = {kNow - kDay, kNow + 100 * kDay};

ClusterKeys KeysOf(const MadeKeys& authority, const std::string& name, const Validity& validity = kUsual) {
  const absl::StatusOr<MadeKeys> made = MakeDeviceKeys(authority, name, validity);
  EXPECT_TRUE(made.ok()) << made.status();
  return {.authority = authority.certificate, .certificate = made->certificate, .key = made->key};
}

class DiagnosisTest : public ::testing::Test {
 protected:
  // What a device of these keys shows.
  Probed Shows(const ClusterKeys& keys, Probed::Verdict verdict) const {
    return {.answer = Probed::Answer::kTls,
            .peer = Probed::Peer{.certificate = *ReadCertificate(keys.certificate),
                                 .pem = keys.certificate,
                                 .trust = Judge(ours_.keys.authority, keys.certificate, kNow)},
            .verdict = verdict,
            .now = kNow};
  }
  void ExpectSentence(const Probed& probed, Fault fault, const std::string& sentence) const {
    const Diagnosis diagnosis = Diagnose(ours_, probed);
    EXPECT_EQ(NameOf(diagnosis.fault), NameOf(fault));
    EXPECT_EQ(diagnosis.ToStatus(ours_).message(), "device \"b\" at box:7001: " + sentence);
    EXPECT_EQ(DiagnosisOf(diagnosis.ToStatus(ours_)).fault, fault);
  }

  const MadeKeys authority_ = *MakeAuthority({kNow - 30 * kDay, kNow + 1000 * kDay});
  const ProbeTarget ours_ = {.name = "b", .address = "box:7001", .keys = KeysOf(authority_, "coordinator"), .start = "start it"};
  const ProbeTarget plain_ = {.name = "b", .address = "box:7001"};
};

TEST_F(DiagnosisTest, CausesOfAFailedConnectionAreDistinguished) {
  ExpectSentence({.unresolved = "Name or service not known"}, Fault::kUnresolvable,
                 "the name box does not resolve (Name or service not known); correct the address in the cluster's file, or make the name "
                 "known, in /etc/hosts for example");
  ExpectSentence({.connect_error = ECONNREFUSED}, Fault::kNobodyListens, "nobody listens on port 7001; start it");
  ExpectSentence({.connect_error = EHOSTUNREACH}, Fault::kUnreachable,
                 "there is no route to its address (No route to host); check its address, and check that both machines are on one network");
  ExpectSentence(
      {.connect_error = ETIMEDOUT}, Fault::kNoAnswer,
      "nothing answers at its address; check that the machine is on, that its address is right, and that no firewall drops port 7001");
}

TEST_F(DiagnosisTest, AnotherProgramIsNamedByWhatItSays) {
  const std::string remedy = "; correct the address in the cluster's file, or give limed another port";
  const std::string begin = "another program listens on port 7001: ";
  ExpectSentence({.answer = Probed::Answer::kOther, .said = "HTTP/1.1 400 Bad Request\r\nServer: x"}, Fault::kOtherProgram,
                 begin + "it speaks HTTP, as a web server does" + remedy);
  ExpectSentence({.answer = Probed::Answer::kOther, .said = "SSH-2.0-OpenSSH_9.2\r\n"}, Fault::kOtherProgram,
                 begin + "it is an SSH server" + remedy);
  ExpectSentence({.answer = Probed::Answer::kOther, .said = "\x1b[2J220 mail\r\n"}, Fault::kOtherProgram,
                 begin + "it says \"?[2J220 mail\"" + remedy);
  ExpectSentence({.answer = Probed::Answer::kClosed}, Fault::kOtherProgram, begin + "it closes the connection without an answer" + remedy);
  EXPECT_EQ(Diagnose(ours_, {.answer = Probed::Answer::kNothing}).fault, Fault::kSilent);
}

TEST_F(DiagnosisTest, KeysOnOneSideOnlyAreReportedOnBoth) {
  EXPECT_EQ(Diagnose(ours_, {.answer = Probed::Answer::kHttp2}).fault, Fault::kNoKeysThere);
  EXPECT_EQ(Diagnose(plain_, {.answer = Probed::Answer::kHttp2}).fault, Fault::kNone);
  EXPECT_EQ(Diagnose(plain_, {.answer = Probed::Answer::kTls}).fault, Fault::kKeysWanted);
}

TEST_F(DiagnosisTest, KeysOfAnotherClusterAreForeignAlthoughAllAuthoritiesHaveOneName) {
  const MadeKeys other = *MakeAuthority(kUsual);
  ExpectSentence(
      Shows(KeysOf(other, "b"), Probed::Verdict::kRefused), Fault::kForeignKeys,
      "its keys (of \"b\") were made by another authority than the keys here; copy ca.pem, b.pem and b.key there from the folder "
      "where `lime keys` made the keys of this cluster, and start limed again");
  EXPECT_EQ(Diagnose(ours_, Shows(KeysOf(authority_, "b"), Probed::Verdict::kUnknown)).fault, Fault::kOurKeysForeign);
}

TEST_F(DiagnosisTest, AnotherDeviceAtTheAddressIsNamed) {
  ExpectSentence(Shows(KeysOf(authority_, "a"), Probed::Verdict::kAccepted), Fault::kWrongName,
                 "it calls itself \"a\"; correct the address in the cluster's file (if the file also has \"a\", the two addresses may be "
                 "swapped), or start "
                 "limed there with --name b");
}

TEST_F(DiagnosisTest, ExpiredKeysAndClocksThatAreApartAreDistinguished) {
  const ClusterKeys expired = KeysOf(authority_, "b", {kNow - 20 * kDay, kNow - 3 * kDay});
  Probed probed = Shows(expired, Probed::Verdict::kAccepted);
  probed.hello = Hello{.clock = kNow + 1};
  probed.peer->trust_there = Judge(authority_.certificate, expired.certificate, probed.hello->clock);
  ExpectSentence(probed, Fault::kExpired,
                 "its keys expired on 2027-01-12 08:00 UTC; run `lime keys --renew --name b --out FOLDER` on the machine that has ca.key; "
                 "copy the new keys to the device and start limed again");

  const ClusterKeys later = KeysOf(authority_, "b", {kNow + kDay, kNow + 90 * kDay});
  probed = Shows(later, Probed::Verdict::kAccepted);
  EXPECT_EQ(Diagnose(ours_, probed).fault, Fault::kNotYetValid);
  probed.hello = Hello{.clock = kNow + 3 * kDay};
  probed.peer->trust_there = Judge(authority_.certificate, later.certificate, probed.hello->clock);
  ExpectSentence(probed, Fault::kClockApart,
                 "its clock says 2027-01-18 08:00 UTC, 3 days ahead of this machine's, so its keys seem not to be valid yet; set the clock "
                 "that is wrong: `timedatectl set-ntp true` on box, or here");
}

TEST_F(DiagnosisTest, AClockThatRefusesOurKeysIsReportedWithItsDifference) {
  Probed probed = Shows(KeysOf(authority_, "b"), Probed::Verdict::kRefused);
  EXPECT_EQ(Diagnose(ours_, probed).fault, Fault::kOurKeysRefused);
  probed.hello = Hello{.clock = kNow - 3 * kDay};
  ExpectSentence(
      probed, Fault::kClockApart,
      "its clock says 2027-01-12 08:00 UTC, 3 days behind this machine's, so it considers the keys of this machine not valid yet; "
      "set the clock that is wrong: `timedatectl set-ntp true` on box, or here");
  probed.hello = Hello{.clock = kNow + 300 * kDay};
  EXPECT_THAT(Diagnose(ours_, probed).what, AllOf(HasSubstr("300 days ahead of"), HasSubstr("expired")));
}

TEST_F(DiagnosisTest, KeysOfThisMachineThatAreNotValidAreItsOwnFault) {
  ProbeTarget target = ours_;
  target.keys = KeysOf(authority_, "coordinator", {kNow - 20 * kDay, kNow - kDay});
  const Probed probed = Shows(KeysOf(authority_, "b"), Probed::Verdict::kRefused);
  EXPECT_EQ(Diagnose(target, probed).fault, Fault::kOurKeysExpired);
  target.keys = KeysOf(authority_, "coordinator", {kNow + kDay, kNow + 2 * kDay});
  EXPECT_EQ(Diagnose(target, probed).fault, Fault::kOurKeysNotYet);
}

TEST_F(DiagnosisTest, AnotherProtocolNamesBothReleases) {
  const Diagnosis diagnosis = DiagnoseAnswer(ours_, "b", kProtocol + 1, "9.1");
  EXPECT_EQ(diagnosis.fault, Fault::kOtherRelease);
  EXPECT_THAT(diagnosis.what, AllOf(HasSubstr("release 9.1"), HasSubstr(std::string(Release()))));
  EXPECT_TRUE(DiagnoseAnswer(ours_, "b", kProtocol, "9.1").ok()) << "releases of one protocol understand each other";
  EXPECT_EQ(DiagnoseUnknownCall(ours_, Hello{.protocol = 1, .release = "0.0.9"}).fault, Fault::kOtherRelease);
  EXPECT_EQ(DiagnoseUnknownCall(ours_, std::nullopt).fault, Fault::kOtherProgram);
}

TEST_F(DiagnosisTest, FaultsThatWaitingMendsAreRetried) {
  for (const int error : {ECONNREFUSED, EHOSTUNREACH, ETIMEDOUT}) {
    const Diagnosis diagnosis = Diagnose(ours_, {.connect_error = error});
    EXPECT_FALSE(diagnosis.lasts(/*expected=*/false));
    EXPECT_TRUE(absl::IsUnavailable(diagnosis.ToStatus(ours_)));
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(Diagnose(ours_, {.answer = Probed::Answer::kHttp2}).ToStatus(ours_)));
}

TEST_F(DiagnosisTest, ADeviceThatIsExpectedMayCloseConnectionsForAWhile) {
  for (const Probed& probed :
       {Probed{.connect_error = ECONNRESET, .closed = true}, Probed{.answer = Probed::Answer::kClosed, .closed = true},
        Probed{.answer = Probed::Answer::kTls, .closed = true}}) {
    const Diagnosis diagnosis = Diagnose(ours_, probed);
    EXPECT_EQ(diagnosis.fault, Fault::kOtherProgram);
    EXPECT_TRUE(diagnosis.lasts(/*expected=*/false));
    EXPECT_FALSE(diagnosis.lasts(/*expected=*/true));
    EXPECT_TRUE(absl::IsUnavailable(diagnosis.ToStatus(ours_)));
  }
  for (const Probed& probed : {Probed{.answer = Probed::Answer::kOther, .said = "SSH-2.0"}, Probed{.answer = Probed::Answer::kTls}})
    EXPECT_TRUE(Diagnose(ours_, probed).lasts(/*expected=*/true)) << "it has said what it is";
}

// ---- Certificates

TEST_F(DiagnosisTest, NewKeysAreValidFromADayBefore) {
  const Validity validity = ValidityOfNewKeys(kNow);
  const absl::StatusOr<Certificate> read = ReadCertificate(KeysOf(authority_, "orin", validity).certificate);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->name, "orin");
  EXPECT_EQ(read->from, kNow - kDay);
  EXPECT_GT(read->until, kNow + 3600 * kDay);
}

TEST_F(DiagnosisTest, KeysThatDoNotBelongTogetherAreNamedByFile) {
  const ClusterKeys good = KeysOf(authority_, "b");
  EXPECT_TRUE(CheckKeys(good, "keys", "b").ok());
  EXPECT_THAT(CheckKeys(good, "keys", "a").message(), HasSubstr("keys/a.pem does not name a"));
  ClusterKeys bad = good;
  bad.key = ours_.keys.key;
  EXPECT_THAT(CheckKeys(bad, "keys", "b").message(), HasSubstr("keys/b.key is not the private key of b.pem"));
  bad.key = good.key.substr(0, good.key.size() / 2);
  EXPECT_THAT(CheckKeys(bad, "keys", "b").message(), HasSubstr("keys/b.key holds no private key"));
  bad = good;
  bad.authority = MakeAuthority(kUsual)->certificate;
  EXPECT_THAT(CheckKeys(bad, "keys", "b").message(), HasSubstr("keys/b.pem was not made by the authority of ca.pem"));
  bad.authority = "no PEM";
  EXPECT_THAT(CheckKeys(bad, "keys", "b").message(), HasSubstr("keys/ca.pem holds no certificate"));
}

TEST_F(DiagnosisTest, TheEarlierEndOfKeysAndAuthorityCounts) {
  EXPECT_EQ(EndOf(KeysOf(authority_, "b")), kUsual.until);
  EXPECT_EQ(EndOf(KeysOf(authority_, "b", {kNow, kNow + 5000 * kDay})), kNow + 1000 * kDay);
}

TEST(FormatTest, SpansAreWrittenInTheirLargestUnit) {
  EXPECT_EQ(FormatSpan(40), "40 s");
  EXPECT_EQ(FormatSpan(-3 * 3600), "3 hours");
  EXPECT_EQ(FormatSpan(3 * kDay + 5), "3 days");
  EXPECT_EQ(FormatSpan(50LL * 365 * kDay), "50 years");
  EXPECT_EQ(FormatClockApart(0, kNow), "57 years behind this machine's");
}

// ---- Before keys are shown

TEST(HelloTest, AnswersReturnAndAreNoLongerThanQuestions) {
  const HelloNonce nonce = {std::byte{1}, std::byte{2}};
  const Hello hello{.protocol = 2, .keys = true, .clock = kNow, .release = "0.1.0"};
  const std::optional<HelloPacket> answer = AnswerHello(HelloQuestion(nonce), hello);
  ASSERT_TRUE(answer);
  EXPECT_EQ(*ReadHello(*answer, nonce), hello);
  EXPECT_EQ(answer->size(), HelloQuestion(nonce).size());
  EXPECT_FALSE(ReadHello(*answer, HelloNonce{})) << "of another question";
  EXPECT_FALSE(AnswerHello(*answer, hello)) << "two daemons would talk for ever";
}

TEST(HelloTest, AnythingElseIsNotAnswered) {
  HelloPacket question = HelloQuestion({});
  EXPECT_FALSE(AnswerHello(std::span(question).first(63), {}));
  EXPECT_FALSE(AnswerHello({}, {}));
  question[0] = std::byte{'l'};
  EXPECT_FALSE(AnswerHello(question, {}));
  const std::optional<HelloPacket> answer = AnswerHello(HelloQuestion({}), {.release = std::string(100, '\x1b')});
  EXPECT_THAT(ReadHello(*answer, {})->release, AllOf(HasSubstr("????"), Not(HasSubstr("\x1b"))));
}

}  // namespace
}  // namespace lime
