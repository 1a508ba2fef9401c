// KV with a host, both sides with their threads and without kernels: what the host attends to, or
// the owner once it has come back, is what the owner computed, however late messages are and
// whenever sequences end.
#include "daemon/kv/hosting/hosted_kv.h"

#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "daemon/kv/stage_kv.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/kv_spill.h"
#include "tests/cases.h"
#include "tests/daemon/kv_content.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kQueryFloats = 4;  // layer, sequence, life, position

// Of either side: the owner's pages and queries, and the host's attention, whose records are the
// number of pieces.
class FakeBackend final : public Backend {
 public:
  explicit FakeBackend(const Plan& plan)
      : plan_(plan),
        memory_(static_cast<size_t>(plan.devices[0].kv_pages * plan.page_bytes)),
        lives_(static_cast<size_t>(plan.sequences)) {}

  void SetPages(int32_t sequence, int64_t layer, std::span<const int32_t> pages) override {
    tables_[{sequence, layer}].assign(pages.begin(), pages.end());
  }
  std::byte* KvPage(int32_t page) override { return memory_.data() + page * plan_.page_bytes; }
  std::shared_ptr<const std::byte> ShareKv() override { return {std::shared_ptr<void>(), memory_.data()}; }

  void Compute(const MicroBatch& batch) {
    batch_ = batch;
    for (const BatchRow& row : batch.rows) {
      for (const int32_t layer : kLayers) {
        const int32_t page = tables_[{row.sequence, layer}][static_cast<size_t>(row.position / kPageTokens)];
        std::byte* const at = memory_.data() + page * plan_.page_bytes + row.position % kPageTokens * kPositionBytes;
        for (int64_t i = 0; i < kPositionBytes; ++i) at[i] = Content(Life(row.sequence), layer, row.sequence, row.position, i);
      }
    }
  }
  void NextLife(int32_t sequence) { ++lives_[static_cast<size_t>(sequence)]; }
  int64_t covered() const { return covered_; }
  int64_t attended() const { return attended_; }

  absl::StatusOr<std::span<const float>> Queries(int64_t layer) override {
    queries_.clear();
    for (const BatchRow& row : batch_.rows) {
      for (const int64_t value : {layer, int64_t{row.sequence}, Life(row.sequence), int64_t{row.position}}) {
        queries_.push_back(static_cast<float>(value));
      }
    }
    return std::span<const float>(queries_);
  }

  absl::Status AttendFor(std::span<const int32_t> positions, std::span<const float> queries, std::span<const std::byte* const> pieces,
                         std::span<float> records) override {
    for (size_t row = 0; row < positions.size(); ++row) {
      const std::span<const float> query = queries.subspan(row * kQueryFloats, kQueryFloats);
      const auto [layer, sequence, life] =
          std::tuple(static_cast<int64_t>(query[0]), static_cast<int64_t>(query[1]), static_cast<int64_t>(query[2]));
      if (static_cast<int32_t>(query[3]) != positions[row]) return absl::InternalError("positions and queries do not agree");
      for (int64_t p = 0; p < std::ssize(pieces) * kKvPiece; ++p) {
        const std::byte* const at = pieces[static_cast<size_t>(p / kKvPiece)] + p % kKvPiece * kPositionBytes;
        for (int64_t i = 0; i < kPositionBytes; ++i) {
          if (at[i] != Content(life, layer, sequence, p, i))
            return absl::InternalError(absl::StrCat("layer ", layer, ", sequence ", sequence, ", position ", p));
        }
      }
      records[row] = static_cast<float>(pieces.size());
    }
    return absl::OkStatus();
  }
  int64_t RecordFloats() const override { return 1; }

  // The records cover the pieces that have left the pages, and each row has a record of them.
  absl::Status ContinueFromRecords(int64_t layer, std::span<const int32_t> covered, std::span<const float> records) override {
    for (size_t row = 0; row < batch_.rows.size(); ++row) {
      const int32_t s = batch_.rows[row].sequence, pieces = covered[static_cast<size_t>(s)];
      const std::vector<int32_t>& table = tables_[{s, layer}];
      const int64_t away = std::ranges::find_if(table, [](int32_t page) { return page >= 0; }) - table.begin();
      if (away != pieces * (kKvPiece / kPageTokens)) return absl::InternalError(absl::StrCat(away, " pages are away, ", pieces, " taken"));
      if (pieces > 0 && records[row] != static_cast<float>(pieces)) return absl::InternalError("another row's record");
      covered_ += pieces;
    }
    return absl::OkStatus();
  }

  std::string numerics_id() const override { return "fake"; }
  std::string description() const override { return "fake"; }
  absl::Status BindBlock(const BlockSpec&, BlockWeights) override { return absl::OkStatus(); }
  absl::Status ResizeKv(int64_t) override { return absl::OkStatus(); }
  absl::Status Begin(const MicroBatch&) override { return absl::OkStatus(); }
  absl::Status Compute(BlockId) override { return absl::OkStatus(); }
  absl::Status ComputeRows(BlockId, const RowsInMemory&) override { return absl::OkStatus(); }
  // What is away of a sequence with rows is there, as it was computed.
  absl::Status AttendToPieces(int64_t layer, int64_t begin, int64_t end, std::span<const std::byte* const> places) override {
    if (begin != 0) return absl::InternalError("it does not begin with the first piece");
    for (const BatchRow& row : batch_.rows) {
      const std::vector<int32_t>& table = tables_[{row.sequence, layer}];
      const int64_t away = (std::ranges::find_if(table, [](int32_t page) { return page >= 0; }) - table.begin()) / (kKvPiece / kPageTokens);
      if (away > end) return absl::InternalError(absl::StrCat(away, " pieces are away, of which ", end, " came back"));
      for (int64_t piece = 0; piece < away; ++piece, ++attended_) {
        const std::byte* const at = places[static_cast<size_t>(row.sequence * end + piece)];
        if (at == nullptr) return absl::InternalError(absl::StrCat("piece ", piece, " of sequence ", row.sequence, " is not there"));
        for (int64_t i = 0; i < kKvPiece * kPositionBytes; ++i) {
          const int64_t position = piece * kKvPiece + i / kPositionBytes;
          if (at[i] != Content(Life(row.sequence), layer, row.sequence, position, i % kPositionBytes))
            return absl::InternalError(absl::StrCat("layer ", layer, ", sequence ", row.sequence, ", position ", position));
        }
      }
    }
    return absl::OkStatus();
  }
  absl::Status EmbedRows(const RowsInMemory&) override { return absl::OkStatus(); }
  std::span<std::byte> Hidden() override { return {}; }
  std::span<float> Logits() override { return {}; }
  Bytes ActivationBytes() const override { return 0; }
  Bytes KvBytes() const override { return 0; }

 private:
  int64_t Life(int32_t sequence) const { return lives_[static_cast<size_t>(sequence)]; }

  const Plan& plan_;
  std::vector<std::byte> memory_;
  std::vector<int64_t> lives_;
  std::map<std::pair<int32_t, int64_t>, std::vector<int32_t>> tables_;
  MicroBatch batch_;
  std::vector<float> queries_;
  int64_t covered_ = 0, attended_ = 0;
};

// Two layers on the first device, as few pages as there may be; the second has the others.
Plan HostingPlan(int64_t fetch_pieces = 0, bool asks = true) {
  Plan plan{
      .context = 2000, .sequences = 3, .batch = 3, .page_bytes = kPageTokens * kPositionBytes, .prefill_chunk = 100, .chunks_per_sweep = 1};
  for (const int32_t layer : kLayers) {
    plan.parts.push_back({.block = {BlockKind::kAttention, layer}, .kv_end = 2048});
    plan.parts.back().bytes = KvPartBytes(plan, plan.parts.back());
  }
  plan.parts.push_back({.block = {BlockKind::kHead, 0}});
  plan.stages = {{0, 0, 2}, {1, 2, 3}};
  plan.devices = {{.name = "a", .max_layer_pages = WorkingPages(plan), .kv_host = 1}, {.name = "b"}};
  plan.devices[0].kv_pages = plan.devices[0].max_layer_pages * std::ssize(kLayers);
  plan.devices[0].kv_fetch_pieces = fetch_pieces, plan.devices[0].asks_kv = asks;
  plan.devices[0].ask_kv_ms = 0.05;
  return plan;
}

ModelSpec SmallSpec() {
  ModelSpec spec;
  spec.config.num_heads = 1;
  spec.config.layers.assign(std::size(kLayers), {.num_kv_heads = 1, .head_dim = kQueryFloats});
  return spec;
}

// An owner's steps, and a thread that brings messages, those that may wait behind all others.
class Pair {
 public:
  explicit Pair(uint64_t seed, int64_t fetch_pieces = 0, bool asks = true)
      : plan_(HostingPlan(fetch_pieces, asks)), spec_(SmallSpec()), owner_(plan_), attends_(plan_), random_(seed), delays_(seed + 1) {
    auto kv = StageKv::Create(plan_, {.stage = {.device = 0,
                                                .layers = {std::begin(kLayers), std::end(kLayers)},
                                                .backend = &owner_,
                                                .max_rows = 200,
                                                .send =
                                                    [this](std::vector<std::byte> message, bool may_wait) {
                                                      (may_wait ? chunks_ : messages_).push_back(std::move(message));
                                                      changed_.SignalAll();
                                                    }},
                                      .mutex = &mutex_,
                                      .folder = dir_.path(),
                                      .wrote = [this] { changed_.SignalAll(); }});
    EXPECT_TRUE(kv.ok()) << kv.status();
    kv_ = *std::move(kv);
    auto host = HostedKv::Create(
        plan_, spec_, {.device = 1, .max_rows = 200, .backend = &attends_, .send = [this](int32_t, std::vector<std::byte> message, bool) {
                         answers_.push_back(std::move(message));
                       }});
    EXPECT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
    {
      absl::MutexLock lock(&mutex_);
      kv_->book().SetReach(PositionsAway(plan_, plan_.devices[0], (plan_.context + 15) / 16 * plan_.sequences));
    }
    thread_ = std::thread([this] { Deliver(); });
  }
  ~Pair() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
      changed_.SignalAll();
    }
    thread_.join();
    kv_.reset();
  }

  absl::Status Run(int steps) {
    for (int step = 0; step < steps; ++step) {
      absl::MutexLock lock(&mutex_);
      if (random_() % ends_ == 0) End(static_cast<int32_t>(random_() % 3));
      if (random_() % 2 == 0) LIME_RETURN_IF_ERROR(Quiet());  // pieces come, and others are fetched, before the next step
      StepOrder order{{Rows()}};
      const MicroBatch& batch = order.microbatches[0];
      if (batch.rows.empty()) continue;
      LIME_RETURN_IF_ERROR(Await([&]() -> absl::StatusOr<bool> {
        absl::StatusOr<bool> extended = kv_->book().Extend(order);
        kv_->Follow();
        return extended;
      }));
      owner_.Compute(batch);
      for (int part = 0; part < static_cast<int>(std::ssize(kLayers)); ++part) {
        LIME_ASSIGN_OR_RETURN(const bool asked, kv_->lent()->Ask({.part = part, .microbatch = 0, .last = true}, batch));
        if (asked) LIME_RETURN_IF_ERROR(Await([&]() -> absl::StatusOr<bool> { return std::exchange(answered_, false); }));
        mutex_.Unlock();
        const absl::Status used = kv_->lent()->UseAnswer();
        mutex_.Lock();
        LIME_RETURN_IF_ERROR(used);
      }
      kv_->book().Computed(batch);
      kv_->Follow();
      kv_->EndStep();
    }
    return absl::OkStatus();
  }

  int64_t covered() const { return owner_.covered(); }
  int64_t attended() const { return owner_.attended(); }
  StageKv& kv() { return *kv_; }
  HostedKv& host() { return *host_; }
  absl::Mutex& mutex() { return mutex_; }

 private:
  template <typename Ready>
  absl::Status Await(const Ready& ready) {
    while (status_.ok()) {
      LIME_ASSIGN_OR_RETURN(const bool is, ready());
      if (is) return absl::OkStatus();
      if (changed_.WaitWithTimeout(&mutex_, absl::Seconds(30))) return absl::DeadlineExceededError("nothing came for 30 s");
    }
    return status_;
  }

  // Until all that was sent has come.
  absl::Status Quiet() {
    return Await([&]()
                     ABSL_NO_THREAD_SAFETY_ANALYSIS -> absl::StatusOr<bool> { return messages_.empty() && chunks_.empty() && !bringing_; });
  }

  void End(int32_t sequence) {
    kv_->book().Release(sequence);
    kv_->Follow();
    owner_.NextLife(sequence);
    positions_[sequence] = 0;
  }

  MicroBatch Rows() {
    MicroBatch batch;
    const int32_t chosen = static_cast<int32_t>(random_() % 3);
    for (int32_t s = 0; s < plan_.sequences; ++s) {
      const int64_t count = s == chosen ? 1 + static_cast<int64_t>(random_() % 100) : static_cast<int64_t>(random_() % 2);
      for (int64_t i = 0; i < count && positions_[s] < plan_.context; ++i)
        batch.rows.push_back({.sequence = s, .position = static_cast<int32_t>(positions_[s]++)});
    }
    return batch;
  }

  // To the host, and its answers back.
  void Deliver() {
    absl::MutexLock lock(&mutex_);
    while (!stopping_) {
      if (messages_.empty() && chunks_.empty()) {
        changed_.Wait(&mutex_);
        continue;
      }
      std::deque<std::vector<std::byte>>& next = messages_.empty() ? chunks_ : messages_;
      const std::vector<std::byte> message = std::move(next.front());
      next.pop_front();
      bringing_ = true;
      mutex_.Unlock();
      if (delays_() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
      const absl::Status status = Bring(message);
      mutex_.Lock();
      bringing_ = false;
      status_.Update(status);
      changed_.SignalAll();
    }
  }

  absl::Status Bring(const std::vector<std::byte>& message) {
    LIME_ASSIGN_OR_RETURN(const KvMessage what, ParseKvMessage(message));
    LIME_RETURN_IF_ERROR(host_->OnMessage(0, what));
    while (host_->asked()) {
      EXPECT_EQ(host_->BeginAnswer(), 0);
      LIME_RETURN_IF_ERROR(host_->Answer());
      host_->EndAnswer();
    }
    for (const std::vector<std::byte>& answer : std::exchange(answers_, {})) {
      LIME_ASSIGN_OR_RETURN(const KvMessage said, ParseKvMessage(answer));
      absl::MutexLock lock(&mutex_);
      LIME_ASSIGN_OR_RETURN(const auto answers, kv_->lent()->OnAnswer(said));
      answered_ = answered_ || answers.has_value();
    }
    return absl::OkStatus();
  }

  const TempDir dir_;
  const Plan plan_;
  const ModelSpec spec_;
  FakeBackend owner_, attends_;
  std::mt19937_64 random_, delays_;
  const uint64_t ends_ = 12 * (1 + random_() % 6);  // steps, about, until a sequence ends
  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::map<int32_t, int64_t> positions_;
  std::deque<std::vector<std::byte>> messages_, chunks_;
  std::vector<std::vector<std::byte>> answers_;  // of the thread
  absl::Status status_;
  bool answered_ = false, bringing_ = false, stopping_ = false;
  std::unique_ptr<StageKv> kv_;
  std::unique_ptr<HostedKv> host_;
  std::thread thread_;
};

TEST(HostedKvTest, TheHostAttendsToWhatTheOwnerComputed) {
  int64_t covered = 0;
  const int seeds = Cases(10, 20);
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(seeds); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Pair pair(seed);
    const absl::Status status = pair.Run(150);
    ASSERT_TRUE(status.ok()) << status;
    covered += pair.covered();
  }
  EXPECT_GT(covered, 1000 * seeds);
}

TEST(HostedKvTest, WhatComesBackInTimeNeedNoAnswer) {
  int64_t covered = 0, attended = 0;
  const int seeds = Cases(10, 20);
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(seeds); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Pair pair(seed, 4 + 20 * static_cast<int64_t>(seed) / seeds);  // little room, and for all there is
    const absl::Status status = pair.Run(150);
    ASSERT_TRUE(status.ok()) << status;
    covered += pair.covered(), attended += pair.attended();
  }
  EXPECT_GT(covered, 50 * seeds);
  EXPECT_GT(attended, 50 * seeds);
}

TEST(HostedKvTest, WhereNothingIsAskedAllComesBack) {
  int64_t attended = 0;
  const Plan plan = HostingPlan();
  const int64_t least = HostedPieces(plan, plan.devices[0]) + kKvFetchesUnderWay;
  const int seeds = Cases(10, 20);
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(seeds); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Pair pair(seed, least + static_cast<int64_t>(seed % 3) * least / 2, /*asks=*/false);
    const absl::Status status = pair.Run(150);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(pair.covered(), 0);
    attended += pair.attended();
  }
  EXPECT_GT(attended, 1000 * seeds);
}

TEST(HostedKvTest, APlanIsUnloadedWhileAHostOwesAnAnswer) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Pair pair(seed);
    ASSERT_TRUE(pair.Run(static_cast<int>(10 * seed)).ok());  // a piece may be on its way
  }
}

TEST(HostedKvTest, WhatCannotBeIsRefused) {
  Pair pair(1);
  ASSERT_TRUE(pair.Run(1).ok());
  absl::MutexLock lock(&pair.mutex());
  const auto refusal = [](const auto& answer) {
    if constexpr (requires { answer.message(); }) {
      return std::string(answer.message());
    } else {
      return std::string(answer.status().message());
    }
  };
  EXPECT_THAT(refusal(pair.kv().lent()->OnAnswer(KvRecords{.number = 7})), HasSubstr("query 7 of KV arrived, but that query was not sent"));
  EXPECT_FALSE(pair.kv().lent()->OnAnswer(KvStored{.number = 99}).ok());
  EXPECT_THAT(refusal(pair.kv().lent()->OnAnswer(KvFree{})), HasSubstr("neither lends nor asks"));
  EXPECT_THAT(refusal(pair.kv().lent()->OnAnswer(KvFetched{})), HasSubstr("came back, but none was requested"));
  EXPECT_THAT(refusal(pair.host().OnMessage(1, KvFree{})), HasSubstr("device 1 has no KV on this device"));
  EXPECT_THAT(refusal(pair.host().OnMessage(0, KvFetch{})), HasSubstr("device 0 has no room for fetched KV"));
  EXPECT_THAT(refusal(pair.host().OnMessage(0, KvFetched{})), HasSubstr("but this device asked nothing"));
  EXPECT_THAT(refusal(pair.host().OnMessage(0, KvRecords{})), HasSubstr("but this device asked nothing"));
  const std::vector<std::byte> floats(kQueryFloats * sizeof(float));
  KvQuery query{.number = 0, .sequences = {{.sequence = 0, .life = 0, .pieces = 1, .positions = {300}}}, .queries = floats};
  EXPECT_FALSE(pair.host().OnMessage(0, query).ok()) << "it has no such piece";
  query.sequences[0].positions = {10};
  EXPECT_THAT(refusal(pair.host().OnMessage(0, query)), HasSubstr("position 10 asks for 1 pieces"));
  query.sequences[0].positions = {300, 301};
  EXPECT_THAT(refusal(pair.host().OnMessage(0, query)), HasSubstr("16 bytes of queries arrived for 2 rows"));
  query.sequences.clear();
  EXPECT_THAT(refusal(pair.host().OnMessage(0, query)), HasSubstr("a query has 0 rows"));
  EXPECT_FALSE(pair.host().asked());
}

TEST(HostedKvTest, WhatIsNotThereDoesNotGoBack) {
  Pair pair(1, 8);
  absl::MutexLock lock(&pair.mutex());
  const auto refusal = [&](const KvFetch& fetch) { return std::string(pair.host().OnMessage(0, fetch).message()); };
  EXPECT_THAT(refusal({}), HasSubstr("1 pieces of sequence 0 in life 0 are not here: 0"));
  EXPECT_THAT(refusal({.sequence = 3}), HasSubstr("sequence 3 is outside the plan's 3"));
  EXPECT_THAT(refusal({.layer = 2}), HasSubstr("layer 2 is outside the device's 2"));
  EXPECT_THAT(refusal({.piece = 8}), HasSubstr("9 pieces of a sequence, the limit is 8"));
  EXPECT_THAT(std::string(pair.kv().lent()->OnAnswer(KvFetched{}).status().message()), HasSubstr("no fetch is under way"));
}

TEST(HostedKvTest, WhatAQuestionIsAboutStaysUntilItIsAnswered) {
  const Plan plan = HostingPlan();
  const ModelSpec spec = SmallSpec();
  FakeBackend backend(plan);
  int answers = 0;
  const auto created = HostedKv::Create(
      plan, spec,
      {.device = 1, .max_rows = 200, .backend = &backend, .send = [&](int32_t, const std::vector<std::byte>&, bool) { ++answers; }});
  ASSERT_TRUE(created.ok()) << created.status();
  HostedKv& host = **created;
  std::vector<std::byte> bytes(static_cast<size_t>(KvPieceBytes(plan)));
  for (int32_t layer = 0; layer < std::ssize(kLayers); ++layer) {
    for (int64_t p = 0; p < kKvPiece; ++p) {
      for (int64_t i = 0; i < kPositionBytes; ++i) bytes[static_cast<size_t>(p * kPositionBytes + i)] = Content(0, kLayers[layer], 0, p, i);
    }
    ASSERT_TRUE(host.OnMessage(0, KvChunk{.number = layer, .layer = layer, .bytes = bytes}).ok());
  }
  const std::vector<float> values = {static_cast<float>(kLayers[1]), 0, 0, 300};
  const KvQuery query{.layer = 1, .sequences = {{.pieces = 1, .positions = {300}}}, .queries = std::as_bytes(std::span(values))};
  ASSERT_TRUE(host.OnMessage(0, query).ok());
  const KvChunk anew{.number = 2, .life = 1, .bytes = bytes};
  EXPECT_THAT(std::string(host.OnMessage(0, anew).message()), HasSubstr("asks about sequence 0 and begins it anew"));
  EXPECT_THAT(std::string(host.OnMessage(0, KvFree{}).message()), HasSubstr("asks about sequence 0 and ends it"));
  EXPECT_THAT(std::string(host.OnMessage(0, query).message()), HasSubstr("asks twice"));
  EXPECT_EQ(host.BeginAnswer(), 0);
  const absl::Status answered = host.Answer();
  ASSERT_TRUE(answered.ok()) << answered;
  host.EndAnswer();
  EXPECT_FALSE(host.asked());
  EXPECT_EQ(answers, 3) << "two pieces kept, one query answered";
  EXPECT_TRUE(host.OnMessage(0, anew).ok());
}

TEST(HostedKvTest, AHostWithNothingToHaveIsNotSpokenTo) {
  Plan plan = HostingPlan();
  plan.devices[0].max_layer_pages = 10000;  // more than there ever are
  FakeBackend backend(plan);
  absl::Mutex mutex;
  int sent = 0;
  const auto kv = StageKv::Create(plan, {.stage = {.device = 0,
                                                   .layers = {std::begin(kLayers), std::end(kLayers)},
                                                   .backend = &backend,
                                                   .max_rows = 200,
                                                   .send = [&](const std::vector<std::byte>&, bool) { ++sent; }},
                                         .mutex = &mutex});
  ASSERT_TRUE(kv.ok()) << kv.status();
  absl::MutexLock lock(&mutex);
  (*kv)->book().Release(0);
  (*kv)->Follow();
  EXPECT_EQ(sent, 0);
  EXPECT_EQ((*kv)->lent(), nullptr);
}

}  // namespace
}  // namespace lime
