#include "proto/convert.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "planner/base/strings.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/instance.h"
#include "planner/plan/limits.h"
#include "proto/fields.h"
#include "proto/kv_convert.h"
#include "proto/weights_convert.h"

namespace lime {
namespace {

constexpr int64_t kMaxCount = std::numeric_limits<int64_t>::max();
constexpr size_t kMaxName = 512, kMaxDiskProblem = 8192;
constexpr double kLeastSeconds = 0.01, kMaxProbeSeconds = 60;
constexpr double kMaxUseSeconds = 1e9;  // thirty years
constexpr int32_t kMaxWireThreads = 1 << 20;

using fields::Printable;
using fields::Within;
using fields::Wrong;

absl::Status Milliseconds(const char* field, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return Wrong("field \"", field, "\" = ", value, " is no time");
}

absl::Status Between(const char* field, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();  // not of a NaN
  return Wrong("field \"", field, "\" = ", value, " is outside ", low, " to ", high);
}

// What another program says of an error goes on a terminal.
std::string Sentence(std::string_view text) {
  std::string sentence(text.substr(0, kMaxWireSentence));
  std::ranges::replace_if(
      sentence, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
  return sentence;
}

// Protobuf's strings are UTF-8, and an error may quote bytes of a file that are not.
std::string Ascii(std::string_view text) {
  std::string sentence = Sentence(text);
  std::ranges::replace_if(
      sentence, [](char c) { return static_cast<unsigned char>(c) > 0x7f; }, '?');
  return sentence;
}

void CoordinatorToProto(const Coordinator& coordinator, v1::Coordinator& message) {
  message.set_user(Ascii(coordinator.user));
  message.set_host(Ascii(coordinator.host));
  message.set_id(coordinator.id);
}

absl::StatusOr<Coordinator> CoordinatorFromProto(const v1::Coordinator& message) {
  LIME_RETURN_IF_ERROR(Printable("user", message.user(), kMaxName));
  LIME_RETURN_IF_ERROR(Printable("host", message.host(), kMaxName));
  return Coordinator{.user = message.user(), .host = message.host(), .id = message.id()};
}

void UserToProto(const PlanUser& user, v1::PlanUser& message) {
  CoordinatorToProto(user.coordinator, *message.mutable_coordinator());
  message.set_address(Ascii(user.address));
  message.set_seconds(user.seconds);
}

absl::StatusOr<PlanUser> UserFromProto(const v1::PlanUser& message) {
  PlanUser user{.address = message.address(), .seconds = message.seconds()};
  LIME_ASSIGN_OR_RETURN(user.coordinator, CoordinatorFromProto(message.coordinator()));
  LIME_RETURN_IF_ERROR(Printable("address", message.address(), kMaxWireAddress));
  LIME_RETURN_IF_ERROR(Between("seconds", message.seconds(), 0, kMaxUseSeconds));
  return user;
}

void SettingsToProto(const DaemonSettings& settings, v1::DaemonSettings& message) {
  message.set_listen(Sentence(settings.listen));
  message.set_weights(Sentence(settings.weights));
  message.set_store(Sentence(settings.store));
  message.set_tls(Sentence(settings.tls));
  message.set_threads(settings.threads);
  message.set_backend(Ascii(settings.backend));
  message.set_cluster(Ascii(settings.cluster));
  message.set_user(Ascii(settings.user));
  message.set_process(settings.process);
}

absl::StatusOr<DaemonSettings> SettingsFromProto(const v1::DaemonSettings& message) {
  for (const std::string* const path : {&message.listen(), &message.weights(), &message.store(), &message.tls()})
    LIME_RETURN_IF_ERROR(Printable("settings", *path, kMaxWirePath));
  LIME_RETURN_IF_ERROR(Printable("backend", message.backend(), kMaxName));
  LIME_RETURN_IF_ERROR(Printable("cluster", message.cluster(), kMaxName));
  LIME_RETURN_IF_ERROR(Printable("user", message.user(), kMaxName));
  LIME_RETURN_IF_ERROR(Within("threads", message.threads(), 0, kMaxWireThreads));
  LIME_RETURN_IF_ERROR(Within("process", message.process(), 0, kMaxCount));
  return DaemonSettings{.listen = message.listen(),
                        .weights = message.weights(),
                        .store = message.store(),
                        .tls = message.tls(),
                        .threads = message.threads(),
                        .backend = message.backend().empty() ? kCpuBackend : message.backend(),
                        .cluster = message.cluster(),
                        .user = message.user(),
                        .process = message.process()};
}

void RowToProto(const BatchRow& row, v1::Row& message) {
  message.set_sequence(row.sequence);
  message.set_token(row.token);
  message.set_position(row.position);
  message.set_parent_plus_1(row.parent + 1);
  message.set_wants_logits(row.wants_logits);
}

// `index`: of the row, which follows its parent.
absl::StatusOr<BatchRow> RowFromProto(const v1::Row& message, int index) {
  LIME_RETURN_IF_ERROR(Within("sequence", message.sequence(), 0, kMaxWireSequences - 1));
  LIME_RETURN_IF_ERROR(Within("token", message.token(), kSampledToken, kMaxWirePosition - 1));
  LIME_RETURN_IF_ERROR(Within("position", message.position(), 0, kMaxWirePosition - 1));
  LIME_RETURN_IF_ERROR(Within("parent_plus_1", message.parent_plus_1(), 0, index));
  return BatchRow{.sequence = message.sequence(),
                  .token = message.token(),
                  .position = message.position(),
                  .parent = message.parent_plus_1() - 1,
                  .wants_logits = message.wants_logits()};
}

absl::StatusOr<StepOrder> StepFromProto(const v1::StepOrder& message) {
  LIME_RETURN_IF_ERROR(Within("microbatches", message.microbatches_size(), 1, kMaxMicrobatches));
  int64_t rows = 0;
  for (const v1::MicroBatch& batch : message.microbatches()) rows += batch.rows_size();
  LIME_RETURN_IF_ERROR(Within("rows", rows, 0, kMaxWireRows));
  StepOrder step;
  for (const v1::MicroBatch& batch : message.microbatches()) {
    MicroBatch& into = step.microbatches.emplace_back();
    for (const v1::Row& row : batch.rows()) {
      LIME_ASSIGN_OR_RETURN(const BatchRow read, RowFromProto(row, static_cast<int>(into.rows.size())));
      into.rows.push_back(read);
    }
  }
  return step;
}

absl::StatusOr<AdmitOrder> AdmitFromProto(const v1::AdmitOrder& message) {
  LIME_RETURN_IF_ERROR(Within("sequence", message.sequence(), 0, kMaxWireSequences - 1));
  LIME_RETURN_IF_ERROR(Within("request", message.request(), 0, kMaxCount));
  LIME_RETURN_IF_ERROR(Within("positions", message.positions(), 1, kMaxWirePosition));
  LIME_RETURN_IF_ERROR(Within("prompt", message.prompt_size(), 1, message.positions()));
  for (const int32_t token : message.prompt()) LIME_RETURN_IF_ERROR(Within("prompt", token, 0, kMaxWirePosition - 1));
  LIME_RETURN_IF_ERROR(Within("computed", message.computed(), 0, message.prompt_size()));
  return AdmitOrder{.sequence = message.sequence(),
                    .request = message.request(),
                    .positions = message.positions(),
                    .prompt = {message.prompt().begin(), message.prompt().end()},
                    .computed = message.computed()};
}

absl::StatusOr<ResidencyOrder> ResidencyFromProto(const v1::ResidencyOrder& message) {
  LIME_RETURN_IF_ERROR(Within("layer_pages", message.layer_pages(), 0, kMaxWireSequences * kMaxWirePosition));
  LIME_RETURN_IF_ERROR(Within("streamed", message.streamed_size(), 0, kMaxPlanBlocks));
  int32_t least = 0;
  for (const int32_t part : message.streamed()) {
    LIME_RETURN_IF_ERROR(Within("streamed", part, least, kMaxPlanBlocks - 1));
    least = part + 1;
  }
  return ResidencyOrder{{.layer_pages = message.layer_pages(), .streamed = {message.streamed().begin(), message.streamed().end()}}};
}

void SamplingToProto(const RequestSampling& sampling, v1::Sampling& message) {
  message.set_repetition_penalty(sampling.params.repetition_penalty);
  message.set_temperature(sampling.params.temperature);
  message.set_top_k(sampling.params.top_k);
  message.set_top_p(sampling.params.top_p);
  message.set_min_p(sampling.params.min_p);
  message.set_seed(sampling.params.seed);
  message.set_hash_logits(sampling.hash_logits);
  message.set_hash_state(sampling.hash_state);
  if (sampling.choice) message.set_choice(*sampling.choice);
  message.set_score_top_plus_1(sampling.score_top ? *sampling.score_top + 1 : 0);
}

absl::StatusOr<RequestSampling> SamplingFromProto(const v1::Sampling& message) {
  RequestSampling sampling{.params = {.repetition_penalty = message.repetition_penalty(),
                                      .temperature = message.temperature(),
                                      .top_k = message.top_k(),
                                      .top_p = message.top_p(),
                                      .min_p = message.min_p(),
                                      .seed = message.seed()},
                           .hash_logits = message.hash_logits(),
                           .hash_state = message.hash_state()};
  LIME_RETURN_IF_ERROR(ValidateSamplingParams(sampling.params));
  LIME_RETURN_IF_ERROR(Within("score_top_plus_1", message.score_top_plus_1(), 0, kMostScoreTop + 1));
  if (message.has_choice()) sampling.choice = message.choice();
  if (message.score_top_plus_1() > 0) sampling.score_top = message.score_top_plus_1() - 1;
  return sampling;
}

void OrderToProto(const OrderMessage& what, v1::Order& message) {
  message.set_number(what.order.number);
  if (const auto* admit = std::get_if<AdmitOrder>(&what.order.what)) {
    v1::AdmitOrder& into = *message.mutable_admit();
    into.set_sequence(admit->sequence);
    into.set_request(admit->request);
    into.set_positions(admit->positions);
    into.mutable_prompt()->Add(admit->prompt.begin(), admit->prompt.end());
    into.set_computed(admit->computed);
    SamplingToProto(what.sampling, *into.mutable_sampling());
  } else if (const auto* retire = std::get_if<RetireOrder>(&what.order.what)) {
    message.mutable_retire()->set_sequence(retire->sequence);
  } else if (const auto* residency = std::get_if<ResidencyOrder>(&what.order.what)) {
    v1::ResidencyOrder& into = *message.mutable_residency();
    into.set_layer_pages(residency->to.layer_pages);
    into.mutable_streamed()->Add(residency->to.streamed.begin(), residency->to.streamed.end());
  } else {
    v1::StepOrder& into = *message.mutable_step();
    for (const MicroBatch& batch : std::get<StepOrder>(what.order.what).microbatches) {
      v1::MicroBatch& rows = *into.add_microbatches();
      for (const BatchRow& row : batch.rows) RowToProto(row, *rows.add_rows());
    }
  }
}

absl::StatusOr<OrderMessage> OrderFromProto(const v1::Order& message) {
  LIME_RETURN_IF_ERROR(Within("number", message.number(), 0, kMaxCount));
  OrderMessage what{.order = {.number = message.number()}};
  switch (message.what_case()) {
    case v1::Order::kAdmit: {
      LIME_ASSIGN_OR_RETURN(what.order.what, AdmitFromProto(message.admit()));
      LIME_ASSIGN_OR_RETURN(what.sampling, SamplingFromProto(message.admit().sampling()));
      return what;
    }
    case v1::Order::kRetire:
      LIME_RETURN_IF_ERROR(Within("sequence", message.retire().sequence(), 0, kMaxWireSequences - 1));
      what.order.what = RetireOrder{message.retire().sequence()};
      return what;
    case v1::Order::kStep: {
      LIME_ASSIGN_OR_RETURN(what.order.what, StepFromProto(message.step()));
      return what;
    }
    case v1::Order::kResidency: {
      LIME_ASSIGN_OR_RETURN(what.order.what, ResidencyFromProto(message.residency()));
      return what;
    }
    case v1::Order::WHAT_NOT_SET:
      break;
  }
  return Wrong("an order of a kind that is not known; run the same release everywhere");
}

void ScoreToProto(const cpu::RowScore& score, v1::Score& message) {
  if (score.logprob) message.set_logprob(*score.logprob);
  for (const auto& [id, logit] : score.top) {
    message.add_top_ids(id);
    message.add_top_logits(logit);
  }
}

absl::StatusOr<cpu::RowScore> ScoreFromProto(const v1::Score& message) {
  LIME_RETURN_IF_ERROR(Within("top_ids", message.top_ids_size(), 0, kMostScoreTop));
  if (message.top_logits_size() != message.top_ids_size())
    return Wrong(absl::StrCat(message.top_ids_size(), " likeliest ids with ", message.top_logits_size(), " logits"));
  cpu::RowScore score;
  if (message.has_logprob()) score.logprob = message.logprob();
  if (score.logprob && std::isnan(*score.logprob)) return Wrong("a log-probability that is no number");
  for (int i = 0; i < message.top_ids_size(); ++i) {
    LIME_RETURN_IF_ERROR(Within("top_ids", message.top_ids(i), 0, kMaxWirePosition - 1));
    if (std::isnan(message.top_logits(i))) return Wrong("a logit that is no number");
    score.top.emplace_back(message.top_ids(i), message.top_logits(i));
  }
  return score;
}

void SampledToProto(const SampledNews& news, v1::Sampled& message) {
  message.set_step(news.step);
  message.set_ends_step(news.ends_step);
  for (size_t i = 0; i < news.tokens.size(); ++i) {
    v1::SampledToken& token = *message.add_tokens();
    token.set_sequence(news.tokens[i].sequence);
    token.set_position(news.tokens[i].position);
    token.set_token(news.tokens[i].token);
    if (i < news.logits_hashes.size()) token.set_logits_xxh3(news.logits_hashes[i]);
    if (i < news.scores.size() && news.scores[i]) ScoreToProto(*news.scores[i], *token.mutable_score());
  }
}

absl::StatusOr<SampledNews> SampledFromProto(const v1::Sampled& message) {
  LIME_RETURN_IF_ERROR(Within("step", message.step(), 0, kMaxCount));
  LIME_RETURN_IF_ERROR(Within("tokens", message.tokens_size(), 1, kMaxWireRows));
  SampledNews news{.step = message.step(), .ends_step = message.ends_step()};
  for (const v1::SampledToken& token : message.tokens()) {
    LIME_RETURN_IF_ERROR(Within("sequence", token.sequence(), 0, kMaxWireSequences - 1));
    LIME_RETURN_IF_ERROR(Within("position", token.position(), 0, kMaxWirePosition));
    LIME_RETURN_IF_ERROR(Within("token", token.token(), 0, kMaxWirePosition - 1));
    news.tokens.push_back({.sequence = token.sequence(), .position = token.position(), .token = token.token()});
    news.logits_hashes.push_back(token.logits_xxh3());
    news.scores.emplace_back();
    if (!token.has_score()) continue;
    LIME_ASSIGN_OR_RETURN(news.scores.back(), ScoreFromProto(token.score()));
  }
  return news;
}

void SpanToProto(const TimelineSpan& span, v1::Span& message) {
  message.set_kind(static_cast<uint32_t>(span.kind));
  message.set_begin_ms(span.begin_ms);
  message.set_end_ms(span.end_ms);
  message.set_step(span.step);
  message.set_stage_plus_1(span.stage + 1);
  message.set_microbatch_plus_1(span.microbatch + 1);
  message.set_part_plus_1(span.part + 1);
  message.set_peer_plus_1(span.peer + 1);
}

absl::StatusOr<TimelineSpan> SpanFromProto(const v1::Span& message) {
  LIME_RETURN_IF_ERROR(Within("kind", message.kind(), 0, TimelineSpan::kKinds - 1));
  LIME_RETURN_IF_ERROR(Between("begin_ms", message.begin_ms(), 0, kMaxWireClockMs));
  LIME_RETURN_IF_ERROR(Between("end_ms", message.end_ms(), message.begin_ms(), kMaxWireClockMs));
  LIME_RETURN_IF_ERROR(Within("step", message.step(), 0, std::numeric_limits<int32_t>::max()));
  LIME_RETURN_IF_ERROR(Within("stage_plus_1", message.stage_plus_1(), 0, kMaxPlanBlocks));
  LIME_RETURN_IF_ERROR(Within("microbatch_plus_1", message.microbatch_plus_1(), 0, kMaxMicrobatches));
  LIME_RETURN_IF_ERROR(Within("part_plus_1", message.part_plus_1(), 0, kMaxPlanBlocks));
  LIME_RETURN_IF_ERROR(Within("peer_plus_1", message.peer_plus_1(), 0, kMaxPlanDevices));
  return TimelineSpan{.kind = static_cast<TimelineSpan::Kind>(message.kind()),
                      .begin_ms = message.begin_ms(),
                      .end_ms = message.end_ms(),
                      .step = message.step(),
                      .stage = message.stage_plus_1() - 1,
                      .microbatch = message.microbatch_plus_1() - 1,
                      .part = message.part_plus_1() - 1,
                      .peer = message.peer_plus_1() - 1};
}

// An error whose code is none is an error all the same.
absl::Status FailureFromProto(const v1::Failed& message) {
  const bool known =
      message.code() > static_cast<int>(absl::StatusCode::kOk) && message.code() <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  const auto code = known ? static_cast<absl::StatusCode>(message.code()) : absl::StatusCode::kUnknown;
  return absl::Status(code, Text(Sentence(message.message())));
}

}  // namespace

std::string PlanUser::Name() const {
  std::string who = coordinator.user.empty() ? "somebody" : coordinator.user;
  if (!coordinator.host.empty()) absl::StrAppend(&who, "@", coordinator.host);
  if (!address.empty()) absl::StrAppend(&who, " (", address, ")");
  return who;
}

std::string PlanUser::Who() const {
  const absl::Duration age = absl::Seconds(seconds);
  return absl::StrCat(Name(), ", for ",
                      absl::FormatDuration(absl::Trunc(age, age < absl::Minutes(10) ? absl::Seconds(1) : absl::Minutes(1))));
}

std::string PeerAddress(std::string_view peer) {
  const size_t colon = peer.find(':');
  const std::string_view scheme = peer.substr(0, colon);
  const bool ip = colon != std::string_view::npos && (scheme == "ipv4" || scheme == "ipv6");
  std::string address = Ascii(ip ? peer.substr(colon + 1) : peer);
  return absl::StrReplaceAll(address, {{"%5B", "["}, {"%5D", "]"}}).substr(0, kMaxWireAddress);
}

void ToProto(const DeviceHealth& health, v1::HealthReply& message) {
  message.set_name(health.name);
  message.set_protocol(health.protocol);
  message.set_epoch(health.epoch);
  message.set_last_epoch(health.last_epoch);
  message.set_memory_bytes(health.memory);
  message.set_runtime_bytes(health.runtime);
  message.set_model(Ascii(health.model));
  if (health.used_by) UserToProto(*health.used_by, *message.mutable_used_by());
  if (health.settings) SettingsToProto(*health.settings, *message.mutable_settings());
  message.set_release(Ascii(health.release));
  message.set_clock(health.clock);
}

absl::StatusOr<DeviceHealth> FromProto(const v1::HealthReply& message) {
  LIME_RETURN_IF_ERROR(Printable("name", message.name(), kMaxName));
  LIME_RETURN_IF_ERROR(Within("epoch", message.epoch(), -1, kMaxCount));
  LIME_RETURN_IF_ERROR(Within("last_epoch", message.last_epoch(), 0, kMaxCount));
  LIME_RETURN_IF_ERROR(Within("memory_bytes", message.memory_bytes(), 0, kMaxCount));
  LIME_RETURN_IF_ERROR(Within("runtime_bytes", message.runtime_bytes(), 0, kMaxCount));
  LIME_RETURN_IF_ERROR(Printable("model", message.model(), kMaxName));
  LIME_RETURN_IF_ERROR(Printable("release", message.release(), kMaxName));
  LIME_RETURN_IF_ERROR(Within("clock", message.clock(), 0, kMaxCount));
  DeviceHealth health{.name = message.name(),
                      .protocol = message.protocol(),
                      .epoch = message.epoch(),
                      .last_epoch = message.last_epoch(),
                      .memory = message.memory_bytes(),
                      .runtime = message.runtime_bytes(),
                      .model = message.model(),
                      .release = message.release(),
                      .clock = message.clock()};
  if (message.has_used_by()) {
    LIME_ASSIGN_OR_RETURN(health.used_by, UserFromProto(message.used_by()));
  }
  if (message.has_settings()) {
    LIME_ASSIGN_OR_RETURN(health.settings, SettingsFromProto(message.settings()));
  }
  return health;
}

void ToProto(const ReleaseCall& call, v1::ReleaseRequest& message) {
  message.set_force(call.force);
  CoordinatorToProto(call.by, *message.mutable_by());
}

absl::StatusOr<ReleaseCall> FromProto(const v1::ReleaseRequest& message) {
  ReleaseCall call{.force = message.force()};
  LIME_ASSIGN_OR_RETURN(call.by, CoordinatorFromProto(message.by()));
  return call;
}

void ToProto(const ReleasedPlan& released, v1::ReleaseReply& message) {
  message.set_epoch(released.epoch);
  message.set_model(Ascii(released.model));
  if (released.used_by) UserToProto(*released.used_by, *message.mutable_used_by());
}

absl::StatusOr<ReleasedPlan> FromProto(const v1::ReleaseReply& message) {
  LIME_RETURN_IF_ERROR(Within("epoch", message.epoch(), -1, kMaxCount));
  LIME_RETURN_IF_ERROR(Printable("model", message.model(), kMaxName));
  ReleasedPlan released{.epoch = message.epoch(), .model = message.model()};
  if (message.has_used_by()) {
    LIME_ASSIGN_OR_RETURN(released.used_by, UserFromProto(message.used_by()));
  }
  return released;
}

void ToProto(const InstallCall& call, v1::InstallRequest& message) {
  message.set_plan(ToJsonText(call.plan));
  message.set_device(call.device);
  for (const std::string& address : call.addresses) message.add_addresses(address);
  message.set_weights(call.weights);
  message.set_model(call.model);
  message.set_trace_spans(call.trace_spans);
  if (call.kv) ToProto(*call.kv, *message.mutable_kv());
  CoordinatorToProto(call.coordinator, *message.mutable_coordinator());
  if (call.digest) ToProto(*call.digest, *message.mutable_weights_digest());
}

absl::StatusOr<InstallCall> FromProto(const v1::InstallRequest& message) {
  LIME_RETURN_IF_ERROR(Within("plan", static_cast<int64_t>(message.plan().size()), 1, kMaxPlanBytes));
  LIME_RETURN_IF_ERROR(Printable("weights", message.weights(), kMaxWirePath));
  LIME_RETURN_IF_ERROR(Within("trace_spans", message.trace_spans(), 0, kMaxTraceSpans));
  InstallCall call{
      .device = message.device(), .weights = message.weights(), .model = message.model(), .trace_spans = message.trace_spans()};
  LIME_ASSIGN_OR_RETURN(call.coordinator, CoordinatorFromProto(message.coordinator()));
  LIME_ASSIGN_OR_RETURN(call.plan, ParsePlan(message.plan(), "the plan to install"));
  LIME_RETURN_IF_ERROR(Within("device", message.device(), 0, call.plan.NumDevices() - 1));
  LIME_RETURN_IF_ERROR(Within("addresses", message.addresses_size(), call.plan.NumDevices(), call.plan.NumDevices()));
  for (const std::string& address : message.addresses()) {
    LIME_RETURN_IF_ERROR(Printable("addresses", address, kMaxWireAddress));
    call.addresses.push_back(address);
  }
  if (message.has_kv()) {
    LIME_ASSIGN_OR_RETURN(call.kv, KvTakeFromProto(message.kv(), call.plan));
  }
  if (message.has_weights_digest()) {
    LIME_ASSIGN_OR_RETURN(call.digest, FromProto(message.weights_digest()));
  }
  return call;
}

void ToProto(const InstallNews& news, v1::InstallEvent& message) {
  if (const auto* progress = std::get_if<LoadedBytes>(&news)) {
    message.mutable_progress()->set_done_bytes(progress->done);
    message.mutable_progress()->set_total_bytes(progress->total);
  } else {
    message.mutable_installed()->set_numerics_id(std::get<InstalledPlan>(news).numerics_id);
    message.mutable_installed()->set_resident_bytes(std::get<InstalledPlan>(news).resident);
  }
}

absl::StatusOr<InstallNews> FromProto(const v1::InstallEvent& message) {
  if (message.has_progress()) {
    const v1::LoadProgress& progress = message.progress();
    LIME_RETURN_IF_ERROR(Within("total_bytes", progress.total_bytes(), 0, kMaxCount));
    LIME_RETURN_IF_ERROR(Within("done_bytes", progress.done_bytes(), 0, progress.total_bytes()));
    return LoadedBytes{progress.done_bytes(), progress.total_bytes()};
  }
  if (!message.has_installed()) return Wrong("news of an installation of a kind that is not known; run the same release everywhere");
  LIME_RETURN_IF_ERROR(Printable("numerics_id", message.installed().numerics_id(), kMaxName));
  LIME_RETURN_IF_ERROR(Within("resident_bytes", message.installed().resident_bytes(), 0, kMaxCount));
  return InstalledPlan{message.installed().numerics_id(), message.installed().resident_bytes()};
}

void ToProto(const DeviceStatistics& statistics, v1::StatisticsReply& message) {
  message.set_epoch(statistics.epoch);
  message.set_steps(statistics.steps);
  message.set_bytes_read(statistics.bytes_read);
  message.set_compute_ms(statistics.compute_ms);
  message.set_wait_weights_ms(statistics.wait_weights_ms);
  message.set_wait_input_ms(statistics.wait_input_ms);
  message.set_decode_ms(statistics.decode_ms);
  message.set_planned_decode_ms(statistics.planned_decode_ms);
  message.set_disk_ms(statistics.disk_ms);
  message.set_disk_bytes(statistics.disk_bytes);
  if (statistics.kv_room) message.set_kv_room(*statistics.kv_room);
  message.set_kv_written(statistics.kv_written);
  message.set_kv_read(statistics.kv_read);
  message.set_kv_fetched(statistics.kv_fetched);
  message.set_residency_changes(statistics.residency_changes);
  message.set_sent_messages(statistics.sent_messages);
  message.set_sent_bytes(statistics.sent_bytes);
  message.set_received_messages(statistics.received_messages);
  message.set_received_bytes(statistics.received_bytes);
  message.set_peak_resident_bytes(statistics.peak_resident);
  for (const LinkRate& link : statistics.links) {
    v1::LinkRate& into = *message.add_links();
    into.set_peer(Ascii(link.peer));
    into.set_bytes_per_second(link.bytes_per_second);
    into.set_age_ms(link.age_ms);
  }
}

absl::StatusOr<DeviceStatistics> FromProto(const v1::StatisticsReply& message) {
  LIME_RETURN_IF_ERROR(Within("epoch", message.epoch(), -1, kMaxCount));
  for (const auto& [field, value] :
       {std::pair("steps", message.steps()), std::pair("bytes_read", message.bytes_read()),
        std::pair("sent_messages", message.sent_messages()), std::pair("sent_bytes", message.sent_bytes()),
        std::pair("received_messages", message.received_messages()), std::pair("received_bytes", message.received_bytes()),
        std::pair("peak_resident_bytes", message.peak_resident_bytes()), std::pair("residency_changes", message.residency_changes()),
        std::pair("kv_written", message.kv_written()), std::pair("kv_read", message.kv_read()),
        std::pair("kv_fetched", message.kv_fetched()), std::pair("disk_bytes", message.disk_bytes())}) {
    LIME_RETURN_IF_ERROR(Within(field, value, 0, kMaxCount));
  }
  LIME_RETURN_IF_ERROR(Within("kv_room", message.kv_room(), -kMaxCount, kMaxCount));
  LIME_RETURN_IF_ERROR(Milliseconds("compute_ms", message.compute_ms()));
  LIME_RETURN_IF_ERROR(Milliseconds("wait_weights_ms", message.wait_weights_ms()));
  LIME_RETURN_IF_ERROR(Milliseconds("wait_input_ms", message.wait_input_ms()));
  LIME_RETURN_IF_ERROR(Milliseconds("decode_ms", message.decode_ms()));
  LIME_RETURN_IF_ERROR(Milliseconds("planned_decode_ms", message.planned_decode_ms()));
  LIME_RETURN_IF_ERROR(Milliseconds("disk_ms", message.disk_ms()));
  LIME_RETURN_IF_ERROR(Within("links", message.links_size(), 0, kMaxPlanDevices));
  std::vector<LinkRate> links;
  for (const v1::LinkRate& link : message.links()) {
    LIME_RETURN_IF_ERROR(Printable("peer", link.peer(), kMaxName));
    LIME_RETURN_IF_ERROR(Between("bytes_per_second", link.bytes_per_second(), 0, kMaxBytesPerSecond));
    LIME_RETURN_IF_ERROR(Milliseconds("age_ms", link.age_ms()));
    links.push_back({.peer = link.peer(), .bytes_per_second = link.bytes_per_second(), .age_ms = link.age_ms()});
  }
  return DeviceStatistics{.epoch = message.epoch(),
                          .steps = message.steps(),
                          .bytes_read = message.bytes_read(),
                          .kv_written = message.kv_written(),
                          .kv_read = message.kv_read(),
                          .kv_fetched = message.kv_fetched(),
                          .compute_ms = message.compute_ms(),
                          .wait_weights_ms = message.wait_weights_ms(),
                          .wait_input_ms = message.wait_input_ms(),
                          .decode_ms = message.decode_ms(),
                          .planned_decode_ms = message.planned_decode_ms(),
                          .disk_ms = message.disk_ms(),
                          .disk_bytes = message.disk_bytes(),
                          .kv_room = message.has_kv_room() ? std::optional(message.kv_room()) : std::nullopt,
                          .sent_messages = message.sent_messages(),
                          .sent_bytes = message.sent_bytes(),
                          .received_messages = message.received_messages(),
                          .received_bytes = message.received_bytes(),
                          .peak_resident = message.peak_resident_bytes(),
                          .residency_changes = message.residency_changes(),
                          .links = std::move(links)};
}

void ToProto(const TraceCall& call, v1::TraceRequest& message) {
  message.set_most(call.most);
}

absl::StatusOr<TraceCall> FromProto(const v1::TraceRequest& message) {
  LIME_RETURN_IF_ERROR(Within("most", message.most(), 0, kMaxWireTraceSpans));
  return TraceCall{.most = message.most()};
}

void ToProto(const TraceChunk& chunk, v1::TraceReply& message) {
  message.set_epoch(chunk.epoch);
  message.set_received_ms(chunk.received_ms);
  message.set_answered_ms(chunk.answered_ms);
  message.set_lost(chunk.lost);
  for (const TimelineSpan& span : chunk.spans) SpanToProto(span, *message.add_spans());
}

absl::StatusOr<TraceChunk> FromProto(const v1::TraceReply& message) {
  LIME_RETURN_IF_ERROR(Within("epoch", message.epoch(), -1, kMaxCount));
  LIME_RETURN_IF_ERROR(Between("received_ms", message.received_ms(), 0, kMaxWireClockMs));
  LIME_RETURN_IF_ERROR(Between("answered_ms", message.answered_ms(), message.received_ms(), kMaxWireClockMs));
  LIME_RETURN_IF_ERROR(Within("lost", message.lost(), 0, kMaxCount));
  LIME_RETURN_IF_ERROR(Within("spans", message.spans_size(), 0, kMaxWireTraceSpans));
  TraceChunk chunk{
      .epoch = message.epoch(), .received_ms = message.received_ms(), .answered_ms = message.answered_ms(), .lost = message.lost()};
  chunk.spans.reserve(static_cast<size_t>(message.spans_size()));
  for (const v1::Span& span : message.spans()) {
    LIME_ASSIGN_OR_RETURN(const TimelineSpan read, SpanFromProto(span));
    chunk.spans.push_back(read);
  }
  return chunk;
}

void ToProto(const ProfileCall& call, v1::ProfileRequest& message) {
  message.set_weights(call.weights);
  message.set_config(call.config);
  message.set_seconds(call.seconds);
}

absl::StatusOr<ProfileCall> FromProto(const v1::ProfileRequest& message) {
  LIME_RETURN_IF_ERROR(Printable("weights", message.weights(), kMaxWirePath));
  LIME_RETURN_IF_ERROR(Within("config", static_cast<int64_t>(message.config().size()), 0, kMaxWireConfigBytes));
  LIME_RETURN_IF_ERROR(Between("seconds", message.seconds(), kLeastSeconds, kMaxProfileSeconds));
  return ProfileCall{.weights = message.weights(), .config = message.config(), .seconds = message.seconds()};
}

void ToProto(const ProfileNews& news, v1::ProfileEvent& message) {
  if (const auto* progress = std::get_if<ProfileProgress>(&news)) {
    message.mutable_progress()->set_what(progress->what);
    message.mutable_progress()->set_share(progress->share);
    return;
  }
  const auto& measured = std::get<MeasuredDevice>(news);
  v1::Profiled& into = *message.mutable_profiled();
  into.set_profile(ToJsonText(measured.profile));
  into.set_runtime_bytes(measured.runtime);
  into.set_memory_bytes(measured.memory);
  into.set_numerics_id(measured.numerics_id);
  into.set_disk_problem(measured.disk_problem.substr(0, kMaxDiskProblem));
}

absl::StatusOr<ProfileNews> FromProto(const v1::ProfileEvent& message) {
  if (message.what_case() == v1::ProfileEvent::kProgress) {
    LIME_RETURN_IF_ERROR(Printable("what", message.progress().what(), kMaxName));
    LIME_RETURN_IF_ERROR(Between("share", message.progress().share(), 0, 1));
    return ProfileProgress{.what = message.progress().what(), .share = message.progress().share()};
  }
  if (message.what_case() != v1::ProfileEvent::kProfiled)
    return Wrong("news of a measurement that is not known here; run the same release everywhere");
  const v1::Profiled& profiled = message.profiled();
  LIME_RETURN_IF_ERROR(Within("profile", static_cast<int64_t>(profiled.profile().size()), 0, kMaxProfileBytes));
  LIME_RETURN_IF_ERROR(Within("runtime_bytes", profiled.runtime_bytes(), 0, kMaxDeviceMemory));
  LIME_RETURN_IF_ERROR(Within("memory_bytes", profiled.memory_bytes(), 1, kMaxDeviceMemory));
  LIME_RETURN_IF_ERROR(Printable("numerics_id", profiled.numerics_id(), kMaxName));
  LIME_RETURN_IF_ERROR(Printable("disk_problem", profiled.disk_problem(), kMaxDiskProblem));
  MeasuredDevice measured{.runtime = profiled.runtime_bytes(),
                          .memory = profiled.memory_bytes(),
                          .numerics_id = profiled.numerics_id(),
                          .disk_problem = profiled.disk_problem()};
  LIME_ASSIGN_OR_RETURN(measured.profile, ParseDeviceProfile(profiled.profile(), "message: the profile"));
  return measured;
}

void ToProto(const LinkProbe& probe, v1::ProbeLinkRequest& message) {
  message.set_peer(probe.peer);
  message.set_address(probe.address);
  message.set_seconds(probe.seconds);
  message.set_most_bytes(probe.most);
}

absl::StatusOr<LinkProbe> FromProto(const v1::ProbeLinkRequest& message) {
  LIME_RETURN_IF_ERROR(Printable("peer", message.peer(), kMaxName));
  LIME_RETURN_IF_ERROR(Printable("address", message.address(), kMaxWireAddress));
  LIME_RETURN_IF_ERROR(Between("seconds", message.seconds(), kLeastSeconds, kMaxProbeSeconds));
  LIME_RETURN_IF_ERROR(Within("most_bytes", message.most_bytes(), 1, kMaxProbeBytes / 2));
  return LinkProbe{.peer = message.peer(), .address = message.address(), .seconds = message.seconds(), .most = message.most_bytes()};
}

void ToProto(const MeasuredLink& link, v1::ProbeLinkReply& message) {
  message.set_bytes_per_second(link.bytes_per_second);
  message.set_latency_ms(link.latency_ms);
}

absl::StatusOr<MeasuredLink> FromProto(const v1::ProbeLinkReply& message) {
  LIME_RETURN_IF_ERROR(Between("bytes_per_second", message.bytes_per_second(), 1, kMaxBytesPerSecond));
  LIME_RETURN_IF_ERROR(Between("latency_ms", message.latency_ms(), 0, kMaxLatencyMs));
  return MeasuredLink{.bytes_per_second = message.bytes_per_second(), .latency_ms = message.latency_ms()};
}

void ToProto(const FromCoordinator& what, v1::OrderRequest& message) {
  if (const auto* open = std::get_if<OpenOrders>(&what)) {
    message.mutable_open()->set_epoch(open->epoch);
  } else if (const auto* order = std::get_if<OrderMessage>(&what)) {
    OrderToProto(*order, *message.mutable_order());
  } else {
    message.mutable_alive();
  }
}

absl::StatusOr<FromCoordinator> FromProto(const v1::OrderRequest& message) {
  switch (message.what_case()) {
    case v1::OrderRequest::kOpen:
      LIME_RETURN_IF_ERROR(Within("epoch", message.open().epoch(), 0, kMaxCount));
      return OpenOrders{message.open().epoch()};
    case v1::OrderRequest::kOrder: {
      LIME_ASSIGN_OR_RETURN(OrderMessage order, OrderFromProto(message.order()));
      return order;
    }
    case v1::OrderRequest::kAlive:
      return Alive{};
    case v1::OrderRequest::WHAT_NOT_SET:
      break;
  }
  return Wrong("the coordinator says what is not known here; run the same release everywhere");
}

void ToProto(const FromDevice& what, v1::OrderEvent& message) {
  if (std::holds_alternative<Opened>(what)) {
    message.mutable_opened();
  } else if (const auto* sampled = std::get_if<SampledNews>(&what)) {
    SampledToProto(*sampled, *message.mutable_sampled());
  } else if (const auto* ended = std::get_if<StepEndedNews>(&what)) {
    message.mutable_step_ended()->set_step(ended->step);
  } else if (const auto* failed = std::get_if<FailedNews>(&what)) {
    message.mutable_failed()->set_code(static_cast<int>(failed->status.code()));
    const absl::string_view sentence = failed->status.message();
    message.mutable_failed()->set_message(Ascii({sentence.data(), sentence.size()}));
  } else {
    message.mutable_alive();
  }
}

absl::StatusOr<FromDevice> FromProto(const v1::OrderEvent& message) {
  switch (message.what_case()) {
    case v1::OrderEvent::kOpened:
      return Opened{};
    case v1::OrderEvent::kSampled: {
      LIME_ASSIGN_OR_RETURN(SampledNews news, SampledFromProto(message.sampled()));
      return news;
    }
    case v1::OrderEvent::kStepEnded:
      LIME_RETURN_IF_ERROR(Within("step", message.step_ended().step(), 0, kMaxCount));
      return StepEndedNews{message.step_ended().step()};
    case v1::OrderEvent::kFailed:
      return FailedNews{FailureFromProto(message.failed())};
    case v1::OrderEvent::kAlive:
      return Alive{};
    case v1::OrderEvent::WHAT_NOT_SET:
      break;
  }
  return Wrong("a device says what is not known here; run the same release everywhere");
}

}  // namespace lime
