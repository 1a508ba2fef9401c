// Pushing blocks to real servers on loopback: faults of the wire, of the disk, and of who else is
// there.

#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "coordinator/rpc/cluster_client.h"
#include "coordinator/rpc/device_client.h"
#include "coordinator/rpc/push_blocks.h"
#include "daemon/formats/push_units.h"
#include "daemon/stores/pushed_store.h"
#include "lime/v1/bulk.grpc.pb.h"
#include "proto/convert/bulk_convert.h"
#include "tests/daemon/rpc/fake_cluster.h"
#include "tests/daemon/rpc/keep_callback_threads.h"
#include "tests/daemon/weights/block_store_fixture.h"
#include "tests/integration/programs/raw_listener.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

class PushTest : public PreparedTest {
 protected:
  void SetUp() override {
    options_.config.vocab_size = 4000;  // blocks of several chunks
    PreparedTest::SetUp();
    auto source = StoreSource::Open(model_);
    ASSERT_TRUE(source.ok()) << source.status();
    source_ = *std::move(source);
    device_options_ = FakeDevice("a");
    device_options_.bulk.store = dir_.file("pushed");
    Start();
    target_.name = "a";
    target_.address = absl::StrCat("127.0.0.1:", port_);
    target_.blocks = BlocksOf(source_->manifest());
    push_.stream = {.chunk_bytes = 4096, .window_bytes = 64 * kKiB};
  }
  void Start() {
    server_.reset();
    device_options_.listen = port_ == 0 ? "127.0.0.1:0" : absl::StrCat("127.0.0.1:", port_);
    auto server = DeviceServer::Start(device_options_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    port_ = server_->port();
  }
  absl::StatusOr<PushState> Push() { return PushBlocks(*source_, target_, push_); }
  std::string Folder() const { return FindPushed(device_options_.bulk.store, source_->manifest().source_xxh3); }
  void ExpectAllThere() {
    const auto again = Push();
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->sent, 0);
    EXPECT_GE(again->to_look, again->needed);
    const auto part = Checkpoint::OpenPart(Folder());
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_TRUE(part->CheckHolds(target_.blocks).ok());
  }

  DeviceServer::Options device_options_;
  std::unique_ptr<StoreSource> source_;
  std::unique_ptr<DeviceServer> server_;
  int port_ = 0;
  PushTarget target_;
  PushOptions push_;
};

TEST_F(PushTest, ADeviceReceivesMissingBlocksAndNoneTwice) {
  const auto first = Push();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->sent, first->needed);
  EXPECT_EQ(first->missing, first->needed);
  EXPECT_EQ(first->stored, first->needed);
  EXPECT_EQ(first->breaks, 0);
  ExpectAllThere();
}

TEST_F(PushTest, ChunksThatArriveDamagedAreSentAgain) {
  std::atomic<int> count = 0;
  push_.spoil = [&](const PushSender::Chunk&, std::string& data) {
    if (count++ % 40 == 7) data[data.size() / 2] ^= 4;
  };
  const auto state = Push();
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_GT(state->sent, state->needed);
  push_.spoil = nullptr;
  ExpectAllThere();
}

TEST_F(PushTest, AConnectionThatBreaksIsMadeAnewAndThePushGoesOn) {
  std::atomic<int> chunks = 0;
  absl::Notification gone;
  std::thread breaker;
  push_.spoil = [&](const PushSender::Chunk&, std::string&) {
    if (++chunks != 60) return;
    breaker = std::thread([&] {
      server_.reset();
      gone.Notify();
      Start();
    });
    EXPECT_TRUE(gone.WaitForNotificationWithTimeout(absl::Seconds(20)));
  };
  const auto state = Push();
  breaker.join();
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_GE(state->breaks, 1);
  EXPECT_LT(state->sent, 2 * state->needed);
  push_.spoil = nullptr;
  ExpectAllThere();
}

TEST_F(PushTest, ALostDeviceThatClosesConnectionsForAWhileIsWaitedFor) {
  constexpr int kConnections = 12;  // more than what names another program
  std::atomic<int> chunks = 0, closed = 0;
  absl::Notification gone;
  std::thread breaker;
  push_.spoil = [&](const PushSender::Chunk&, std::string&) {
    if (++chunks != 60) return;
    breaker = std::thread([&] {
      server_.reset();
      {
        const SilentPort port(/*backlog=*/16, port_);
        gone.Notify();
        closed = CloseNext(port, kConnections);
      }
      Start();
    });
    EXPECT_TRUE(gone.WaitForNotificationWithTimeout(absl::Seconds(20)));
  };
  const auto state = Push();
  breaker.join();
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(closed, kConnections);
  push_.spoil = nullptr;
  ExpectAllThere();
}

TEST_F(PushTest, ADeviceThatClosesItsFirstConnectionsIsAwaitedIfItWasJustStarted) {
  server_.reset();
  const DeviceClient device("a", target_.address, {});
  std::optional<SilentPort> port(std::in_place, /*backlog=*/16, port_);
  std::thread starter([&] {
    CloseNext(*port, 12);
    port.reset();
    Start();
  });
  const auto health = device.AwaitHealth(absl::Seconds(20));
  starter.join();
  EXPECT_TRUE(health.ok()) << health.status();
}

TEST_F(PushTest, APushThatIsInterruptedResumesWhenItIsCalledAgain) {
  std::atomic<bool> stop = false;
  Bytes stored = 0;
  push_.cancelled = &stop;
  push_.progress = [&](const PushState& state) { stored = state.stored, stop = stop || 2 * state.stored > state.needed; };
  push_.spoil = [&](const PushSender::Chunk&, std::string&) {
    if (stop) absl::SleepFor(absl::Milliseconds(20));
  };
  const absl::Status status = Push().status();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("continues where it stopped"));
  push_.cancelled = nullptr, push_.progress = nullptr, push_.spoil = nullptr;
  const auto rest = Push();
  ASSERT_TRUE(rest.ok()) << rest.status();
  const auto units = CutIntoUnits(source_->manifest(), target_.blocks);
  ASSERT_TRUE(units.ok()) << units.status();
  const Bytes largest = std::ranges::max(*units, {}, &PushUnit::bytes).bytes;
  EXPECT_LE(rest->sent, rest->needed - stored + largest) << "no more is lost than the unit that was under way";
  EXPECT_GT(rest->sent, 0);
  ExpectAllThere();
}

TEST_F(PushTest, TwoPushesAtOnceFollowOneAnother) {
  int chunks = 0;
  PushState second;
  absl::Status second_status, impatient_status;
  std::thread other;
  const PushOptions plain = push_;
  push_.spoil = [&](const PushSender::Chunk&, std::string&) {
    if (++chunks != 5) return;
    other = std::thread([&] {
      const auto state = PushBlocks(*source_, target_, plain);
      second_status = state.status();
      if (state.ok()) second = *state;
    });
    PushOptions impatient = plain;
    impatient.patience = absl::ZeroDuration();
    impatient_status = PushBlocks(*source_, target_, impatient).status();
  };
  const auto first = Push();
  ASSERT_TRUE(first.ok()) << first.status();
  other.join();
  EXPECT_TRUE(absl::IsAborted(impatient_status)) << impatient_status;
  EXPECT_THAT(std::string(impatient_status.message()), HasSubstr("another push to this device is under way"));
  ASSERT_TRUE(second_status.ok()) << second_status;
  EXPECT_EQ(second.sent, 0) << "it waits its turn";
}

TEST_F(PushTest, WithoutAStoreItIsRefusedWithASentence) {
  device_options_.bulk.store = "";
  Start();
  const absl::Status status = Push().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("without --store FOLDER"));
}

TEST_F(PushTest, ADiskThatIsTooSmallRefusesBeforeAnythingIsSent) {
  struct SmallDisk : StoreDisk {
    absl::StatusOr<Bytes> FreeBytes(const std::string&) override { return 5000; }
  } disk;
  device_options_.bulk.disk = &disk;
  Start();
  std::atomic<int> chunks = 0;
  push_.spoil = [&](const PushSender::Chunk&, std::string&) { ++chunks; };
  const absl::Status status = Push().status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("device \"a\" at 127.0.0.1"));
  EXPECT_EQ(chunks, 0);
  server_.reset();
}

TEST_F(PushTest, ASourceThatDiffersFromItsManifestIsReported) {
  Prepare();
  auto source = StoreSource::Open(store_);
  ASSERT_TRUE(source.ok()) << source.status();
  source_ = *std::move(source);
  Flip("layer_0001.safetensors", source_->manifest().files[1].blocks[1].offset);
  const absl::Status status = Push().status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

TEST_F(PushTest, APushToASilentDeviceFailsAfterItsPatience) {
  server_.reset();
  push_.patience = absl::Milliseconds(300);
  const absl::Status status = Push().status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

// ---- Whoever speaks otherwise

class HostilePushTest : public PushTest {
 protected:
  // How the device ends a stream of these messages.
  grpc::Status Say(const std::vector<v1::PushRequest>& messages) {
    const auto stub = v1::Bulk::NewStub(OpenChannel(target_.address, "a", {}, ChannelUse::kBulk));
    grpc::ClientContext context;
    const auto stream = stub->Push(&context);
    for (const v1::PushRequest& message : messages) stream->Write(message);
    v1::PushEvent event;
    while (stream->Read(&event)) {
    }
    return stream->Finish();
  }
  v1::PushRequest Offer() const {
    v1::PushRequest message;
    ToProto(source_->OfferOf(target_.blocks, true), message);
    return message;
  }
  static v1::PushRequest Chunk(int64_t position, const std::string& data) {
    v1::PushRequest message;
    ToProto(PushChunk{.position = position, .data = data, .xxh3 = 1}, message);
    return message;
  }
};

TEST_F(HostilePushTest, WhatIsNoPushEndsThatPushAndNothingElse) {
  EXPECT_EQ(Say({v1::PushRequest()}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Say({Chunk(0, "x")}).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(Say({Offer(), Offer()}).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(Say({Offer(), Chunk(7, "x")}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Say({Offer(), Chunk(0, std::string(5 * kMiB, 'x'))}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Say({Offer(), Chunk(0, "x"), Chunk(0, "x"), Chunk(0, "x"), Chunk(0, "x")}).error_code(), grpc::StatusCode::DATA_LOSS);
  v1::PushRequest offer = Offer();
  offer.mutable_offer()->mutable_blocks(0)->set_kind(9);
  EXPECT_EQ(Say({offer}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(Push().ok());
  ExpectAllThere();
}

TEST_F(HostilePushTest, ACoordinatorThatSaysNothingMakesRoomForTheNext) {
  device_options_.bulk.silence = absl::Milliseconds(200);
  Start();
  const auto stub = v1::Bulk::NewStub(OpenChannel(target_.address, "a", {}, ChannelUse::kBulk));
  grpc::ClientContext context;
  const auto silent = stub->Push(&context);
  silent->Write(Offer());
  v1::PushEvent event;
  ASSERT_TRUE(silent->Read(&event));
  EXPECT_TRUE(Push().ok());
  context.TryCancel();
  silent->Finish();
}

// ---- Beside an installed plan

TEST_F(PushTest, APlanFindsWhatWasPushedOfItsModelAndNothingElse) {
  std::vector<std::string> folders;
  const auto make = device_options_.plans.make_stage;
  device_options_.plans.weights = "";
  device_options_.plans.make_stage = [&](StageSetup setup) {
    folders.push_back(setup.weights);
    return make(std::move(setup));
  };
  Start();
  ASSERT_TRUE(Push().ok());
  const uint64_t model = source_->manifest().source_xxh3;
  for (const uint64_t asked : {model, model + 1}) {
    auto client = ClusterClient::Connect({.devices = {{.name = "a", .address = target_.address, .model = asked}}});
    ASSERT_TRUE(client.ok()) << client.status();
    Plan plan = MakeStages({0}, 1, 1);
    const absl::Status status = (*client)->Install(plan, {});
    EXPECT_EQ(status.ok(), asked == model) << status;
    if (!status.ok()) {
      EXPECT_THAT(std::string(status.message()), HasSubstr("lime push"));
    }
    (*client)->Unload().IgnoreError();
  }
  EXPECT_THAT(folders, ::testing::ElementsAre(Folder()));
}

TEST_F(PushTest, BlocksThatAnInstalledPlanReadsAreNotWritten) {
  device_options_.plans.weights = "";
  Start();
  target_.blocks = {{BlockKind::kMlp, 0}, {BlockKind::kHead, 0}};
  ASSERT_TRUE(Push().ok());
  auto client = ClusterClient::Connect({.devices = {{.name = "a", .address = target_.address, .model = source_->manifest().source_xxh3}}});
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE((*client)->Install(MakeStages({0}, 1, 1), {}).ok());  // of all blocks
  EXPECT_TRUE(Push().ok()) << "looking is allowed";
  target_.blocks.push_back({BlockKind::kAttention, 0});
  const absl::Status status = Push().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the installed plan reads it"));
  ASSERT_TRUE((*client)->Unload().ok());
  EXPECT_TRUE(Push().ok());
}

TEST_F(PushTest, ADeviceSaysWhichBlocksAPlanMayMakeItRead) {
  device_options_.plans.weights = "";
  Start();
  const DeviceClient device("a", target_.address, {});
  const uint64_t model = source_->manifest().source_xxh3;
  const auto ask = [&](const HoldingsCall& call) { return device.Holdings(call, absl::Seconds(10)); };
  EXPECT_EQ(*ask({.model = model}), (DeviceHoldings{.accepts_pushes = true})) << "nothing yet";
  target_.blocks = {{BlockKind::kMlp, 0}, {BlockKind::kHead, 0}};
  ASSERT_TRUE(Push().ok());
  const auto held = ask({.model = model});
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_FALSE(held->whole);
  EXPECT_THAT(held->blocks, ::testing::UnorderedElementsAreArray(target_.blocks));
  EXPECT_EQ(*ask({.weights = Folder()}), *held) << "named as weights it is the same store";
  EXPECT_EQ(*ask({.model = model + 1}), (DeviceHoldings{.accepts_pushes = true})) << "of another model it has nothing";
  EXPECT_TRUE(ask({.weights = model_, .model = model})->whole);
  EXPECT_TRUE(absl::IsNotFound(ask({.weights = "/nowhere"}).status()));
  device_options_.plans.weights = model_;
  device_options_.bulk.store = "";
  Start();
  EXPECT_EQ(*ask({.model = model}), (DeviceHoldings{.whole = true})) << "the folder that it was started with";
}

}  // namespace
}  // namespace lime
