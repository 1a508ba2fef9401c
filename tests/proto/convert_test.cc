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
        FromDevice(SampledNews{4, {{1, 2, 3}, {4, 5, 6}, {4, 6, 7}}, {7, ~0ull, 0}, {std::nullopt, kScore, cpu::RowScore{}}, true}),
        FromDevice(StepEndedNews{9}), FromDevice(FailedNews{absl::DataLossError("block 3")}), FromDevice(Alive{})}) {
    const auto back = Return<v1::OrderEvent>(what);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, what);
  }
}

DeviceProfile SmallProfile() {
  DeviceProfile profile;
  profile.cpu = "some cpu";
  profile.threads = 2;
  profile.read_bytes_per_second = 1e10;
  profile.SetDisk({{.read_bytes = kMiB, .depth = 4, .bytes_per_second = 5e8, .latency_ms = 2}});
  return profile;
}

TEST(ConvertTest, WhatIsMeasuredReturns) {
  const ProfileCall call{.weights = "/data/m", .config = "{}\n", .seconds = 0.5};
  EXPECT_EQ(*Return<v1::ProfileRequest>(call), call);
  const MeasuredDevice measured{
      .profile = SmallProfile(), .runtime = 5, .memory = 6, .numerics_id = "x86-f32-1", .disk_problem = "/data: is full"};
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

// ---- Hostile messages

template <typename Message>
void ExpectWrong(const Message& message, const std::string& about) {
  const auto read = FromProto(message);
  EXPECT_TRUE(absl::IsInvalidArgument(read.status())) << about;
  EXPECT_THAT(std::string(read.status().message()), HasSubstr(about));
}

TEST(ConvertTest, ScoresOutOfBoundsAreNamed) {
  v1::OrderEvent event;
  v1::SampledToken& token = *event.mutable_sampled()->add_tokens();
  token.mutable_score()->add_top_ids(1);
  ExpectWrong(event, "1 likeliest ids, but 0 logits");
  token.mutable_score()->add_top_logits(std::numeric_limits<float>::quiet_NaN());
  ExpectWrong(event, "is not a number");
  token.mutable_score()->set_top_logits(0, 1);
  token.mutable_score()->set_logprob(std::numeric_limits<double>::quiet_NaN());
  ExpectWrong(event, "is not a number");
  token.mutable_score()->set_logprob(-1);
  token.mutable_score()->set_top_ids(0, -1);
  ExpectWrong(event, "\"top_ids\"");
  token.mutable_score()->set_top_ids(0, 1);
  EXPECT_TRUE(FromProto(event).ok());
  v1::OrderRequest request;
  v1::AdmitOrder& admit = *request.mutable_order()->mutable_admit();
  admit.set_positions(1), admit.add_prompt(1);
  admit.mutable_sampling()->set_repetition_penalty(1), admit.mutable_sampling()->set_top_p(1);
  EXPECT_TRUE(FromProto(request).ok()) << FromProto(request).status();
  admit.mutable_sampling()->set_score_top_plus_1(1002);
  ExpectWrong(request, "\"score_top_plus_1\"");
}

TEST(ConvertTest, NumbersOutOfBoundsAreNamed) {
  v1::HealthReply health;
  health.set_epoch(-2);
  ExpectWrong(health, "\"epoch\"");
  health.set_epoch(0), health.set_runtime_bytes(-1);
  ExpectWrong(health, "\"runtime_bytes\"");
  health.set_runtime_bytes(0), health.set_model("two\nlines");
  ExpectWrong(health, "\"model\"");
  v1::StatisticsReply statistics;
  statistics.set_bytes_read(-1);
  ExpectWrong(statistics, "\"bytes_read\"");
  statistics.set_bytes_read(0);
  statistics.set_kv_room(std::numeric_limits<int64_t>::min());
  ExpectWrong(statistics, "\"kv_room\"");
  statistics.clear_kv_room();
  statistics.set_compute_ms(std::numeric_limits<double>::quiet_NaN());
  ExpectWrong(statistics, "\"compute_ms\"");
  statistics.set_compute_ms(0);
  v1::LinkRate& link = *statistics.add_links();
  link.set_bytes_per_second(-1);
  ExpectWrong(statistics, "\"bytes_per_second\"");
  link.set_bytes_per_second(1e6), link.set_age_ms(std::numeric_limits<double>::infinity());
  ExpectWrong(statistics, "\"age_ms\"");
  link.set_age_ms(1), link.set_peer("two\nlines");
  ExpectWrong(statistics, "\"peer\"");
  link.set_peer("nano");
  for (int i = 0; i < 1024; ++i) statistics.add_links();
  ExpectWrong(statistics, "\"links\"");
  v1::InstallEvent event;
  event.mutable_progress()->set_done_bytes(5);
  ExpectWrong(event, "\"done_bytes\"");
}

std::string FieldsOf(const google::protobuf::Descriptor& message) {
  std::string fields;
  for (int i = 0; i < message.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *message.field(i);
    absl::StrAppend(&fields, i == 0 ? "" : " ", field.name(), "=", field.number());
  }
  return fields;
}

// A device skips fields that it does not know, and then computes other tokens. So if one of these
// lists changes, raise kProtocol.
TEST(ConvertTest, OrdersOfThisProtocolHaveTheseFields) {
  EXPECT_EQ(kProtocol, 4);
  EXPECT_EQ(FieldsOf(*v1::AdmitOrder::descriptor()),
            "sequence=1 request=2 positions=3 prompt=4 sampling=5 computed=6 source_plus_1=7 generated=8 snapshot_plus_1=9");
  EXPECT_EQ(FieldsOf(*v1::Sampling::descriptor()),
            "repetition_penalty=1 temperature=2 top_k=3 top_p=4 min_p=5 seed=6 hash_logits=7 choice=10 hash_state=9 score_top_plus_1=8 "
            "presence_penalty=11 frequency_penalty=12 bias_ids=13 biases=14 logprobs_plus_1=15 format=16");
  EXPECT_EQ(FieldsOf(*v1::RetireOrder::descriptor()), "sequence=1 kept=2");
  EXPECT_EQ(FieldsOf(*v1::RollbackOrder::descriptor()), "sequence=1 positions=2 snapshot_plus_1=3");
  EXPECT_EQ(FieldsOf(*v1::StepOrder::descriptor()), "microbatches=1");
  EXPECT_EQ(FieldsOf(*v1::ResidencyOrder::descriptor()), "layer_pages=1 streamed=2");
  EXPECT_EQ(FieldsOf(*v1::MicroBatch::descriptor()), "rows=1");
  EXPECT_EQ(FieldsOf(*v1::Row::descriptor()), "sequence=1 token=2 position=3 parent_plus_1=4 wants_logits=5 snapshot_plus_1=6");
  EXPECT_EQ(FieldsOf(*v1::OpenOrders::descriptor()), "epoch=1 vocabulary=2");
}

TEST(ConvertTest, OrdersOutOfBoundsAreNamed) {
  const auto order = [](auto fill) {
    v1::OrderRequest request;
    fill(*request.mutable_order());
    return request;
  };
  const auto row = [&](auto fill) { return order([&](v1::Order& o) { fill(*o.mutable_step()->add_microbatches()->add_rows()); }); };
  ExpectWrong(v1::OrderRequest(), "unknown kind");
  ExpectWrong(order([](v1::Order&) {}), "unknown kind");
  ExpectWrong(order([](v1::Order& o) { o.mutable_retire(), o.set_number(-1); }), "\"number\"");
  ExpectWrong(order([](v1::Order& o) { o.mutable_retire()->set_sequence(-1); }), "\"sequence\"");
  ExpectWrong(order([](v1::Order& o) { o.mutable_retire()->set_sequence(1 << 30); }), "\"sequence\"");
  ExpectWrong(order([](v1::Order& o) { o.mutable_step(); }), "\"microbatches\"");
  ExpectWrong(order([](v1::Order& o) {
                for (int i = 0; i < 1025; ++i) o.mutable_step()->add_microbatches();
              }),
              "\"microbatches\"");
  ExpectWrong(order([](v1::Order& o) {
                v1::MicroBatch& batch = *o.mutable_step()->add_microbatches();
                for (int64_t i = 0; i <= kMaxWireRows; ++i) batch.add_rows();
              }),
              "\"rows\"");
  ExpectWrong(row([](v1::Row& r) { r.set_token(-2); }), "\"token\"");
  ExpectWrong(row([](v1::Row& r) { r.set_token(1 << 24); }), "\"token\"");
  ExpectWrong(row([](v1::Row& r) { r.set_position(-1); }), "\"position\"");
  ExpectWrong(row([](v1::Row& r) { r.set_parent_plus_1(1); }), "\"parent_plus_1\"");
  ExpectWrong(row([](v1::Row& r) { r.set_parent_plus_1(-1); }), "\"parent_plus_1\"");
  ExpectWrong(row([](v1::Row& r) { r.set_snapshot_plus_1(-1); }), "\"snapshot_plus_1\"");
  ExpectWrong(row([](v1::Row& r) { r.set_snapshot_plus_1(kMaxStateSnapshots + 1); }), "\"snapshot_plus_1\"");
  const auto admit = [&](auto fill) {
    return order([&](v1::Order& o) {
      v1::AdmitOrder& a = *o.mutable_admit();
      a.set_positions(10), a.add_prompt(1), a.mutable_sampling()->set_repetition_penalty(1), a.mutable_sampling()->set_top_p(1);
      fill(a);
    });
  };
  EXPECT_TRUE(FromProto(admit([](v1::AdmitOrder&) {})).ok());
  ExpectWrong(admit([](v1::AdmitOrder& a) { a.set_positions(0); }), "\"positions\"");
  ExpectWrong(admit([](v1::AdmitOrder& a) { a.set_positions(kHuge); }), "\"positions\"");
  ExpectWrong(admit([](v1::AdmitOrder& a) { a.clear_prompt(); }), "\"prompt\"");
  ExpectWrong(admit([](v1::AdmitOrder& a) { a.add_prompt(-1); }), "\"prompt\"");
  ExpectWrong(admit([](v1::AdmitOrder& a) { a.set_request(-1); }), "\"request\"");
  ExpectWrong(admit([](v1::AdmitOrder& a) { a.set_computed(2); }), "\"computed\"");
  ExpectWrong(admit([](v1::AdmitOrder& a) { a.set_source_plus_1(-1); }), "\"source_plus_1\"");
  ExpectWrong(admit([](v1::AdmitOrder& a) { a.set_source_plus_1(kMaxWireSequences + 1); }), "\"source_plus_1\"");
  ExpectWrong(admit([](v1::AdmitOrder& a) { a.set_snapshot_plus_1(-1); }), "\"snapshot_plus_1\"");
  ExpectWrong(admit([](v1::AdmitOrder& a) { a.set_snapshot_plus_1(kMaxStateSnapshots + 1); }), "\"snapshot_plus_1\"");
  ExpectWrong(order([](v1::Order& o) { o.mutable_retire()->set_kept(-1); }), "\"kept\"");
  ExpectWrong(order([](v1::Order& o) { o.mutable_retire()->set_kept(kMaxWirePosition + 1); }), "\"kept\"");
  ExpectWrong(admit([](v1::AdmitOrder& a) { a.mutable_sampling()->set_temperature(-1); }), "temperature");
  ExpectWrong(admit([](v1::AdmitOrder& a) { a.mutable_sampling()->set_top_p(std::numeric_limits<double>::quiet_NaN()); }), "top");
  ExpectWrong(admit([](v1::AdmitOrder& a) { a.set_generated(2); }), "\"generated\"");
  ExpectWrong(admit([](v1::AdmitOrder& a) { a.set_generated(-1); }), "\"generated\"");
  ExpectWrong(admit([](v1::AdmitOrder& a) { a.mutable_sampling()->set_presence_penalty(2.5); }), "presence_penalty");
  ExpectWrong(admit([](v1::AdmitOrder& a) { a.mutable_sampling()->set_frequency_penalty(-3); }), "frequency_penalty");
  ExpectWrong(admit([](v1::AdmitOrder& a) { a.mutable_sampling()->add_bias_ids(1); }), "1 ids have 0 biases");
  const auto biases = [&](int count, int32_t id, float bias) {
    return admit([&](v1::AdmitOrder& a) {
      for (int i = 0; i < count; ++i) a.mutable_sampling()->add_bias_ids(id), a.mutable_sampling()->add_biases(bias);
    });
  };
  EXPECT_TRUE(FromProto(biases(1024, 5, -100)).ok());
  ExpectWrong(biases(1025, 5, -100), "\"bias_ids\"");
  ExpectWrong(biases(1, -1, 1), "\"bias_ids\"");
  ExpectWrong(biases(1, 1 << 24, 1), "\"bias_ids\"");
  ExpectWrong(biases(1, 5, 100.5f), "logit_bias of id 5");
  ExpectWrong(biases(1, 5, std::numeric_limits<float>::quiet_NaN()), "logit_bias of id 5");
  ExpectWrong(admit([](v1::AdmitOrder& a) { a.mutable_sampling()->set_logprobs_plus_1(22); }), "\"logprobs_plus_1\"");
  EXPECT_TRUE(FromProto(admit([](v1::AdmitOrder& a) { a.mutable_sampling()->set_format(std::string(64 << 10, ' ')); })).ok());
  ExpectWrong(admit([](v1::AdmitOrder& a) { a.mutable_sampling()->set_format(std::string((64 << 10) + 1, ' ')); }), "\"format\"");
}

TEST(ConvertTest, PartsOfAVocabularyAreBounded) {
  const auto part = [](int64_t total, size_t bytes) {
    v1::OrderRequest request;
    request.mutable_vocabulary()->set_total_bytes(total);
    request.mutable_vocabulary()->set_data(std::string(bytes, 'a'));
    return request;
  };
  EXPECT_TRUE(FromProto(part(kMaxWireVocabulary, kMaxVocabularyPart)).ok());
  ExpectWrong(part(kMaxWireVocabulary + 1, 1), "\"total_bytes\"");
  ExpectWrong(part(0, 1), "\"total_bytes\"");
  ExpectWrong(part(9, 0), "\"data\"");
  ExpectWrong(part(kMaxWireVocabulary, kMaxVocabularyPart + 1), "\"data\"");
}

TEST(ConvertTest, TracesOutOfBoundsAreNamed) {
  v1::TraceRequest request;
  request.set_most(-1);
  ExpectWrong(request, "\"most\"");
  request.set_most(kMaxWireTraceSpans + 1);
  ExpectWrong(request, "\"most\"");
  const auto reply = [](auto fill) {
    v1::TraceReply message;
    message.set_received_ms(1), message.set_answered_ms(2);
    fill(message);
    return message;
  };
  const auto span = [&](auto fill) { return reply([&](v1::TraceReply& r) { fill(*r.add_spans()); }); };
  EXPECT_TRUE(FromProto(span([](v1::Span&) {})).ok());
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ExpectWrong(reply([](v1::TraceReply& r) { r.set_epoch(-2); }), "\"epoch\"");
  ExpectWrong(reply([&](v1::TraceReply& r) { r.set_received_ms(nan); }), "\"received_ms\"");
  ExpectWrong(reply([](v1::TraceReply& r) { r.set_answered_ms(0.5); }), "\"answered_ms\"");
  ExpectWrong(reply([](v1::TraceReply& r) { r.set_lost(-1); }), "\"lost\"");
  ExpectWrong(reply([](v1::TraceReply& r) {
                for (int64_t i = 0; i <= kMaxWireTraceSpans; ++i) r.add_spans();
              }),
              "\"spans\"");
  ExpectWrong(span([](v1::Span& s) { s.set_kind(TimelineSpan::kKinds); }), "\"kind\"");
  ExpectWrong(span([&](v1::Span& s) { s.set_begin_ms(nan); }), "\"begin_ms\"");
  ExpectWrong(span([](v1::Span& s) { s.set_begin_ms(2), s.set_end_ms(1); }), "\"end_ms\"");
  ExpectWrong(span([](v1::Span& s) { s.set_end_ms(kMaxWireClockMs * 2); }), "\"end_ms\"");
  ExpectWrong(span([](v1::Span& s) { s.set_step(-1); }), "\"step\"");
  ExpectWrong(span([](v1::Span& s) { s.set_stage_plus_1(-1); }), "\"stage_plus_1\"");
  ExpectWrong(span([](v1::Span& s) { s.set_microbatch_plus_1(1 << 20); }), "\"microbatch_plus_1\"");
  ExpectWrong(span([](v1::Span& s) { s.set_part_plus_1(-1); }), "\"part_plus_1\"");
  ExpectWrong(span([](v1::Span& s) { s.set_peer_plus_1(INT32_MAX); }), "\"peer_plus_1\"");
  v1::InstallRequest install;
  ToProto(InstallCall{.plan = MakeStages({0, 1, 2, 0}, 3, 2), .addresses = {"a:1", "", "[::1]:3"}}, install);
  install.set_trace_spans(kMaxTraceSpans + 1);
  ExpectWrong(install, "\"trace_spans\"");
}

TEST(ConvertTest, NewsOutOfBoundsIsNamed) {
  v1::OrderEvent event;
  ExpectWrong(event, "unknown kind");
  event.mutable_step_ended()->set_step(-1);
  ExpectWrong(event, "\"step\"");
  event.mutable_sampled();
  ExpectWrong(event, "\"tokens\"");
  event.mutable_sampled()->add_tokens()->set_token(-1);
  ExpectWrong(event, "\"token\"");
}

// `good` with one thing wrong.
template <typename Message, typename Fill>
void ExpectWrongWith(Message good, Fill fill, const std::string& about) {
  EXPECT_TRUE(FromProto(good).ok()) << FromProto(good).status();
  fill(good);
  ExpectWrong(good, about);
}

TEST(ConvertTest, MeasurementsOutOfBoundsAreNamed) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  v1::ProfileRequest request;
  ToProto(ProfileCall{}, request);
  for (const double seconds : {0.0, -1.0, 1e9, kNan, kInf})
    ExpectWrongWith(
        request, [&](auto& m) { m.set_seconds(seconds); }, "\"seconds\"");
  ExpectWrongWith(
      request, [](auto& m) { m.set_weights("a\nb"); }, "\"weights\"");
  ExpectWrongWith(
      request, [](auto& m) { m.set_config(std::string(kMaxWireConfigBytes + 1, ' ')); }, "\"config\"");
  v1::ProfileEvent event;
  ExpectWrong(event, "unknown kind");
  ToProto(ProfileNews(MeasuredDevice{.profile = SmallProfile(), .runtime = 5, .memory = 6}), event);
  ExpectWrongWith(
      event, [](auto& m) { m.mutable_profiled()->set_profile("{"); }, "the profile");
  ExpectWrongWith(
      event, [](auto& m) { m.mutable_profiled()->set_runtime_bytes(-1); }, "\"runtime_bytes\"");
  ExpectWrongWith(
      event, [](auto& m) { m.mutable_profiled()->set_memory_bytes(kHuge); }, "\"memory_bytes\"");
  ExpectWrongWith(
      event, [](auto& m) { m.mutable_profiled()->set_numerics_id("\x1b[2J"); }, "\"numerics_id\"");
  ExpectWrongWith(
      event, [](auto& m) { m.mutable_progress()->set_share(2); }, "\"share\"");
  v1::ProbeLinkRequest probe;
  ToProto(LinkProbe{.peer = "a", .address = "a:1"}, probe);
  ExpectWrongWith(
      probe, [](auto& m) { m.set_most_bytes(kHuge); }, "\"most_bytes\"");
  ExpectWrongWith(
      probe, [&](auto& m) { m.set_seconds(kNan); }, "\"seconds\"");
  ExpectWrongWith(
      probe, [](auto& m) { m.set_address(std::string(300, 'a')); }, "\"address\"");
  v1::ProbeLinkReply link;
  ToProto(MeasuredLink{.bytes_per_second = 1e6, .latency_ms = 1}, link);
  ExpectWrongWith(
      link, [](auto& m) { m.set_bytes_per_second(0); }, "\"bytes_per_second\"");
  ExpectWrongWith(
      link, [&](auto& m) { m.set_latency_ms(kInf); }, "\"latency_ms\"");
}

TEST(ConvertTest, AFailureIsOneWhateverItsCodeAndPrintsInOneLine) {
  v1::OrderEvent event;
  for (const int code : {0, -1, 17, 1000}) {
    event.mutable_failed()->set_code(code);
    event.mutable_failed()->set_message("two\nlines\x1b[2J");
    const absl::Status status = std::get<FailedNews>(*FromProto(event)).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
    EXPECT_EQ(status.message(), "two lines [2J");
  }
}

TEST(ConvertTest, InstallationsThatAreNoneAreNamed) {
  const InstallCall call{.plan = MakeStages({0, 1}, 1, 1), .device = 0, .addresses = {"a:1", "b:2", ""}};
  v1::InstallRequest good;
  ToProto(call, good);
  v1::InstallRequest bad = good;
  bad.clear_plan();
  ExpectWrong(bad, "\"plan\"");
  bad = good, bad.set_plan("{\"epoch\": 1}");
  ExpectWrong(bad, "the plan to install");
  bad = good, bad.set_device(-1);
  ExpectWrong(bad, "\"device\"");
  bad = good, bad.mutable_addresses()->RemoveLast();
  ExpectWrong(bad, "\"addresses\"");
  bad = good, bad.set_addresses(0, std::string(300, 'a'));
  ExpectWrong(bad, "\"addresses\"");
  bad = good, bad.set_weights(std::string("/data\0/x", 8));
  ExpectWrong(bad, "\"weights\"");
}

}  // namespace
}  // namespace lime
