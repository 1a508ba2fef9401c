// Messages that cannot be are refused, by name.
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lime/v1/bulk.pb.h"
#include "lime/v1/control.pb.h"
#include "proto/convert/convert.h"
#include "tests/daemon/rpc/fake_cluster.h"
#include "tests/proto/measured_profile.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

template <typename Message>
void ExpectWrong(const Message& message, const std::string& about) {
  const auto read = FromProto(message);
  EXPECT_TRUE(absl::IsInvalidArgument(read.status())) << about;
  EXPECT_THAT(std::string(read.status().message()), HasSubstr(about));
}

TEST(HostileConvertTest, ScoresOutOfBoundsAreNamed) {
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

TEST(HostileConvertTest, StatesOfHashesAreBoundedAndMayBeAbsent) {
  v1::OrderEvent event;
  v1::SampledToken& token = *event.mutable_sampled()->add_tokens();
  const auto read = FromProto(event);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(std::get<SampledNews>(*read).hash_states, std::vector<std::string>{""}) << "of an older release";
  token.set_hash_state(std::string(kMostHashState, 'x'));
  EXPECT_TRUE(FromProto(event).ok());
  token.set_hash_state(std::string(kMostHashState + 1, 'x'));
  ExpectWrong(event, "\"hash_state\"");
  v1::OrderRequest request;
  v1::AdmitOrder& admit = *request.mutable_order()->mutable_admit();
  admit.set_positions(1), admit.add_prompt(1);
  v1::Sampling& sampling = *admit.mutable_sampling();
  sampling.set_repetition_penalty(1), sampling.set_top_p(1), sampling.set_hash_state(std::string(kMostHashState, 'x'));
  EXPECT_TRUE(FromProto(request).ok()) << FromProto(request).status();
  sampling.set_hash_state(std::string(kMostHashState + 1, 'x'));
  ExpectWrong(request, "\"hash_state\"");
}

TEST(HostileConvertTest, NumbersOutOfBoundsAreNamed) {
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
TEST(HostileConvertTest, OrdersOfThisProtocolHaveTheseFields) {
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

TEST(HostileConvertTest, OrdersOutOfBoundsAreNamed) {
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
  ExpectWrong(admit([](v1::AdmitOrder& a) { a.set_positions(kMost); }), "\"positions\"");
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

TEST(HostileConvertTest, PartsOfAVocabularyAreBounded) {
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

TEST(HostileConvertTest, TracesOutOfBoundsAreNamed) {
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

TEST(HostileConvertTest, NewsOutOfBoundsIsNamed) {
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

TEST(HostileConvertTest, MeasurementsOutOfBoundsAreNamed) {
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
  ToProto(ProfileNews(MeasuredDevice{.profile = MeasuredProfile(), .runtime = 5, .memory = 6}), event);
  ExpectWrongWith(
      event, [](auto& m) { m.mutable_profiled()->set_profile("{"); }, "the profile");
  ExpectWrongWith(
      event, [](auto& m) { m.mutable_profiled()->set_runtime_bytes(-1); }, "\"runtime_bytes\"");
  ExpectWrongWith(
      event, [](auto& m) { m.mutable_profiled()->set_memory_bytes(kMost); }, "\"memory_bytes\"");
  ExpectWrongWith(
      event, [](auto& m) { m.mutable_profiled()->set_numerics_id("\x1b[2J"); }, "\"numerics_id\"");
  ExpectWrongWith(
      event, [](auto& m) { m.mutable_progress()->set_share(2); }, "\"share\"");
  v1::ProbeLinkRequest probe;
  ToProto(LinkProbe{.peer = "a", .address = "a:1"}, probe);
  ExpectWrongWith(
      probe, [](auto& m) { m.set_most_bytes(kMost); }, "\"most_bytes\"");
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

TEST(HostileConvertTest, AFailureIsOneWhateverItsCodeAndPrintsInOneLine) {
  v1::OrderEvent event;
  for (const int code : {0, -1, 17, 1000}) {
    event.mutable_failed()->set_code(code);
    event.mutable_failed()->set_message("two\nlines\x1b[2J");
    const absl::Status status = std::get<FailedNews>(*FromProto(event)).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
    EXPECT_EQ(status.message(), "two lines [2J");
  }
}

TEST(HostileConvertTest, InstallationsThatAreNoneAreNamed) {
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
