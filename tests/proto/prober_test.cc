// A program that closes connections without a word is probed again, since limed does so while it
// ends or starts.
#include "proto/diagnosis/prober.h"

#include <ctime>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "coordinator/cluster/key_maker.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/programs/raw_listener.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

constexpr int kConnections = 2;  // of one look: with keys and without

// Whether the cluster has keys.
class ProberTest : public ::testing::TestWithParam<bool> {
 protected:
  ProbeTarget Target(int port) const {
    ProbeTarget target{.name = "b", .address = absl::StrCat("127.0.0.1:", port)};
    if (!GetParam()) return target;
    const MadeKeys authority = *MakeAuthority(ValidityOfNewKeys(std::time(nullptr)));
    const MadeKeys made = *MakeDeviceKeys(authority, "coordinator", ValidityOfNewKeys(std::time(nullptr)));
    target.keys = {.authority = authority.certificate, .certificate = made.certificate, .key = made.key};
    return target;
  }
};

TEST_P(ProberTest, AProgramThatClosesOneLookAndThenSpeaksIsWhatItSays) {
  const SilentPort port;
  int closed = 0;
  std::thread program([&] {
    closed = CloseNext(port, kConnections);
    const int connection = Accept(port);
    const std::string settings("\0\0\0\x04\0\0\0\0\0", 9);  // how HTTP/2 begins
    (void)send(connection, settings.data(), settings.size(), MSG_NOSIGNAL);
    char byte = 0;
    while (recv(connection, &byte, 1, 0) > 0) {
    }
    close(connection);
  });
  const Diagnosis diagnosis = FindFault(Target(port.port()));
  program.join();
  EXPECT_EQ(closed, kConnections);
  EXPECT_EQ(NameOf(diagnosis.fault), NameOf(GetParam() ? Fault::kNoKeysThere : Fault::kNone)) << diagnosis.what;
}

TEST_P(ProberTest, AProgramThatEndsAfterItsLastConnectionListensNoMore) {
  std::optional<SilentPort> port(std::in_place);
  const ProbeTarget target = Target(port->port());
  std::thread program([&] {
    const int connection = Accept(*port);
    port.reset();
    close(connection);
  });
  const Diagnosis diagnosis = FindFault(target);
  program.join();
  EXPECT_EQ(NameOf(diagnosis.fault), NameOf(Fault::kNobodyListens)) << diagnosis.what;
}

TEST_P(ProberTest, AProgramThatClosesEveryConnectionIsAnotherAfterThreeLooks) {
  const SilentPort port;
  int closed = 0;
  std::thread program([&] { closed = CloseNext(port, 3 * kConnections); });
  const Diagnosis diagnosis = FindFault(Target(port.port()));
  program.join();
  EXPECT_EQ(closed, 3 * kConnections);
  EXPECT_EQ(NameOf(diagnosis.fault), NameOf(Fault::kOtherProgram));
  EXPECT_THAT(diagnosis.what, HasSubstr("it closes the connection without an answer"));
}

INSTANTIATE_TEST_SUITE_P(Keys, ProberTest, ::testing::Bool(), [](const auto& info) { return info.param ? "With" : "Without"; });

}  // namespace
}  // namespace lime
