// Most faults between coordinator and device, provoked with real daemons or sockets of loopback.
// Each has its own name, sentence and remedy in `lime doctor --json`, `lime devices --json` and the
// commands that need the device.

#include <sys/mount.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/cluster/key_maker.h"
#include "daemon/rpc/device_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/base/release.h"
#include "proto/grpc_log.h"
#include "tests/cases.h"
#include "tests/daemon/rpc/fake_cluster.h"
#include "tests/integration/programs/lime_process.h"
#include "tests/integration/programs/limed_process.h"
#include "tests/integration/programs/raw_listener.h"
#include "tests/skips.h"

namespace lime {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::time_t kDay = 86400;
const std::string kModel = LIME_SOURCE_DIR "/models/lime-fables";

class DoctorTest : public ::testing::Test {
 protected:
  // Keys of `names` in a folder of the test's.
  std::string MakeKeys(const std::string& folder, const std::vector<std::string>& names, const MadeKeys& authority,
                       const Validity& validity = ValidityOfNewKeys(std::time(nullptr))) const {
    std::filesystem::create_directories(dir_ / folder);
    WriteKey(folder, "ca", authority);
    for (const std::string& name : names) WriteKey(folder, name, *MakeDeviceKeys(authority, name, validity));
    return dir_ / folder;
  }
  void WriteKey(const std::string& folder, const std::string& name, const MadeKeys& keys) const {
    for (const auto& [ending, text] : {std::pair(".pem", keys.certificate), std::pair(".key", keys.key)}) {
      const std::string file = absl::StrCat(folder, "/", name, ending);
      dir_.Write(file, text);
      std::filesystem::permissions(dir_ / file, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    }
  }
  // cluster.toml of devices and where they should be; `keys` empty: none.
  void WriteCluster(const std::vector<std::pair<std::string, std::string>>& devices, const std::string& keys = "") const {
    std::string text = keys.empty() ? "" : absl::StrCat("[cluster]\ntls = \"", keys, "\"\n");
    for (const auto& [name, address] : devices)
      absl::StrAppend(&text, "[[device]]\nname = \"", name, "\"\naddress = \"", address, "\"\nweights = \"", kModel, "\"\n");
    dir_.Write("c.toml", text);
  }
  static std::string At(int port) { return absl::StrCat("127.0.0.1:", port); }

  std::string path() const { return dir_ / "c.toml"; }

  // What `lime doctor` and `lime devices` say of the device: one fault, `what` and `remedy` as
  // given, everywhere the same.
  void ExpectFault(const std::string& device, const std::string& fault, const std::string& what, const std::string& remedy) const {
    const Answer doctor = Call({"doctor", "--cluster", path(), "--json", "--insecure"});
    EXPECT_EQ(doctor.exit_code, 1) << doctor.err;
    const nlohmann::json row = RowOf(doctor.Json(), device, "reachability");
    EXPECT_EQ(row.value("result", ""), "fail") << doctor.out;
    EXPECT_EQ(row.value("fault", ""), fault) << doctor.out;
    EXPECT_THAT(row.value("what", ""), HasSubstr(what));
    EXPECT_THAT(row.value("remedy", ""), HasSubstr(remedy));
    EXPECT_THAT(doctor.err, Not(HasSubstr(".cc:"))) << "gRPC's own words";

    const Answer devices = Call({"devices", "--cluster", path(), "--json", "--insecure"});
    EXPECT_EQ(devices.exit_code, 1);
    const nlohmann::json seen = devices.Json();  // the loop walks in it
    int found = 0;
    for (const nlohmann::json& each : seen["devices"]) {
      if (each["name"] != device) continue;
      ++found;
      EXPECT_EQ(each.value("fault", ""), fault) << each;
      EXPECT_THAT(each.value("problem", ""), AllOf(HasSubstr(absl::StrCat("device \"", device, "\" at ")), HasSubstr(what)));
    }
    EXPECT_EQ(found, 1) << devices.out;
    EXPECT_THAT(devices.err, Not(HasSubstr(".cc:")));
  }
  static nlohmann::json RowOf(const nlohmann::json& doctor, const std::string& of, const std::string& check) {
    for (const nlohmann::json& row : doctor.value("checks", nlohmann::json::array())) {
      if (row["of"] == of && row["check"] == check) return row;
    }
    return nlohmann::json::object();
  }

  TempDir dir_;
  const MadeKeys authority_ = *MakeAuthority(ValidityOfNewKeys(std::time(nullptr)));
};

TEST_F(DoctorTest, ADeviceInOrderPassesAllChecks) {
  const std::string keys = MakeKeys("keys", {"a", "coordinator"}, authority_);
  const Limed a("a", {.more = {"--tls", keys, "--memory", "600MiB"}});
  WriteCluster({{"a", At(a.port())}}, keys);
  const Answer doctor = Call({"doctor", "--cluster", path(), "--json"});
  EXPECT_EQ(doctor.exit_code, 0) << doctor.err << doctor.out;
  for (const char* check : {"reachability", "release", "clock", "keys", "weights", "memory"})
    EXPECT_EQ(RowOf(doctor.Json(), "a", check).value("result", ""), "ok") << check << doctor.out;
  const nlohmann::json disk = RowOf(doctor.Json(), "a", "disk of the weights");
  // "67.98 GiB free; 3.09 GB/s, ...". No regular expression of GoogleTest: Oniguruma has a regcomp
  // of its own.
  const std::string what = disk.value("what", "");
  const size_t free_ends = what.find(" free; ");
  ASSERT_NE(free_ends, std::string::npos) << what;
  double rate = 0;
  char unit[8] = {};
  ASSERT_EQ(std::sscanf(what.c_str() + free_ends, " free; %lf %4s", &rate, unit), 2) << what;
  EXPECT_GT(rate, 0) << what;
  EXPECT_THAT(std::string(unit), AnyOf("GB/s", "MB/s")) << what;
  EXPECT_THAT(RowOf(doctor.Json(), "a", "keys").value("what", ""), HasSubstr("valid until"));

  const Answer table = Call({"doctor", "--cluster", path()});
  EXPECT_EQ(table.exit_code, 0);
  EXPECT_THAT(table.out, AllOf(HasSubstr("reachability"), HasSubstr("answers at")));
  const Answer devices = Call({"devices", "--cluster", path(), "--json"});
  EXPECT_EQ(devices.exit_code, 0) << devices.err;
  EXPECT_EQ(devices.Json()["devices"][0]["release"], Release());
}

// ---- Nothing there, or something else

TEST_F(DoctorTest, NobodyListensAndOnlyThenLimeUpStartsIt) {
  int port = 0;
  {
    const SilentPort gone;
    port = gone.port();
  }
  WriteCluster({{"b", At(port)}});
  ExpectFault("b", "nobody_listens", absl::StrCat("nobody listens on port ", port),
              absl::StrCat("`lime up --cluster ", path(), "` starts it"));
}

TEST_F(DoctorTest, AHostThatDoesNotResolveIsNamed) {
  WriteCluster({{"b", "no-such-host.invalid:7001"}});
  ExpectFault("b", "unresolvable", "the name no-such-host.invalid does not resolve", "correct the address");
}

TEST_F(DoctorTest, AMachineThatDoesNotAnswerIsNoneThatRefuses) {
  SilentPort full(0);
  full.FillUp();
  WriteCluster({{"b", At(full.port())}});
  ExpectFault("b", "no_answer", "nothing answers at its address", "check that the machine is on");
}

TEST_F(DoctorTest, ADaemonThatIsStoppedIsSilent) {
  const Limed b("b");
  b.Signal(SIGSTOP);
  WriteCluster({{"b", At(b.port())}});
  ExpectFault("b", "silent", "but does not answer", "limed is stopped or stuck");
}

TEST_F(DoctorTest, OtherProgramsAreNamed) {
  const Babbler http("HTTP/1.1 400 Bad Request\r\n\r\n"), ssh("SSH-2.0-OpenSSH_9.2p1\r\n"), mute("");
  const std::string begin = "another program listens on port ", remedy = "give limed another port";
  const std::string keys = MakeKeys("keys", {"coordinator"}, authority_);
  for (const std::string& tls : {std::string(), keys}) {
    WriteCluster({{"b", At(http.port())}}, tls);
    ExpectFault("b", "other_program", absl::StrCat(begin, http.port(), ": it speaks HTTP"), remedy);
    WriteCluster({{"b", At(ssh.port())}}, tls);
    ExpectFault("b", "other_program", absl::StrCat(begin, ssh.port(), ": it is an SSH server"), remedy);
    WriteCluster({{"b", At(mute.port())}}, tls);
    ExpectFault("b", "other_program", absl::StrCat(begin, mute.port(), ": it closes the connection"), remedy);
  }
}

// ---- Keys

TEST_F(DoctorTest, KeysOnOneSideOnly) {
  const std::string keys = MakeKeys("keys", {"b", "coordinator"}, authority_);
  const Limed plain("b"), locked("b", {.more = {"--tls", keys}});
  WriteCluster({{"b", At(plain.port())}}, keys);
  ExpectFault("b", "no_keys_there", "it runs without keys", "--tls FOLDER");
  WriteCluster({{"b", At(locked.port())}});
  ExpectFault("b", "keys_wanted", "it asks for keys", "add tls = \"FOLDER\"");
}

TEST_F(DoctorTest, KeysOfAnotherCluster) {
  const MadeKeys other = *MakeAuthority(ValidityOfNewKeys(std::time(nullptr)));
  const std::string ours = MakeKeys("ours", {"coordinator"}, authority_), theirs = MakeKeys("theirs", {"b"}, other);
  const Limed b("b", {.more = {"--tls", theirs}});
  WriteCluster({{"b", At(b.port())}}, ours);
  ExpectFault("b", "foreign_keys", "made by another authority", "copy ca.pem, b.pem and b.key there");
  EXPECT_THAT(b.log(), Not(HasSubstr("gRPC"))) << "at level info it is silent";
}

TEST_F(DoctorTest, KeysThatAreNotOfTheAuthorityBesideThemAreRefusedBeforeAnybodyIsAsked) {
  // Its certificate is of our authority, the authority that it trusts is another.
  const MadeKeys other = *MakeAuthority(ValidityOfNewKeys(std::time(nullptr)));
  const std::string ours = MakeKeys("ours", {"coordinator", "b"}, authority_);
  const Limed known("b", {.more = {"--tls", ours}});
  const std::string odd = MakeKeys("odd", {"coordinator"}, authority_);
  WriteKey("odd", "coordinator", *MakeDeviceKeys(other, "coordinator", ValidityOfNewKeys(std::time(nullptr))));
  WriteCluster({{"b", At(known.port())}}, odd);
  const Answer answer = Call({"devices", "--cluster", path()});  // told before anybody is asked
  ExpectRefused(answer, 2, "coordinator.pem was not made by the authority of ca.pem");
}

TEST_F(DoctorTest, AddressesThatAreChangedRound) {
  const std::string keys = MakeKeys("keys", {"a", "b", "coordinator"}, authority_);
  const std::string remedy = "may be swapped";
  for (const bool with_keys : {false, true}) {
    const std::vector<std::string> more = with_keys ? std::vector<std::string>{"--tls", keys} : std::vector<std::string>();
    const Limed a("a", {.more = more}), b("b", {.more = more});
    WriteCluster({{"a", At(b.port())}, {"b", At(a.port())}}, with_keys ? keys : "");
    ExpectFault("a", "wrong_name", "it calls itself \"b\"", remedy);
    ExpectFault("b", "wrong_name", "it calls itself \"a\"", remedy);
  }
}

TEST_F(DoctorTest, KeysThatHaveExpiredOrWill) {
  const std::time_t now = std::time(nullptr);
  const std::string keys = MakeKeys("keys", {"coordinator"}, authority_);
  WriteKey("keys", "b", *MakeDeviceKeys(authority_, "b", {now - 9 * kDay, now - 2 * kDay}));
  WriteKey("keys", "c", *MakeDeviceKeys(authority_, "c", {now - 9 * kDay, now + 12 * kDay}));
  const Limed b("b", {.more = {"--tls", keys}}), c("c", {.more = {"--tls", keys}});
  EXPECT_TRUE(b.AwaitLog("its keys expired on")) << b.log();
  EXPECT_TRUE(c.AwaitLog("its keys expire in 12 days")) << c.log();
  WriteCluster({{"b", At(b.port())}, {"c", At(c.port())}}, keys);
  ExpectFault("b", "expired", "its keys expired on", "`lime keys --renew --name b");
  const nlohmann::json row = RowOf(Call({"doctor", "--cluster", path(), "--json"}).Json(), "c", "keys");
  EXPECT_EQ(row.value("result", ""), "warn");
  EXPECT_THAT(row.value("what", ""), HasSubstr("its keys expire in 12 days"));
  EXPECT_THAT(Call({"devices", "--cluster", path()}).out, HasSubstr("the keys of device \"c\" expire in 12 days"));

  const std::string old = MakeKeys("old", {"coordinator"}, authority_, {now - 9 * kDay, now - 2 * kDay});
  WriteCluster({{"c", At(c.port())}}, old);
  ExpectFault("c", "our_keys_expired", "the keys of this machine expired on", "`lime keys --renew --name coordinator");
}

TEST_F(DoctorTest, ARunWarnsOnceOfKeysThatWillExpire) {
  const std::time_t now = std::time(nullptr);
  const std::string keys = MakeKeys("keys", {"a", "coordinator"}, authority_);
  WriteKey("keys", "a", *MakeDeviceKeys(authority_, "a", {now - kDay, now + 5 * kDay}));
  const Limed a("a", {.more = {"--tls", keys}});
  WriteCluster({{"a", At(a.port())}}, keys);
  ASSERT_EQ(Call({"profile", "--cluster", path(), "--model", kModel, "--seconds", "0.2", "--link-seconds", "0.1"}).exit_code, 0);
  const Answer run = Call({"run", "--cluster", path(), "--model", kModel, "--prompt", "Once", "--max-tokens", "2", "--json"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const std::string words = "the keys of device \"a\" expire in 5 days";
  EXPECT_THAT(run.err, HasSubstr(words));
  EXPECT_EQ(run.err.find(words), run.err.rfind(words));
}

TEST_F(DoctorTest, AStoresDiskIsComparedWithWhatIsStillToBePushed) {
  const Limed a("a", {.more = {"--store", dir_ / "store", "--memory", "1GiB"}});
  dir_.Write("c.toml", absl::StrCat("[[device]]\nname = \"a\"\naddress = \"", At(a.port()), "\"\nstore = \"", dir_ / "store", "\"\n"));
  const auto disk = [&] {
    return RowOf(Call({"doctor", "--cluster", path(), "--model", kModel, "--json"}).Json(), "a", "disk of the store").value("what", "");
  };
  EXPECT_THAT(disk(), HasSubstr("; the whole model needs "));  // nothing is measured: no plan says which part
  ASSERT_EQ(Call({"push", "--cluster", path(), "--model", kModel, "--all"}).exit_code, 0);
  EXPECT_THAT(disk(), Not(HasSubstr("needs")));
}

TEST_F(DoctorTest, BrokenKeysAreTheFaultOfTheirFile) {
  const std::string keys = MakeKeys("keys", {"b", "coordinator"}, authority_);
  const Limed b("b", {.more = {"--tls", keys}});
  WriteCluster({{"b", At(b.port())}}, keys);
  std::filesystem::copy_file(keys + "/b.key", keys + "/coordinator.key", std::filesystem::copy_options::overwrite_existing);
  const Answer doctor = Call({"doctor", "--cluster", path(), "--json"});
  EXPECT_EQ(doctor.exit_code, 1);
  EXPECT_THAT(RowOf(doctor.Json(), "this machine", "cluster file").value("what", ""),
              HasSubstr("coordinator.key is not the private key of coordinator.pem"));
  std::filesystem::remove_all(keys);
  ExpectRefused(Call({"devices", "--cluster", path()}), 2,
                "ca.pem is not there; `lime keys --cluster " + path() + " --out " + keys + "` makes the keys of this cluster");
}

// ---- Clocks and releases

constexpr char kNoShiftedClock[] = "a sanitizer's runtime is the first library of a program, and has a clock of its own";

TEST_F(DoctorTest, ClocksThatAreApart) {
  if (kSanitized) GTEST_SKIP() << kNoShiftedClock;
  const std::time_t now = std::time(nullptr);
  const std::string keys = MakeKeys("keys", {"b", "coordinator"}, authority_, {now - kDay, now + 2 * kDay});
  const std::string remedy = "`timedatectl set-ntp true` on 127.0.0.1, or here";
  {
    const Limed b("b", {.more = {"--tls", keys}, .clock_shift = -3 * kDay});
    WriteCluster({{"b", At(b.port())}}, keys);
    ExpectFault("b", "clock_apart", "3 days behind this machine's, so it considers the keys of this machine not valid yet", remedy);
  }
  {
    const Limed b("b", {.more = {"--tls", keys}, .clock_shift = 4 * kDay});
    WriteCluster({{"b", At(b.port())}}, keys);
    ExpectFault("b", "clock_apart", "4 days ahead of this machine's, so it considers the keys of this machine expired", remedy);
  }
  // Within what the keys allow for it is told, and everything works.
  const Limed b("b", {.more = {"--tls", keys}, .clock_shift = -3 * 3600});
  WriteCluster({{"b", At(b.port())}}, keys);
  const Answer doctor = Call({"doctor", "--cluster", path(), "--json"});
  EXPECT_EQ(doctor.exit_code, 0) << doctor.out;
  EXPECT_EQ(RowOf(doctor.Json(), "b", "clock").value("result", ""), "warn");
  EXPECT_THAT(RowOf(doctor.Json(), "b", "clock").value("what", ""), HasSubstr("3 hours behind this machine's"));
}

TEST_F(DoctorTest, AClockOfThisMachineThatIsBehind) {
  if (kSanitized) GTEST_SKIP() << kNoShiftedClock;
  const std::string keys = MakeKeys("keys", {"b", "coordinator"}, authority_);
  const Limed b("b", {.more = {"--tls", keys}});
  WriteCluster({{"b", At(b.port())}}, keys);
  setenv("LD_PRELOAD", LIME_SHIFTED_CLOCK, 1);
  setenv("LIME_TEST_CLOCK_SHIFT", absl::StrCat(-5 * kDay).c_str(), 1);
  ExpectFault("b", "our_keys_not_yet_valid", "but this machine's clock says", "set the clock of this machine");
  unsetenv("LD_PRELOAD");
  unsetenv("LIME_TEST_CLOCK_SHIFT");
}

TEST_F(DoctorTest, AnotherProtocolAndAnotherRelease) {
  DeviceServer::Options old = FakeDevice("b");
  old.health.protocol = kProtocol - 1, old.health.release = "0.0.9";
  const auto server = DeviceServer::Start(old);
  ASSERT_TRUE(server.ok()) << server.status();
  WriteCluster({{"b", At((*server)->port())}});
  ExpectFault("b", "other_release",
              absl::StrCat("it runs release 0.0.9 (protocol ", kProtocol - 1, "), but this program is release ", std::string(Release()),
                           " (protocol ", kProtocol, ")"),
              "install one release on every machine");

  DeviceServer::Options near = FakeDevice("b");
  near.health.release = "0.0.9";
  const auto works = DeviceServer::Start(near);
  WriteCluster({{"b", At((*works)->port())}});
  const Answer devices = Call({"devices", "--cluster", path()});
  EXPECT_EQ(devices.exit_code, 0) << devices.err;
  EXPECT_THAT(devices.out, HasSubstr("limed there has release 0.0.9, but lime here has release"));
}

TEST_F(DoctorTest, AnotherServerOfGrpc) {
  int port = 0;
  const auto server = StartOtherServer(port);
  WriteCluster({{"b", At(port)}});
  ExpectFault("b", "other_program", "it speaks gRPC, but it is not a limed of this release", "correct the address");
}

// ---- limed's own side

TEST_F(DoctorTest, LimedSaysWhyItCannotListen) {
  const auto refused = [](const std::string& listen, std::vector<std::string> more, const std::string& words, const std::string& remedy) {
    more.insert(more.end(), {"--name", "b", "--listen", listen});
    const Answer answer = CallProgram(LIMED_BINARY, more);
    EXPECT_NE(answer.exit_code, 0);
    EXPECT_THAT(answer.err, AllOf(HasSubstr(words), HasSubstr(remedy)));
    EXPECT_EQ(std::ranges::count(answer.err, '\n'), 1) << answer.err;
  };
  const SilentPort busy;
  refused(At(busy.port()), {}, absl::StrCat("cannot listen on ", At(busy.port()), ": another program listens on port ", busy.port()),
          "choose another port");
  refused("203.0.113.9:7001", {"--insecure"}, "cannot listen on 203.0.113.9:7001: this machine does not have the address 203.0.113.9",
          "ssh = \"USER@HOST\"");
  refused("no-such-host.invalid:7001", {"--insecure"}, "the name no-such-host.invalid does not resolve", "give an address of this machine");

  const std::string keys = MakeKeys("keys", {"b", "coordinator"}, authority_);
  std::filesystem::copy_file(keys + "/coordinator.key", keys + "/b.key", std::filesystem::copy_options::overwrite_existing);
  refused("127.0.0.1:0", {"--tls", keys}, "b.key is not the private key of b.pem", "`lime keys --renew --name b`");
}

TEST_F(DoctorTest, LimedPrintsItsRelease) {
  const Answer answer = CallProgram(LIMED_BINARY, {"--version"});
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_EQ(answer.out, absl::StrCat("limed ", std::string(Release()), ", protocol ", kProtocol, "\n"));
  EXPECT_EQ(Call({"--version"}).out, absl::StrCat("lime ", std::string(Release()), ", protocol ", kProtocol, "\n"));
}

TEST_F(DoctorTest, AnAnswerThatDoesNotReachStdoutIsNone) {
  for (const char* program : {LIME_BINARY, LIMED_BINARY})
    for (const char* flag : {"--help", "--version"})
      EXPECT_EQ(WEXITSTATUS(std::system(absl::StrCat(program, " ", flag, " >/dev/full 2>/dev/null").c_str())), 1) << program << flag;
}

TEST_F(DoctorTest, LimedLogsWhatGrpcSaysAtDebugOnly) {
  const MadeKeys other = *MakeAuthority(ValidityOfNewKeys(std::time(nullptr)));
  const std::string ours = MakeKeys("ours", {"coordinator"}, authority_), theirs = MakeKeys("theirs", {"b"}, other);
  const Limed b("b", {.more = {"--tls", theirs, "--log", "debug"}});
  WriteCluster({{"b", At(b.port())}}, ours);
  EXPECT_EQ(Call({"devices", "--cluster", path()}).exit_code, 1);
  EXPECT_TRUE(b.AwaitLog("gRPC: ")) << b.log();
}

// ---- lime keys

TEST_F(DoctorTest, KeysAreAddedAndRenewedWithoutTouchingTheOthers) {
  const std::string out = dir_ / "made";
  const Answer made = Call({"keys", "--name", "box", "--out", out});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("keys for box and coordinator made in"));
  const std::string box = Slurp(out + "/box.pem"), ca = Slurp(out + "/ca.pem");

  const Answer added = Call({"keys", "--name", "orin", "--name", "box", "--out", out});
  EXPECT_THAT(added.out, AllOf(HasSubstr("keys for orin made in"), HasSubstr("box has keys already, valid until")));
  EXPECT_EQ(Slurp(out + "/box.pem"), box);

  const std::string orin = Slurp(out + "/orin.pem");
  const Answer renewed = Call({"keys", "--renew", "--name", "orin", "--out", out, "--json"});
  ASSERT_EQ(renewed.exit_code, 0) << renewed.err;
  EXPECT_EQ(renewed.Json()["keys"].size(), 1u);
  EXPECT_EQ(renewed.Json()["keys"][0]["name"], "orin");
  EXPECT_NE(Slurp(out + "/orin.pem"), orin);
  EXPECT_EQ(Slurp(out + "/box.pem"), box);
  EXPECT_EQ(Slurp(out + "/ca.pem"), ca);
  for (const char* file : {"/orin.key", "/box.key", "/ca.key"}) {
    EXPECT_EQ(std::filesystem::status(out + file).permissions() & (std::filesystem::perms::group_all | std::filesystem::perms::others_all),
              std::filesystem::perms::none)
        << file;
  }
}

TEST_F(DoctorTest, KeysOfOthersAreNotReplaced) {
  const std::string out = MakeKeys("made", {"box"}, authority_);
  const MadeKeys other = *MakeAuthority(ValidityOfNewKeys(std::time(nullptr)));
  WriteKey("made", "box", *MakeDeviceKeys(other, "box", ValidityOfNewKeys(std::time(nullptr))));
  const std::string box = Slurp(out + "/box.pem");
  ExpectRefused(Call({"keys", "--renew", "--name", "box", "--out", out}), 2, "was not made by the authority of");
  EXPECT_EQ(Slurp(out + "/box.pem"), box);
  WriteKey("made", "box", *MakeDeviceKeys(authority_, "box", ValidityOfNewKeys(std::time(nullptr))));
  dir_.Write("made/box.key", "my own");
  ExpectRefused(Call({"keys", "--renew", "--name", "box", "--out", out}), 2, "are not the keys of box; move them away");
  EXPECT_EQ(Slurp(out + "/box.key"), "my own");
  std::filesystem::remove(out + "/ca.key");
  ExpectRefused(Call({"keys", "--name", "nx", "--out", out}), 2, "ca.key is not there");
}

TEST_F(DoctorTest, KeysGoOnlyWhereNothingElseIsAndTogetherOrNotAtAll) {
  const auto files = [](const std::string& folder) { return std::distance(std::filesystem::directory_iterator(folder), {}); };
  const std::string out = dir_ / "new";
  std::filesystem::create_directory(out);
  dir_.Write("new/a.key", "my own");
  ExpectRefused(Call({"keys", "--renew", "--name", "a", "--out", out}), 2, "a.key is there without");
  dir_.Write("new/a.pem", "my notes");
  ExpectRefused(Call({"keys", "--name", "a", "--out", out}), 2, "was not made by the authority of");
  dir_.Write("new/config.json", "{}");
  ExpectRefused(Call({"keys", "--name", "a", "--out", out}), 2, "holds files other than the keys of a cluster (config.json); give");
  EXPECT_EQ(files(out), 3);

  std::filesystem::create_directory(dir_ / "linked");
  std::filesystem::create_symlink("../target.key", dir_ / "linked/a.key");
  EXPECT_EQ(Call({"keys", "--name", "a", "--out", dir_ / "linked"}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(dir_ / "linked/a.key"));
  EXPECT_THAT(Slurp(dir_ / "target.key"), HasSubstr("PRIVATE KEY"));

  std::filesystem::create_directory(dir_ / "full");
  LIME_SKIP_WITHOUT(::mount("tmpfs", (dir_ / "full").c_str(), "tmpfs", 0, "size=4k") == 0, "the right to mount a tmpfs");
  const Answer full = Call({"keys", "--name", "a", "--out", dir_ / "full/keys"});
  EXPECT_EQ(full.exit_code, 1) << full.err;
  EXPECT_EQ(files(dir_ / "full"), 0);
  ::umount((dir_ / "full").c_str());
}

}  // namespace
}  // namespace lime
