// Devices that measure themselves and the ways between them, over real servers on loopback.

#include "coordinator/rpc/cluster_client.h"
#include "coordinator/rpc/device_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/rpc/fake_cluster.h"
#include "tests/daemon/rpc/keep_callback_threads.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

MeasuredDevice Known() {
  MeasuredDevice measured{.runtime = 5 * kMiB, .memory = kGiB, .numerics_id = "fake-1"};
  measured.profile.cpu = "some cpu";
  measured.profile.threads = 2;
  measured.profile.read_bytes_per_second = 1e10;
  return measured;
}

class MeasureRpcTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"a", "b", "c"}) {
      DeviceServer::Options options = FakeDevice(name);
      options.profile = [this](const ProfileCall& call, const std::function<void(const ProfileProgress&)>& say,
                               const std::atomic<bool>& cancelled) -> absl::StatusOr<MeasuredDevice> {
        say({.what = "memory", .share = 0.5});
        while (call.weights == "forever") {
          say({.what = "disk", .share = 0.6});
          if (cancelled) return absl::CancelledError("interrupted");
          absl::SleepFor(absl::Milliseconds(5));
        }
        ++measured_;
        return Known();
      };
      servers_.push_back(*DeviceServer::Start(options));
      clients_.push_back(std::make_unique<DeviceClient>(name, Address(servers_.size() - 1), ClusterKeys{}));
    }
  }
  std::string Address(size_t device) const { return absl::StrCat("127.0.0.1:", servers_[device]->port()); }

  std::atomic<int> measured_ = 0;
  std::vector<std::unique_ptr<DeviceServer>> servers_;
  std::vector<std::unique_ptr<DeviceClient>> clients_;
};

TEST_F(MeasureRpcTest, ADeviceReportsItsMeasurements) {
  std::atomic<int> progress = 0;
  const auto measured = clients_[0]->Profile(
      {.seconds = 0.1}, [&](const ProfileProgress&) { ++progress; }, nullptr);
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_EQ(*measured, Known());
}

TEST_F(MeasureRpcTest, MeasuringEndsWithTheCall) {
  std::atomic<bool> cancelled = false;
  const auto measured = clients_[0]->Profile(
      {.weights = "forever", .seconds = 0.1}, [&](const ProfileProgress&) { cancelled = true; }, &cancelled);
  EXPECT_TRUE(absl::IsCancelled(measured.status())) << measured.status();
  EXPECT_TRUE(clients_[0]->Profile({.seconds = 0.1}, {}, nullptr).ok());  // its thread is free again
  EXPECT_EQ(measured_, 1);
}

TEST_F(MeasureRpcTest, ALinkHasARateAndALatency) {
  const auto link = clients_[0]->ProbeLink({.peer = "b", .address = Address(1), .seconds = 0.2});
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_GT(link->bytes_per_second, 1e6);
  EXPECT_GT(link->latency_ms, 0);
  EXPECT_LT(link->latency_ms, 1000);
}

TEST_F(MeasureRpcTest, NothingIsMeasuredWhereAPlanIs) {
  ClusterClient::Options options;
  for (size_t i = 0; i < 3; ++i) options.devices.push_back({.name = clients_[i]->name(), .address = Address(i)});
  const auto cluster = ClusterClient::Connect(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ASSERT_TRUE((*cluster)->Install(MakeStages({0, 1}, 1, 1), {}).ok());
  const auto measured = clients_[0]->Profile({.seconds = 0.1}, {}, nullptr);
  EXPECT_TRUE(absl::IsFailedPrecondition(measured.status())) << measured.status();
  EXPECT_THAT(std::string(measured.status().message()), HasSubstr("epoch 1 is installed"));
  EXPECT_TRUE(absl::IsFailedPrecondition(clients_[0]->ProbeLink({.peer = "c", .address = Address(2)}).status()));  // who asks
  EXPECT_TRUE(absl::IsFailedPrecondition(clients_[2]->ProbeLink({.peer = "b", .address = Address(1)}).status()));  // who is asked
  EXPECT_EQ(clients_[0]->Health(absl::Seconds(5))->model, "small");
  EXPECT_TRUE((*cluster)->Unload().ok());
  EXPECT_TRUE(clients_[0]->Profile({.seconds = 0.1}, {}, nullptr).ok());
}

TEST_F(MeasureRpcTest, ADeviceThatIsAnotherIsRefused) {
  const DeviceClient wrong("b", Address(0), {});
  EXPECT_THAT(std::string(wrong.Health(absl::Seconds(5)).status().message()), HasSubstr("calls itself \"a\""));
}

}  // namespace
}  // namespace lime
