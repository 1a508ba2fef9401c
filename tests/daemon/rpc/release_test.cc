// Who uses a device is told, and a person may take a plan off it, over real sockets on loopback.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/rpc/device_client.h"
#include "coordinator/serving/cluster_run.h"
#include "gmock/gmock.h"
#include "tests/daemon/rpc/keep_callback_threads.h"
#include "tests/daemon/rpc/rpc_fixture.h"

namespace lime {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ReleaseTest : public RpcTest {
 protected:
  void SetUp() override {
    for (const std::string name : {"a", "b", "c"}) {
      DeviceServer::Options options = FakeDevice(name);
      options.health.settings = {.listen = "127.0.0.1:0", .threads = 3, .cluster = "shelf", .user = "lime", .process = 7};
      options.plans.log = [this](const std::string& sentence) {
        absl::MutexLock lock(&mutex_);
        log_.push_back(sentence);
      };
      Start(options);
    }
    client_ = Connect();
  }
  void TearDown() override {
    client_.reset();
    servers_.clear();  // they write to the log
  }
  DeviceClient Device(size_t i) const { return {devices_[i].name, devices_[i].address, {}}; }
  DeviceHealth Health(size_t i) const {
    const absl::StatusOr<DeviceHealth> health = Device(i).Health(absl::Seconds(5));
    EXPECT_TRUE(health.ok()) << health.status();
    return *health;
  }
  std::string Log() {
    absl::MutexLock lock(&mutex_);
    return absl::StrJoin(log_, "\n");
  }
  // What two requests answer where `fault` comes with the fifth token.
  absl::Status RunWith(const std::function<void()>& fault) {
    ClusterRun run(*client_, ClusterRun::Survival{.say = [this](const std::string& sentence) { said_ += sentence + "\n"; }});
    EXPECT_TRUE(run.Add({.prompt = Ids(9, 5), .max_new_tokens = 120}, {}).ok());
    return run.Run(
        [&, count = 0](const ClusterRun::Token&) mutable {
          if (++count == 5) fault();
          return true;
        },
        nullptr);
  }

  absl::Mutex mutex_;
  std::vector<std::string> log_;
  std::unique_ptr<ClusterClient> client_;
  std::string said_;
};

TEST_F(ReleaseTest, ADeviceReportsItsUserAndItsSettings) {
  EXPECT_FALSE(Health(0).used_by);
  EXPECT_EQ(Health(0).settings->threads, 3);
  EXPECT_EQ(Health(0).settings->cluster, "shelf");
  ASSERT_TRUE(client_->Install(MakeStages({0, 1}, 1, 1), {}).ok());
  const DeviceHealth used = Health(1);
  ASSERT_TRUE(used.used_by);
  EXPECT_NE(used.used_by->coordinator.user, "");
  EXPECT_THAT(used.used_by->address, HasSubstr("127.0.0.1:"));
  EXPECT_LT(used.used_by->seconds, 60);
  EXPECT_FALSE(Health(2).used_by);
  ASSERT_TRUE(client_->Unload().ok());
  EXPECT_FALSE(Health(1).used_by);
}

TEST_F(ReleaseTest, AnotherCoordinatorHearsWhoUsesTheDevice) {
  ASSERT_TRUE(client_->Install(MakeStages({0, 1}, 1, 1), {}).ok());
  ASSERT_TRUE(client_->Open([](int32_t, const FromDevice&) {}).ok());
  const absl::Time begin = absl::Now();
  const absl::Status refused = Connect()->Install(MakeStages({0, 2}, 1, 1), {});
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_LT(absl::Now() - begin, absl::Seconds(8));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("runs small for "));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("(127.0.0.1:"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("lime unload --force"));
}

TEST_F(ReleaseTest, WhatNobodyUsesIsUnloaded) {
  EXPECT_EQ(Device(0).Release(false)->epoch, -1);
  ASSERT_TRUE(client_->Install(MakeStages({0, 1}, 1, 1), {}).ok());
  const int64_t epoch = client_->plan().epoch;
  absl::StatusOr<ReleasedPlan> released = Device(0).Release(false);
  EXPECT_TRUE(absl::IsFailedPrecondition(released.status())) << "its coordinator may be about to use it";
  for (const absl::Time until = absl::Now() + absl::Seconds(20); !released.ok() && absl::Now() < until;)
    released = Device(0).Release(false);
  ASSERT_TRUE(released.ok()) << released.status();
  EXPECT_EQ(released->epoch, epoch);
  EXPECT_EQ(released->model, "small");
  EXPECT_FALSE(released->used_by);
  EXPECT_EQ(Health(0).epoch, -1);
}

TEST_F(ReleaseTest, APlanInUseStaysUnlessThatIsForced) {
  ASSERT_TRUE(client_->Install(MakeStages({0, 1}, 1, 1), {}).ok());
  absl::Status refused;
  ASSERT_TRUE(RunWith([&] { refused = Device(0).Release(false).status(); }).ok()) << said_;
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("runs small for "));
  EXPECT_EQ(said_, "");
}

// It does not install its plan again, as it would after a fault, whichever device it hears of
// first.
TEST_F(ReleaseTest, ARunWhosePlanIsRevokedEndsAndNamesTheUser) {
  for (const size_t first : {0, 1, 2}) {
    client_ = Connect();
    ASSERT_TRUE(client_->Install(MakeStages({0, 1, 2, 1}, 1, 1), {}).ok());
    const absl::Status ended = RunWith([&] {
      for (const size_t i : {first, (first + 1) % 3, (first + 2) % 3}) {
        const absl::StatusOr<ReleasedPlan> released = Device(i).Release(true);
        EXPECT_TRUE(released.ok()) << released.status();
      }
    });
    EXPECT_EQ(ended.code(), kRevoked) << ended << said_;
    EXPECT_THAT(std::string(ended.message()), HasSubstr("has unloaded the plan with `lime unload --force`"));
    for (const size_t i : {0, 1, 2}) EXPECT_TRUE(BecomesFree(static_cast<int>(i)));
    client_.reset();
  }
  const std::unique_ptr<ClusterClient> another = Connect();
  EXPECT_TRUE(another->Install(MakeStages({0, 1}, 1, 1), {}).ok());  // who comes next is welcome
}

TEST_F(ReleaseTest, TheLogDistinguishesANormalEndFromALostCoordinator) {
  ASSERT_TRUE(client_->Install(MakeStages({0, 1}, 1, 1), {}).ok());
  EXPECT_THAT(Log(), HasSubstr("installs epoch 1: small, for "));
  ASSERT_TRUE(RunWith([] {}).ok());
  ASSERT_TRUE(client_->Unload().ok());
  // The end of the stream of orders, or the call to unload: whichever the device hears of first.
  EXPECT_THAT(Log(), AnyOf(HasSubstr(": the run has ended"), HasSubstr("has unloaded epoch 1")));
  EXPECT_THAT(Log(), Not(HasSubstr("has gone")));
  ASSERT_TRUE(client_->Install(MakeStages({0, 1}, 1, 1), {}).ok());
  ASSERT_TRUE(client_->Open([](int32_t, const FromDevice&) {}).ok());
  client_.reset();
  EXPECT_TRUE(BecomesFree(0));
  EXPECT_THAT(Log(), HasSubstr("the coordinator has gone"));
}

}  // namespace
}  // namespace lime
