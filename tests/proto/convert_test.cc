#include "proto/convert/convert.h"

#include <xxhash.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lime/v1/bulk.pb.h"
#include "lime/v1/control.pb.h"
#include "proto/channel.h"
#include "tests/daemon/rpc/fake_cluster.h"
#include "tests/proto/measured_profile.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

// Through the wire and back.
template <typename Message, typename T>
absl::StatusOr<T> Return(const T& what) {
  Message message;
  ToProto(what, message);
  Message received;
  EXPECT_TRUE(received.ParseFromString(message.SerializeAsString()));
  return FromProto(received);
}

TEST(ConvertTest, WhoUsesAPlanIsASentence) {
  PlanUser user{.coordinator = {.user = "ann", .host = "box", .id = 9}, .address = "192.168.1.9:4", .seconds = 75.5};
  EXPECT_EQ(user.Who(), "ann@box (192.168.1.9:4), for 1m15s");
  user.seconds = 7325;
  EXPECT_EQ(user.Who(), "ann@box (192.168.1.9:4), for 2h2m");
  EXPECT_EQ(PlanUser().Who(), "somebody, for 0");
  EXPECT_EQ(PeerAddress("ipv4:127.0.0.1:4"), "127.0.0.1:4");
  EXPECT_EQ(PeerAddress("ipv6:%5B::1%5D:4"), "[::1]:4");
  EXPECT_EQ(PeerAddress("ipv6:[::1]:4"), "[::1]:4");
  EXPECT_EQ(PeerAddress("unix:/x\n"), "unix:/x ");
}

TEST(ConvertTest, WhatIsReleasedAndWhoAsksReturn) {
  const ReleaseCall call{.force = true, .by = {.user = "ann", .host = "box", .id = 9}};
  EXPECT_EQ(*Return<v1::ReleaseRequest>(call), call);
  ReleasedPlan released{.epoch = 3, .model = "llama"};
  EXPECT_EQ(*Return<v1::ReleaseReply>(released), released);
  released.used_by = PlanUser{.address = "a:1", .seconds = 2};
  EXPECT_EQ(*Return<v1::ReleaseReply>(released), released);
  v1::ReleaseReply wrong;
  wrong.mutable_used_by()->set_seconds(std::nan(""));
  EXPECT_FALSE(FromProto(wrong).ok());
  wrong.mutable_used_by()->set_seconds(1);
  wrong.mutable_used_by()->mutable_coordinator()->set_user("a\nb");
  EXPECT_THAT(std::string(FromProto(wrong).status().message()), HasSubstr("\"user\""));
}

TEST(ConvertTest, FindingsReturnAndAreBounded) {
  const InspectCall call{.weights = "/data/m", .seconds = 0.5};
  EXPECT_EQ((Return<v1::InspectRequest>(call)->weights), "/data/m");
  EXPECT_EQ(Return<v1::InspectRequest>(InspectCall{.seconds = 11}).ok(), false);
  const std::vector<Finding> findings = {{"memory", Grade::kOk, "8 GiB", ""}, {"disk", Grade::kFail, "full", "make room"}};
  EXPECT_EQ(*Return<v1::InspectReply>(findings), findings);
  EXPECT_EQ((*Return<v1::InspectReply>(std::vector<Finding>{{"disk", Grade::kWarn, "a\n\xff", ""}}))[0].what, "a??");
  v1::InspectReply hostile;
  hostile.add_findings()->set_grade(3);
  EXPECT_THAT(FromProto(hostile).status().message(), HasSubstr("grade"));
  hostile.mutable_findings(0)->set_grade(0);
  hostile.mutable_findings(0)->set_what("\x1b[2J");
  EXPECT_THAT(FromProto(hostile).status().message(), HasSubstr("control characters"));
  hostile.Clear();
  for (int i = 0; i < 65; ++i) hostile.add_findings();
  EXPECT_THAT(FromProto(hostile).status().message(), HasSubstr("findings"));
}

TEST(ConvertTest, HealthStatisticsAndNewsOfInstallingReturn) {
  const DeviceHealth health{.name = "orin",
                            .epoch = 3,
                            .last_epoch = 7,
                            .memory = kGiB,
                            .runtime = kMiB,
                            .model = "llama",
                            .release = "0.1.0",
                            .clock = 1'800'000'000};
  EXPECT_EQ(*Return<v1::HealthReply>(health), health);
  DeviceHealth used = health;
  used.used_by = PlanUser{.coordinator = {.user = "ann", .host = "box", .id = 9}, .address = "[::1]:4", .seconds = 75.5};
  used.settings = DaemonSettings{.listen = "0.0.0.0:7001",
                                 .weights = "/data/\xff",
                                 .store = "/store",
                                 .kv_dir = "/kv",
                                 .tls = "/keys",
                                 .threads = 4,
                                 .backend = "torch",
                                 .loader = "auto",
                                 .follow_memory = true,
                                 .memory_mode = "balanced",
                                 .cluster = "shelf",
                                 .user = "lime",
                                 .process = 77};
  EXPECT_EQ(*Return<v1::HealthReply>(used), used);
  const DeviceStatistics statistics{.epoch = 1,
                                    .steps = 2,
                                    .bytes_read = 3,
                                    .kv_written = 13,
                                    .kv_read = 14,
                                    .kv_fetched = 15,
                                    .compute_ms = 4.5,
                                    .wait_weights_ms = 5.5,
                                    .wait_input_ms = 6.5,
                                    .wait_kv_ms = 6.1,
                                    .decode_ms = 6.6,
                                    .planned_decode_ms = 6.7,
                                    .disk_ms = 6.8,
                                    .disk_bytes = 6'800,
                                    .kv_room = -5,
                                    .sent_messages = 7,
                                    .sent_bytes = 8,
                                    .received_messages = 9,
                                    .received_bytes = 10,
                                    .resident = 16,
                                    .peak_resident = 11,
                                    .kv_pages = 17,
                                    .kv_pages_free = 18,
                                    .residency_changes = 12,
                                    .shed = 13,
                                    .pressure_events = 19,
                                    .unit_hits = 20,
                                    .unit_misses = 21,
                                    .decode_unit_hits = 22,
                                    .decode_unit_misses = 23,
                                    .unit_bytes = 24,
                                    .units_suggested = 25,
                                    .units_read_ahead = 26,
                                    .read_ahead_used = 27,
                                    .read_ahead_wasted = 28,
                                    .neuron_visits = 35,
                                    .neuron_rows = 34,
                                    .neurons_computed = 29,
                                    .neurons_loaded = 30,
                                    .neuron_reads = 31,
                                    .neuron_bytes = 32,
                                    .neuron_io_ms = 3.3,
                                    .neurons_copied = 36,
                                    .links = {{"nano", 12.5e6, 340}, {"orin", 1e8, 0}},
                                    .traffic = {{"nano", 20, 21}, {"orin", 0, 22}}};
  EXPECT_EQ(*Return<v1::StatisticsReply>(statistics), statistics);
  for (const std::optional<Bytes> room : {std::optional<Bytes>(), std::optional<Bytes>(0)})
    EXPECT_EQ(Return<v1::StatisticsReply>(DeviceStatistics{.kv_room = room})->kv_room, room) << "no room is not the same as not known";
  for (const InstallNews& news : {InstallNews(LoadedBytes{1, 2}), InstallNews(InstalledPlan{"x86-f32-1", 5})})
    EXPECT_EQ(*Return<v1::InstallEvent>(news), news);
}

TEST(ConvertTest, APlanReturnsBitForBit) {
  const InstallCall call{.plan = MakeStages({0, 1, 2, 0}, 3, 2),
                         .device = 2,
                         .addresses = {"a:1", "", "[::1]:3"},
                         .weights = "/data/m",
                         .trace_when_asked = true};
  const absl::StatusOr<InstallCall> back = Return<v1::InstallRequest>(call);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->plan, call.plan);
  EXPECT_EQ(back->device, 2);
  EXPECT_EQ(back->addresses, call.addresses);
  EXPECT_EQ(back->weights, call.weights);
  EXPECT_TRUE(back->trace_when_asked);
}

TEST(ConvertTest, TheDigestOfTheWeightsReturns) {
  InstallCall call{.plan = MakeStages({0, 1, 2, 0}, 3, 2), .device = 2, .addresses = {"a:1", "", "[::1]:3"}};
  EXPECT_EQ(Return<v1::InstallRequest>(call)->digest, std::nullopt);
  call.digest =
      WeightsDigest{.model = "m", .config = 5, .blocks = {{{BlockKind::kEmbedding, 0}, 7, 0, 0}, {{BlockKind::kMlp, 3}, 8, 9, 10}}};
  const absl::StatusOr<InstallCall> back = Return<v1::InstallRequest>(call);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->digest, call.digest);
  v1::InstallRequest message;
  ToProto(call, message);
  message.mutable_weights_digest()->mutable_blocks(1)->set_kind(9);
  EXPECT_THAT(std::string(FromProto(message).status().message()), HasSubstr("field \"kind\" = 9 is outside"));
  ToProto(call, message = {});
  message.mutable_weights_digest()->mutable_blocks(0)->set_layer(1);
  EXPECT_THAT(std::string(FromProto(message).status().message()), HasSubstr("field \"layer\" = 1 is outside 0 to 0"));
  ToProto(call, message = {});
  message.mutable_weights_digest()->mutable_blocks(0)->set_bytes(-1);
  EXPECT_FALSE(FromProto(message).ok());
}

TEST(ConvertTest, WhatGoesFromPlanToPlanReturns) {
  InstallCall call{.plan = MakeStages({0, 1, 2, 0}, 3, 2), .device = 2, .addresses = {"a:1", "", "[::1]:3"}};
  call.plan.epoch = 9;
  call.kv = KvTakeoverPlan{.epoch = 8,
                           .sequences = {{.from = 5, .to = 2, .positions = 7, .states = {7, 0, 4}}, {.from = 0, .to = 0, .positions = 256}},
                           .holders = {{.name = "b", .address = "b:2", .layers = {0, 1}, .lent = {}},
                                       {.name = "h", .address = "h:2", .layers = {1}, .hosts = true, .lent = {{5, 2, 3}, {0, 1, 0}}}},
                           .kv_readers = {{.layer = 1, .readers = 1}, {.layer = 0, .hosts = true, .readers = 2}}};
  const absl::StatusOr<InstallCall> back = Return<v1::InstallRequest>(call);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->kv, call.kv);
  const UnloadCall unload{.epoch = 4, .hand_over_kv = true, .interrupted = true};
  EXPECT_EQ(*Return<v1::UnloadRequest>(unload), unload);
  const UnloadedPlan unloaded{.handed_over = true, .hashes = {{0, std::string("\0\1", 2)}, {3, "state"}}, .lent = {{3, 7, 12}}};
  EXPECT_EQ(*Return<v1::UnloadReply>(unloaded), unloaded);
  KvReadCall read{.epoch = 8, .layer = 3, .extents = {{0, 0, 17}, {4, 16, 32}}, .numerics_id = "x86-f32-1", .page_bytes = 4096};
  EXPECT_EQ(*Return<v1::KvRequest>(read), read);
  read.hosts = true, read.extents = {{.sequence = 4, .first = 16, .end = 32, .life = 9}};
  EXPECT_EQ(*Return<v1::KvRequest>(read), read);
  read.extents = {{.sequence = 4, .first = 16, .end = 16}};
  EXPECT_FALSE(Return<v1::KvRequest>(read).ok());
  const KvPagesRead pages{.sequence = 4, .first = 16, .data = "data", .xxh3 = XXH3_64bits("data", 4)};
  v1::KvPages message;
  ToProto(pages, message);
  EXPECT_EQ(*FromProto(message), pages);
  ToProto(KvPagesRead{.data = "data", .xxh3 = 1}, message);
  EXPECT_TRUE(absl::IsDataLoss(FromProto(message).status()));
}

TEST(ConvertTest, KvThatCannotGoOnIsNamed) {
  InstallCall call{.plan = MakeStages({0, 1, 2, 0}, 3, 2), .addresses = {"", "", ""}};
  call.plan.epoch = 9;
  const KvTakeoverPlan good{.epoch = 8, .sequences = {{.from = 0, .to = 0, .positions = 7}}};
  const auto refused = [&](const std::function<void(KvTakeoverPlan&)>& spoil) {
    call.kv = good;
    spoil(*call.kv);
    return std::string(Return<v1::InstallRequest>(call).status().message());
  };
  EXPECT_EQ(refused([](KvTakeoverPlan&) {}), "");
  EXPECT_THAT(refused([](KvTakeoverPlan& kv) { kv.epoch = 9; }), HasSubstr("\"epoch\" = 9"));
  EXPECT_THAT(refused([](KvTakeoverPlan& kv) { kv.sequences.clear(); }), HasSubstr("\"sequences\" = 0"));
  EXPECT_THAT(refused([](KvTakeoverPlan& kv) { kv.sequences[0].to = 3; }), HasSubstr("\"to\" = 3"));
  EXPECT_THAT(refused([](KvTakeoverPlan& kv) { kv.sequences[0].from = -1; }), HasSubstr("\"from\" = -1"));
  EXPECT_THAT(refused([](KvTakeoverPlan& kv) { kv.sequences[0].positions = 257; }), HasSubstr("\"positions\" = 257"));
  EXPECT_THAT(refused([](KvTakeoverPlan& kv) { kv.sequences.push_back({.from = 1, .to = 0, .positions = 1}); }),
              HasSubstr("names one of them twice"));
  EXPECT_THAT(refused([](KvTakeoverPlan& kv) { kv.kv_readers = {{.layer = 1000, .readers = 1}}; }), HasSubstr("\"layer\" = 1000"));
  EXPECT_THAT(refused([](KvTakeoverPlan& kv) { kv.kv_readers = {{.layer = 1}}; }), HasSubstr("\"readers\" = 0"));
  const auto refused_holder = [&](KvHolder holder) { return refused([&](KvTakeoverPlan& kv) { kv.holders = {std::move(holder)}; }); };
  EXPECT_THAT(refused_holder({.name = "b", .address = "b\n", .layers = {}, .lent = {}}), HasSubstr("control characters"));
  EXPECT_THAT(refused_holder({.name = "b", .address = "b:2", .layers = {1000}, .lent = {}}), HasSubstr("\"layers\" = 1000"));
  EXPECT_THAT(refused_holder({.name = "b", .address = "b:2", .layers = {1, 1}, .lent = {}}), HasSubstr("\"layers\" = 1"));
  EXPECT_THAT(refused_holder({.name = "b", .address = "b:2", .layers = {1}, .lent = {{0, 0, 0}}}), HasSubstr("\"pieces\" = 0"));
  EXPECT_THAT(refused_holder({.name = "b", .address = "b:2", .layers = {1}, .lent = {{0, 1, -1}}}), HasSubstr("\"life\" = -1"));
  EXPECT_THAT(refused_holder({.name = "b", .address = "b:2", .layers = {1}, .lent = {{0, 1, 0}, {0, 1, 0}}}),
              HasSubstr("names slot 0 twice"));
  const auto refused_states = [&](std::vector<int64_t> states) {
    return refused([&](KvTakeoverPlan& kv) { kv.sequences[0].states = std::move(states); });
  };
  EXPECT_EQ(refused_states({7, 0, 3, 7}), "");
  EXPECT_EQ(refused_states({0, 3}), "") << "of a sequence that has ended, a snapshot alone";
  EXPECT_THAT(refused_states({7, 8}), HasSubstr("\"states\" = 8"));
  EXPECT_THAT(refused_states({7, -1}), HasSubstr("\"states\" = -1"));
  EXPECT_THAT(refused_states({5}), HasSubstr("the states of slot 0 have 5 positions, its KV 7"));
  EXPECT_THAT(refused_states(std::vector<int64_t>(2 + kMaxStateSnapshots)), HasSubstr("\"states\" = 18"));
}

TEST(ConvertTest, OrdersReturn) {
  const StepOrder step{{MicroBatch{{{.sequence = 1, .token = kSampledToken, .position = 9, .wants_logits = true},
                                    {.sequence = 2, .token = 7, .position = 0, .parent = 0, .snapshot = 15}}},
                        MicroBatch{}}};
  const AdmitOrder admit{
      .sequence = 4, .request = kHuge, .positions = 100, .prompt = {1, 2, 3}, .computed = 2, .source = 3, .snapshot = 1, .generated = 1};
  const RequestSampling sampling{.params = {.repetition_penalty = 1.5,
                                            .presence_penalty = -2,
                                            .frequency_penalty = 0.5,
                                            .logit_bias = {{3, -100}, {0, 2.5f}},
                                            .temperature = 0.25,
                                            .top_k = 3,
                                            .top_p = 0.5,
                                            .min_p = 0.125,
                                            .seed = ~0ull},
                                 .choice = ~0ull - 1,
                                 .hash_logits = true,
                                 .hash_state = std::string("\0state", 6),
                                 .score_top = 0,
                                 .logprobs = 20,
                                 .format = std::string("{\0}", 3)};
  for (const Order& order :
       {Order{0, step}, Order{kHuge, admit}, Order{5, RetireOrder{3}}, Order{5, RetireOrder{.sequence = 3, .kept = 48}},
        Order{7, RollbackOrder{.sequence = 3, .positions = 48}}, Order{7, RollbackOrder{.sequence = 3, .positions = 48, .snapshot = 2}},
        Order{6, ResidencyOrder{{.layer_pages = 9, .streamed = {0, 3, 4}}}}}) {
    const auto back = Return<v1::OrderRequest>(FromCoordinator(OrderMessage{order, sampling}));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(std::get<OrderMessage>(*back).order, order);
    if (!std::holds_alternative<AdmitOrder>(order.what)) continue;
    const RequestSampling& read = std::get<OrderMessage>(*back).sampling;
    EXPECT_TRUE(read == sampling);
  }
  for (const FromCoordinator& what : {FromCoordinator(OpenOrders{8, ~0ull}), FromCoordinator(Alive{}),
                                      FromCoordinator(VocabularyPart{.total = 9, .data = std::string("a\0b", 3)})}) {
    const auto back = Return<v1::OrderRequest>(what);
    ASSERT_TRUE(back.ok()) << back.status();
    ASSERT_EQ(back->index(), what.index());
    if (const auto* open = std::get_if<OpenOrders>(&what)) {
      EXPECT_EQ(std::get<OpenOrders>(*back), *open);
    }
    if (const auto* part = std::get_if<VocabularyPart>(&what)) {
      EXPECT_EQ(std::get<VocabularyPart>(*back), *part);
    }
  }
}

TEST(ConvertTest, NewsOfDevicesReturns) {
  const cpu::RowScore kScore{.logprob = -0.5, .log_sum = 3.25, .top = {{3, 1.5f}, {9, -2.25f}}};
  for (const FromDevice& what :
       {FromDevice(Opened{}), FromDevice(Opened{.wants_vocabulary = true}),
        FromDevice(SampledNews{.step = 4,
        .tokens = {{1, 2, 3}, {4, 5, 6}, {4, 6, 7}},
        .logits_hashes = {7, ~0ull, 0},
        .hash_states = {"", std::string("\0state", 6), ""},
        .scores = {std::nullopt, kScore, cpu::RowScore{}},
        .ends_step = true}),
        FromDevice(StepEndedNews{9}), FromDevice(FailedNews{absl::DataLossError("block 3")}), FromDevice(Alive{})}) {
    const auto back = Return<v1::OrderEvent>(what);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, what);
  }
}

TEST(ConvertTest, WhatIsMeasuredReturns) {
  const ProfileCall call{.weights = "/data/m", .config = "{}\n", .seconds = 0.5};
  EXPECT_EQ(*Return<v1::ProfileRequest>(call), call);
  const MeasuredDevice measured{
      .profile = MeasuredProfile(), .runtime = 5, .memory = 6, .numerics_id = "x86-f32-1", .disk_problem = "/data: is full"};
  for (const ProfileNews& news : {ProfileNews(ProfileProgress{"disk", 0.25}), ProfileNews(measured)})
    EXPECT_EQ(*Return<v1::ProfileEvent>(news), news);
  const LinkProbe probe{.peer = "orin", .address = "[::1]:7001", .seconds = 2, .most = kMiB};
  EXPECT_EQ(*Return<v1::ProbeLinkRequest>(probe), probe);
  const MeasuredLink link{.bytes_per_second = 1e8, .latency_ms = 0.25};
  EXPECT_EQ(*Return<v1::ProbeLinkReply>(link), link);
}

TEST(ConvertTest, TracesReturn) {
  const TraceCall call{.most = kMaxWireTraceSpans};
  EXPECT_EQ(*Return<v1::TraceRequest>(call), call);
  TraceChunk chunk{.epoch = 3, .received_ms = 1.5, .answered_ms = 2.25, .lost = 4};
  chunk.spans = {
      {.kind = TimelineSpan::Kind::kCompute, .begin_ms = 0.125, .end_ms = 0.25, .step = 1, .stage = 2, .microbatch = 3, .part = -1},
      {.kind = TimelineSpan::Kind::kReceive, .begin_ms = 5, .end_ms = 5, .step = 0, .stage = 0, .microbatch = 0, .peer = 7},
      {.kind = TimelineSpan::Kind::kLoad, .begin_ms = 1e9, .end_ms = 1e9 + 1, .step = 9, .part = 4}};
  const auto back = Return<v1::TraceReply>(chunk);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, chunk);
}

}  // namespace
}  // namespace lime
