// Both sides of a question about experts, with a backend that hashes: results arrive whatever the
// groups in which they are computed, and messages that are not expected are refused and change
// nothing.
#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/units/asked_units.h"
#include "daemon/units/hosted_units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/model/described_model.h"
#include "planner/problem/plan_problem.h"
#include "tests/sim/hash_backend.h"
#include "tests/sim/hash_model.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class UnitsTest : public ::testing::Test {
 protected:
  UnitsTest()
      : spec_(*DescribeModel(
            R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "dtype": "bfloat16", "num_hidden_layers": 1,
                "num_experts": 8, "num_experts_per_tok": 3, "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 1,
                "head_dim": 4, "intermediate_size": 256, "moe_intermediate_size": 64, "vocab_size": 900, "norm_topk_prob": true,
                "max_position_embeddings": 8192, "tie_word_embeddings": false})",
            "units")),
        owner_backend_(spec_, {}),
        host_backend_(spec_, {}) {
    std::vector<ClusterDevice> devices(2);
    for (int d = 0; d < 2; ++d) {
      devices[d] = {.name = d == 0 ? "a" : "b", .numerics_id = "hash", .budget = kGiB};
      devices[d].profile.read_bytes_per_second = 10e9;
      devices[d].profile.disk = {{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 1e9, .latency_ms = 0.1}};
    }
    const PlanRequest request{.context = 64, .sequences = 4, .batches = {4}, .unit_places = 4, .unit_shares = {{4, 4}, {4, 4}}};
    const auto problem = MakePlanProblem(spec_, devices, request);
    EXPECT_TRUE(problem.ok()) << problem.status();
    PlanChoice choice{.stages = {.stages = {{0, 0, problem->head.NumParts()}}}, .batch = 4};
    auto plan = MakePlan(*problem, choice);
    EXPECT_TRUE(plan.ok()) << plan.status();
    plan_ = *std::move(plan);
    part_ = static_cast<int>(std::ranges::find_if(plan_.parts, &PlanPart::hosted) - plan_.parts.begin());
    asked_ = std::make_unique<AskedUnits>(
        plan_, AskedUnits::Options{.device = 0, .backend = &owner_backend_, .send = [this](int32_t, std::vector<std::byte> message) {
                                     to_host_.push_back(std::move(message));
                                   }});
    hosted_ = std::make_unique<HostedUnits>(
        plan_, spec_,
        HostedUnits::Options{.device = 1,
                             .max_rows = 4,
                             .backend = &host_backend_,
                             .matrices_of =
                                 [this](int part, const UnitInPlace& unit, std::vector<RowsInMemory>& matrices) {
                                   const auto units = UnitsIn(plan_.parts[part].rows);
                                   for (const MatrixRows& rows : units[static_cast<size_t>(unit.unit)]) matrices.push_back({.rows = rows});
                                 },
                             .send = [this](int32_t, std::vector<std::byte> message) { to_owner_.push_back(std::move(message)); }});
  }

  // The owner's router has run for these rows. Hidden states are such that rows choose the host's
  // units.
  MicroBatch Choose(uint64_t seed, int rows) {
    MicroBatch batch;
    for (int r = 0; r < rows; ++r) batch.rows.push_back({.sequence = r});
    EXPECT_TRUE(owner_backend_.Begin(batch).ok());
    std::vector<uint64_t> hidden;
    for (int r = 0; r < rows; ++r) hidden.push_back(HashModel::Mix(seed, static_cast<uint64_t>(r)));
    owner_backend_.SetHidden(std::move(hidden));
    EXPECT_TRUE(owner_backend_.BeginBlock(plan_.parts[part_].block).ok());
    return batch;
  }

  UnitsQuery QueryOf(const std::vector<std::byte>& message) { return std::get<UnitsQuery>(*ParseUnitsMessage(message)); }
  UnitsAnswer AnswerOf(const std::vector<std::byte>& message) { return std::get<UnitsAnswer>(*ParseUnitsMessage(message)); }

  // Computes `units` of the question, each ready by itself.
  void Compute(std::span<const int32_t> units) {
    for (const int32_t unit : units) hosted_->OnReady(part_, {unit, unit});
    while (hosted_->ready()) {
      EXPECT_EQ(hosted_->BeginCompute(), 0);
      EXPECT_EQ(hosted_->Compute(), absl::OkStatus());
      hosted_->EndCompute();
    }
  }

  const ModelSpec spec_;
  HashBackend owner_backend_, host_backend_;
  Plan plan_;
  int part_ = 0;
  std::unique_ptr<AskedUnits> asked_;
  std::unique_ptr<HostedUnits> hosted_;
  std::deque<std::vector<std::byte>> to_host_, to_owner_;
};

TEST_F(UnitsTest, ResultsArriveInAnyGroups) {
  int questions = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const MicroBatch batch = Choose(seed, 1 + static_cast<int>(seed % 4));
    const auto asked = asked_->Ask(part_, 3, batch);
    ASSERT_TRUE(asked.ok()) << asked.status();
    if (!*asked) continue;
    ++questions;
    const std::vector<std::byte> question = std::exchange(to_host_, {}).front();
    const auto visit = hosted_->OnQuery(0, QueryOf(question));
    ASSERT_TRUE(visit.ok()) << visit.status();
    EXPECT_EQ(visit->part, part_);
    EXPECT_TRUE(visit->decodes);
    std::vector<int32_t> units(visit->units.begin(), visit->units.end());
    if (seed % 2 == 0) std::ranges::reverse(units);
    const size_t first = seed % (units.size() + 1);
    Compute(std::span(units).first(first));
    Compute(std::span(units).subspan(first));
    while (!to_owner_.empty()) {
      const std::vector<std::byte> answer = std::move(to_owner_.front());
      to_owner_.pop_front();
      const auto answered = asked_->OnAnswer(1, AnswerOf(answer));
      ASSERT_TRUE(answered.ok()) << answered.status();
      EXPECT_EQ(answered->has_value(), to_owner_.empty()) << "with the last one";
      if (*answered) EXPECT_EQ(**answered, std::pair(part_, 3));
      EXPECT_FALSE(asked_->OnAnswer(1, AnswerOf(answer)).ok()) << "again";
    }
    EXPECT_EQ(asked_->UseAnswer(part_), absl::OkStatus());
  }
  EXPECT_GT(questions, 100);
}

TEST_F(UnitsTest, AQuestionThatIsNotExpectedIsRefused) {
  uint64_t seed = 1;
  for (bool any = false; !any; ++seed) any = *asked_->Ask(part_, 0, Choose(seed, 4));
  const std::vector<std::byte> message = to_host_.front();
  const UnitsQuery good = QueryOf(message);
  const auto refusal = [&](int32_t from, auto change) {
    UnitsQuery query = good;
    change(query);
    return std::string(hosted_->OnQuery(from, query).status().message());
  };
  const auto same = [](UnitsQuery&) {};
  EXPECT_THAT(refusal(1, same), HasSubstr("device 1 has no units on this device"));
  EXPECT_THAT(refusal(0, [](UnitsQuery& q) { q.number = 7; }), HasSubstr("number 7 arrived, expected 0"));
  EXPECT_THAT(refusal(0, [&](UnitsQuery& q) { q.part = part_ - 1; }), HasSubstr("is not of device 0 on this device"));
  EXPECT_THAT(refusal(0, [&](UnitsQuery& q) { q.part = 1000; }), HasSubstr("part 1000"));
  EXPECT_THAT(refusal(0, [](UnitsQuery& q) { q.units[0] = 4; }), HasSubstr("unit 4 is outside the 4"));
  EXPECT_THAT(refusal(0, [](UnitsQuery& q) { q.rows = q.rows.first(q.rows.size() - 1); }), HasSubstr("bytes arrived for"));
  EXPECT_THAT(refusal(0,
                      [](UnitsQuery& q) {
                        q.units.assign(static_cast<size_t>(5 * q.per_row), -1);
                        for (size_t row = 0; row < 5; ++row) q.units[row * static_cast<size_t>(q.per_row)] = 0;
                      }),
              HasSubstr("it has 5 rows, the plan allows 4"));
  EXPECT_EQ(refusal(0, same), "");
  EXPECT_THAT(refusal(0, [](UnitsQuery& q) { q.number = 1; }), HasSubstr("device 0 asks twice"));
}

TEST_F(UnitsTest, AGuessIsAboutUnitsThatTheHostHas) {
  asked_->Guess(part_, std::vector<int32_t>{3, 0});
  const auto guess = std::get<UnitsGuess>(*ParseUnitsMessage(to_host_.front()));
  EXPECT_EQ(guess.part, part_);
  EXPECT_THAT(guess.units, ElementsAre(3, 0));
  EXPECT_EQ(hosted_->CheckGuess(0, guess), absl::OkStatus());
  const auto refusal = [&](int32_t from, const UnitsGuess& what) { return std::string(hosted_->CheckGuess(from, what).message()); };
  EXPECT_THAT(refusal(1, guess), HasSubstr("is not of device 1 on this device"));
  EXPECT_THAT(refusal(0, {.part = part_ - 1, .units = {0}}), HasSubstr("is not of device 0 on this device"));
  EXPECT_THAT(refusal(0, {.part = 1000, .units = {0}}), HasSubstr("part 1000"));
  EXPECT_THAT(refusal(0, {.part = part_, .units = {0, 4}}), HasSubstr("unit 4 is outside the 4"));
}

TEST_F(UnitsTest, AnAnswerThatWasNotAskedForIsRefused) {
  const std::vector<float> result(16);
  const auto bytes = std::as_bytes(std::span(result));
  EXPECT_THAT(std::string(asked_->OnAnswer(1, {.number = 0, .units = {0}, .results = bytes}).status().message()),
              HasSubstr("was not asked or is answered"));
  uint64_t seed = 1;
  for (bool any = false; !any; ++seed) any = *asked_->Ask(part_, 0, Choose(seed, 1));
  const std::vector<std::byte> message = to_host_.back();
  const UnitsQuery query = QueryOf(message);
  const int32_t chosen = query.units[0];
  int32_t other = 0;
  while (std::ranges::find(query.units, other) != query.units.end()) ++other;
  const auto refusal = [&](int32_t from, const UnitsAnswer& answer) {
    return std::string(asked_->OnAnswer(from, answer).status().message());
  };
  EXPECT_THAT(refusal(0, {.number = query.number, .units = {chosen}, .results = bytes}), HasSubstr("was not asked"));
  EXPECT_THAT(refusal(1, {.number = query.number + 1, .units = {chosen}, .results = bytes}), HasSubstr("was not asked"));
  EXPECT_THAT(refusal(1, {.number = query.number, .units = {other}, .results = bytes}), HasSubstr("which was not asked for"));
  EXPECT_THAT(refusal(1, {.number = query.number, .units = {1000}, .results = bytes}), HasSubstr("which was not asked for"));
  EXPECT_THAT(refusal(1, {.number = query.number, .units = {chosen, chosen}, .results = bytes}), HasSubstr("which was not asked for"));
  EXPECT_THAT(refusal(1, {.number = query.number, .units = {chosen}, .results = bytes.first(60)}), HasSubstr("60 bytes of results"));
}

}  // namespace
}  // namespace lime
