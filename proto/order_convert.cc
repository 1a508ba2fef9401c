// Of convert.h: what coordinator and devices say to each other while a plan is in use.
#include <cmath>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/strings.h"
#include "planner/plan/instance.h"
#include "planner/plan/limits.h"
#include "proto/convert.h"
#include "proto/fields.h"

namespace lime {
namespace {

using fields::Ascii;
using fields::kMaxCount;
using fields::Sentence;
using fields::Within;
using fields::Wrong;

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

// An error whose code is none is an error all the same.
absl::Status FailureFromProto(const v1::Failed& message) {
  const bool known =
      message.code() > static_cast<int>(absl::StatusCode::kOk) && message.code() <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  const auto code = known ? static_cast<absl::StatusCode>(message.code()) : absl::StatusCode::kUnknown;
  return absl::Status(code, Text(Sentence(message.message())));
}

}  // namespace

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
