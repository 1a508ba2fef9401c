// Of convert.h: what coordinator and devices say to each other while a plan is in use.
#include <cmath>

#include "lime/v1/control.pb.h"
#include "planner/base/strings.h"
#include "planner/plan/instance/instance.h"
#include "proto/convert/convert.h"
#include "proto/convert/message_fields.h"

namespace lime {
namespace {

using fields::Ascii;
using fields::kMaxCount;
using fields::Sentence;
using fields::Within;
using fields::Wrong;

// An error whose code is none is an error all the same.
absl::Status FailureFromProto(const v1::Failed& message) {
  const bool known =
      message.code() > static_cast<int>(absl::StatusCode::kOk) && message.code() <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  const auto code = known ? static_cast<absl::StatusCode>(message.code()) : absl::StatusCode::kUnknown;
  return absl::Status(code, Text(Sentence(message.message())));
}

}  // namespace

static void List(MessageFields& f, BatchRow& row, v1::Row& m) {
  f.Number(LIME_FIELD(m, sequence), row.sequence, 0, kMaxWireSequences - 1);
  f.Number(LIME_FIELD(m, token), row.token, kSampledToken, kMaxWirePosition - 1);
  f.Number(LIME_FIELD(m, position), row.position, 0, kMaxWirePosition - 1);
  f.PlusOne(LIME_FIELD(m, parent_plus_1), row.parent, kMaxWireRows);
  f.Any(LIME_FIELD(m, wants_logits), row.wants_logits);
  f.PlusOne(LIME_FIELD(m, snapshot_plus_1), row.snapshot, kMaxStateSnapshots);
}

static void List(MessageFields& f, MicroBatch& batch, v1::MicroBatch& m) {
  f.Each("rows", batch.rows, m.mutable_rows(), 0, kMaxWireRows);
  for (int64_t i = 0; i < std::ssize(batch.rows); ++i)  // a row follows its parent
    f.Check(Within("parent_plus_1", int64_t{batch.rows[static_cast<size_t>(i)].parent} + 1, 0, i));
}

static void List(MessageFields& f, StepOrder& step, v1::StepOrder& m) {
  int64_t rows = 0;
  for (const v1::MicroBatch& batch : m.microbatches()) rows += batch.rows_size();
  f.Check(Within("rows", rows, 0, kMaxWireRows));
  f.Each("microbatches", step.microbatches, m.mutable_microbatches(), 1, kMaxMicrobatches);
}

static void List(MessageFields& f, RetireOrder& retire, v1::RetireOrder& m) {
  f.Number(LIME_FIELD(m, sequence), retire.sequence, 0, kMaxWireSequences - 1);
  f.Number(LIME_FIELD(m, kept), retire.kept, 0, kMaxWirePosition);
}

static void List(MessageFields& f, RollbackOrder& rollback, v1::RollbackOrder& m) {
  f.Number(LIME_FIELD(m, sequence), rollback.sequence, 0, kMaxWireSequences - 1);
  f.Number(LIME_FIELD(m, positions), rollback.positions, 1, kMaxWirePosition);
  f.PlusOne(LIME_FIELD(m, snapshot_plus_1), rollback.snapshot, kMaxStateSnapshots);
}

static void List(MessageFields& f, ResidencyOrder& residency, v1::ResidencyOrder& m) {
  f.Number(LIME_FIELD(m, layer_pages), residency.to.layer_pages, 0, kMaxWireSequences * kMaxWirePosition);
  f.Ascending("streamed", residency.to.streamed, m.mutable_streamed(), kMaxPlanBlocks);
}

static void List(MessageFields& f, AdmitOrder& admit, v1::AdmitOrder& m) {
  f.Number(LIME_FIELD(m, sequence), admit.sequence, 0, kMaxWireSequences - 1);
  f.Number(LIME_FIELD(m, request), admit.request, 0, kMaxCount);
  f.Number(LIME_FIELD(m, positions), admit.positions, 1, kMaxWirePosition);
  f.Numbers("prompt", admit.prompt, m.mutable_prompt(), 1, admit.positions, 0, kMaxWirePosition - 1, /*ascending=*/false);
  f.Number(LIME_FIELD(m, computed), admit.computed, 0, std::ssize(admit.prompt));
  f.PlusOne(LIME_FIELD(m, source_plus_1), admit.source, kMaxWireSequences);
  f.PlusOne(LIME_FIELD(m, snapshot_plus_1), admit.snapshot, kMaxStateSnapshots);
  f.Number(LIME_FIELD(m, generated), admit.generated, 0, std::ssize(admit.prompt));
}

static void ListBiases(MessageFields& f, std::vector<LogitBias>& biases, v1::Sampling& m) {
  if (!f.reads()) {
    for (const LogitBias& each : biases) m.add_bias_ids(each.id), m.add_biases(each.bias);
    return;
  }
  f.Check(Within("bias_ids", m.bias_ids_size(), 0, SamplingParams::kMaxBiases));
  if (m.biases_size() != m.bias_ids_size()) return f.Check(Wrong(m.bias_ids_size(), " ids have ", m.biases_size(), " biases"));
  for (int i = 0; i < m.bias_ids_size() && f.status().ok(); ++i) {
    f.Check(Within("bias_ids", m.bias_ids(i), 0, kMaxWirePosition - 1));
    biases.push_back({.id = m.bias_ids(i), .bias = m.biases(i)});
  }
}

static void List(MessageFields& f, RequestSampling& sampling, v1::Sampling& m) {
  f.Any(LIME_FIELD(m, repetition_penalty), sampling.params.repetition_penalty);
  f.Any(LIME_FIELD(m, temperature), sampling.params.temperature);
  f.Any(LIME_FIELD(m, top_k), sampling.params.top_k);
  f.Any(LIME_FIELD(m, top_p), sampling.params.top_p);
  f.Any(LIME_FIELD(m, min_p), sampling.params.min_p);
  f.Any(LIME_FIELD(m, seed), sampling.params.seed);
  f.Any(LIME_FIELD(m, presence_penalty), sampling.params.presence_penalty);
  f.Any(LIME_FIELD(m, frequency_penalty), sampling.params.frequency_penalty);
  ListBiases(f, sampling.params.logit_bias, m);
  f.Check(ValidateSamplingParams(sampling.params));
  f.Any(LIME_FIELD(m, hash_logits), sampling.hash_logits);
  f.Data(LIME_FIELD(m, hash_state), sampling.hash_state, 0, kMostHashState);
  if (f.reads() && m.has_choice()) sampling.choice.emplace();
  if (sampling.choice) f.Any(LIME_FIELD(m, choice), *sampling.choice);
  int32_t score_top = sampling.score_top.value_or(-1);
  f.PlusOne(LIME_FIELD(m, score_top_plus_1), score_top, kMostScoreTop + 1);
  if (score_top >= 0) sampling.score_top = score_top;
  int32_t logprobs = sampling.logprobs.value_or(-1);
  f.PlusOne(LIME_FIELD(m, logprobs_plus_1), logprobs, kMostLogprobs + 1);
  if (logprobs >= 0) sampling.logprobs = logprobs;
  f.Data(LIME_FIELD(m, format), sampling.format, 0, RequestSampling::kMaxFormatBytes);
}

static void List(MessageFields& f, OrderMessage& what, v1::Order& m) {
  f.Number(LIME_FIELD(m, number), what.order.number, 0, kMaxCount);
  f.Case<AdmitOrder>(LIME_PART(m, admit), what.order.what);
  if (m.has_admit()) f.Part(LIME_PART((*m.mutable_admit()), sampling), what.sampling);
  f.Case<RetireOrder>(LIME_PART(m, retire), what.order.what);
  f.Case<StepOrder>(LIME_PART(m, step), what.order.what);
  f.Case<ResidencyOrder>(LIME_PART(m, residency), what.order.what);
  f.Case<RollbackOrder>(LIME_PART(m, rollback), what.order.what);
  f.NoOther("an order is of an unknown kind; run the same release everywhere");
}

static void List(MessageFields& f, cpu::RowScore& score, v1::Score& m) {
  if (f.reads() && m.has_logprob()) score.logprob.emplace();
  if (score.logprob) f.Any(LIME_FIELD(m, logprob), *score.logprob);
  if (f.reads() && m.has_log_sum()) score.log_sum.emplace();
  if (score.log_sum) f.Any(LIME_FIELD(m, log_sum), *score.log_sum);
  if (!f.reads()) {
    for (const auto& [id, logit] : score.top) m.add_top_ids(id), m.add_top_logits(logit);
    return;
  }
  f.Check(Within("top_ids", m.top_ids_size(), 0, kMostScoreTop));
  if (m.top_logits_size() != m.top_ids_size())
    return f.Check(Wrong("a score has ", m.top_ids_size(), " likeliest ids, but ", m.top_logits_size(), " logits"));
  if (score.logprob && std::isnan(*score.logprob)) f.Check(Wrong("a log-probability is not a number"));
  if (score.log_sum && std::isnan(*score.log_sum)) f.Check(Wrong("the sum of a score is not a number"));
  for (int i = 0; i < m.top_ids_size() && f.status().ok(); ++i) {
    f.Check(Within("top_ids", m.top_ids(i), 0, kMaxWirePosition - 1));
    if (std::isnan(m.top_logits(i))) f.Check(Wrong("a logit is not a number"));
    score.top.emplace_back(m.top_ids(i), m.top_logits(i));
  }
}

static void List(MessageFields& f, SampledNews& news, v1::Sampled& m) {
  f.Number(LIME_FIELD(m, step), news.step, 0, kMaxCount);
  f.Any(LIME_FIELD(m, ends_step), news.ends_step);
  size_t i = 0;
  f.EachBy("tokens", news.tokens, m.mutable_tokens(), 1, kMaxWireRows, [&](SampledToken& token, v1::SampledToken& each) {
    f.Number(LIME_FIELD(each, sequence), token.sequence, 0, kMaxWireSequences - 1);
    f.Number(LIME_FIELD(each, position), token.position, 0, kMaxWirePosition);
    f.Number(LIME_FIELD(each, token), token.token, 0, kMaxWirePosition - 1);
    if (f.reads()) news.logits_hashes.emplace_back(), news.hash_states.emplace_back(), news.scores.emplace_back();
    if (i < news.logits_hashes.size()) f.Any(LIME_FIELD(each, logits_xxh3), news.logits_hashes[i]);
    if (i < news.hash_states.size()) f.Data(LIME_FIELD(each, hash_state), news.hash_states[i], 0, kMostHashState);
    if (i < news.scores.size()) f.Maybe(LIME_PART(each, score), news.scores[i]);
    ++i;
  });
}

// What says no more than that it is there.
static void List(MessageFields&, Alive&, v1::Alive&) {}

static void List(MessageFields& f, Opened& opened, v1::Opened& m) {
  f.Any(LIME_FIELD(m, wants_vocabulary), opened.wants_vocabulary);
}

static void List(MessageFields& f, OpenOrders& open, v1::OpenOrders& m) {
  f.Number(LIME_FIELD(m, epoch), open.epoch, 0, kMaxCount);
  f.Any(LIME_FIELD(m, vocabulary), open.vocabulary);
}

static void List(MessageFields& f, VocabularyPart& part, v1::VocabularyPart& m) {
  f.Number(LIME_FIELD(m, total_bytes), part.total, 1, kMaxWireVocabulary);
  f.Data(LIME_FIELD(m, data), part.data, 1, kMaxVocabularyPart);
}

static void List(MessageFields& f, StepEndedNews& ended, v1::StepEnded& m) {
  f.Number(LIME_FIELD(m, step), ended.step, 0, kMaxCount);
}

static void List(MessageFields& f, FailedNews& failed, v1::Failed& m) {
  if (f.reads()) {
    failed.status = FailureFromProto(m);
    return;
  }
  const absl::string_view sentence = failed.status.message();
  m.set_code(static_cast<int>(failed.status.code()));
  m.set_message(Ascii({sentence.data(), sentence.size()}));
}

static void List(MessageFields& f, FromCoordinator& what, v1::OrderRequest& m) {
  f.Case<OpenOrders>(LIME_PART(m, open), what);
  f.Case<OrderMessage>(LIME_PART(m, order), what);
  f.Case<Alive>(LIME_PART(m, alive), what);
  f.Case<VocabularyPart>(LIME_PART(m, vocabulary), what);
  f.NoOther("the coordinator sent a message of an unknown kind; run the same release everywhere");
}
LIME_CONVERT(FromCoordinator, v1::OrderRequest)

static void List(MessageFields& f, FromDevice& what, v1::OrderEvent& m) {
  f.Case<Opened>(LIME_PART(m, opened), what);
  f.Case<SampledNews>(LIME_PART(m, sampled), what);
  f.Case<StepEndedNews>(LIME_PART(m, step_ended), what);
  f.Case<FailedNews>(LIME_PART(m, failed), what);
  f.Case<Alive>(LIME_PART(m, alive), what);
  f.NoOther("a device sent a message of an unknown kind; run the same release everywhere");
}
LIME_CONVERT(FromDevice, v1::OrderEvent)

}  // namespace lime
