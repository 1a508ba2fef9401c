// KV on a disk, with its threads and without kernels: what attention is shown is what was computed,
// whatever goes to the disk and when, and whatever the disk does.
#include "daemon/kv/stage_kv.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <deque>
#include <filesystem>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "daemon/kv/kv_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/kv_spill.h"
#include "tests/cases.h"
#include "tests/daemon/kv_content.h"
#include "tests/daemon/weights/faulty_device.h"
#include "tests/temp_dir.h"
#include "tests/waiting_threads.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

// Keeps pages, and compares what it is shown with what was computed.
class PagesBackend final : public Backend {
 public:
  PagesBackend(const Plan& plan, int64_t pages)
      : plan_(plan), memory_(static_cast<size_t>(pages * plan.page_bytes)), lives_(static_cast<size_t>(plan.sequences), 0) {}

  void SetPages(int32_t sequence, int64_t layer, std::span<const int32_t> pages) override {
    tables_[{sequence, layer}].assign(pages.begin(), pages.end());
  }
  std::byte* KvPage(int32_t page) override { return memory_.data() + page * plan_.page_bytes; }
  std::shared_ptr<const std::byte> ShareKv() override { return {std::shared_ptr<void>(), memory_.data()}; }

  void Compute(int32_t sequence, int64_t position) {
    for (const int32_t layer : kLayers) {
      const int32_t page = tables_[{sequence, layer}][static_cast<size_t>(position / kPageTokens)];
      std::byte* const at = memory_.data() + page * plan_.page_bytes + position % kPageTokens * kPositionBytes;
      for (int64_t i = 0; i < kPositionBytes; ++i) at[i] = Content(lives_[static_cast<size_t>(sequence)], layer, sequence, position, i);
    }
  }
  std::byte ContentOf(int64_t layer, int64_t sequence, int64_t position, int64_t i) const {
    return Content(lives_[static_cast<size_t>(sequence)], layer, sequence, position, i);
  }
  void NextLife(int32_t sequence) { ++lives_[static_cast<size_t>(sequence)]; }
  void BatchOf(std::vector<int32_t> sequences) { batch_ = std::move(sequences); }
  int64_t shown() const { return shown_; }

  absl::Status AttendToPieces(int64_t layer, int64_t begin, int64_t end, std::span<const std::byte* const> places) override {
    for (const int32_t sequence : batch_) {
      const std::vector<int32_t>& table = tables_[{sequence, layer}];
      for (int64_t piece = begin; piece < end; ++piece) {
        const size_t first = static_cast<size_t>(piece * kKvPiece / kPageTokens);
        const bool away = first < table.size() && table[first] < 0;
        const std::byte* const place = places[static_cast<size_t>(sequence * (end - begin) + piece - begin)];
        if (away != (place != nullptr)) return absl::InternalError(absl::StrCat("piece ", piece, " is ", away ? "" : "not ", "away"));
        if (!away) continue;
        ++shown_;
        for (int64_t p = 0; p < kKvPiece; ++p) {
          for (int64_t i = 0; i < kPositionBytes; ++i) {
            if (place[p * kPositionBytes + i] != Content(lives_[static_cast<size_t>(sequence)], layer, sequence, piece * kKvPiece + p, i))
              return absl::InternalError(absl::StrCat("layer ", layer, ", sequence ", sequence, ", position ", piece * kKvPiece + p));
          }
        }
      }
    }
    return absl::OkStatus();
  }

  std::string numerics_id() const override { return "none"; }
  std::string description() const override { return "pages"; }
  absl::Status BindBlock(const BlockSpec&, BlockWeights) override { return absl::OkStatus(); }
  absl::Status ResizeKv(int64_t) override { return absl::OkStatus(); }
  absl::Status Begin(const MicroBatch&) override { return absl::OkStatus(); }
  absl::Status Compute(BlockId) override { return absl::OkStatus(); }
  absl::Status ComputeRows(BlockId, const RowsInMemory&) override { return absl::OkStatus(); }
  absl::StatusOr<std::span<const float>> Queries(int64_t) override { return std::span<const float>(); }
  int64_t RecordFloats() const override { return 0; }
  absl::Status AttendFor(std::span<const int32_t>, std::span<const float>, std::span<const std::byte* const>, std::span<float>) override {
    return absl::OkStatus();
  }
  absl::Status ContinueFromRecords(int64_t, std::span<const int32_t>, std::span<const float>) override { return absl::OkStatus(); }
  absl::Status EmbedRows(const RowsInMemory&) override { return absl::OkStatus(); }
  std::span<std::byte> Hidden() override { return {}; }
  std::span<float> Logits() override { return {}; }
  Bytes ActivationBytes() const override { return 0; }
  Bytes KvBytes() const override { return 0; }

 private:
  const Plan& plan_;
  std::vector<std::byte> memory_;
  std::vector<int64_t> lives_;
  std::vector<int32_t> batch_;
  std::map<std::pair<int32_t, int64_t>, std::vector<int32_t>> tables_;
  int64_t shown_ = 0;
};

// Two layers in parts of 512 positions, as few pages as there may be.
Plan SmallPlan() {
  Plan plan{
      .context = 2000, .sequences = 3, .batch = 3, .page_bytes = kPageTokens * kPositionBytes, .prefill_chunk = 100, .chunks_per_sweep = 1};
  for (const int32_t layer : kLayers) {
    for (int64_t begin = 0; begin < 2048; begin += 512) {
      PlanPart part{.block = {BlockKind::kAttention, layer}, .kv_begin = begin, .kv_end = begin + 512, .streamed = true};
      part.bytes = KvPartBytes(plan, part);
      plan.parts.push_back(std::move(part));
    }
  }
  PlanDevice device{.name = "a", .max_layer_pages = WorkingPages(plan)};
  device.kv_pages = device.max_layer_pages * std::ssize(kLayers);
  plan.devices = {device};
  plan.stages = {{.device = 0, .lo = 0, .hi = plan.NumParts()}};
  return plan;
}

using WrapDevice = std::function<std::unique_ptr<BlockDevice>(std::unique_ptr<BlockDevice>)>;

// What an engine does with it, one step after another.
class Steps {
 public:
  explicit Steps(uint64_t seed, WrapDevice wrap = {}) : plan_(SmallPlan()), backend_(plan_, plan_.devices[0].kv_pages), random_(seed) {
    auto kv = StageKv::Create(plan_, {.stage = {.device = 0, .layers = {std::begin(kLayers), std::end(kLayers)}, .backend = &backend_},
                                      .mutex = &mutex_,
                                      .folder = dir_.path(),
                                      .wrote = [this] { wrote_.SignalAll(); },
                                      .wrap_device = std::move(wrap)});
    EXPECT_TRUE(kv.ok()) << kv.status();
    kv_ = *std::move(kv);
    absl::MutexLock lock(&mutex_);
    kv_->book().SetReach(PositionsAway(plan_, plan_.devices[0], (plan_.context + 15) / 16 * plan_.sequences));
  }
  ~Steps() { kv_.reset(); }

  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  absl::Status Run(int steps) {
    for (int step = 0; step < steps; ++step) {
      if (Below(12) == 0) End(static_cast<int32_t>(Below(plan_.sequences)));
      StepOrder order{{Rows()}};
      LIME_RETURN_IF_ERROR(Extend(order));
      const MicroBatch& batch = order.microbatches[0];
      if (batch.rows.empty()) continue;
      for (const BatchRow& row : batch.rows) backend_.Compute(row.sequence, row.position);
      std::vector<int32_t> sequences;
      for (const BatchRow& row : batch.rows) sequences.push_back(row.sequence);
      backend_.BatchOf(std::move(sequences));
      LIME_RETURN_IF_ERROR(Attend(batch));
      absl::MutexLock lock(&mutex_);
      kv_->book().Computed(batch);
      kv_->Follow();
    }
    return absl::OkStatus();
  }

  // More loads than are needed, as before the end of a run.
  void StartLoads(int count) {
    for (int i = 0; i < count; ++i) Start(static_cast<int>((started_++) % plan_.NumParts()));
  }
  int64_t ended_loads() const {
    return std::ranges::count_if(loads_, [](const auto& load) { return load->done.HasBeenNotified(); });
  }
  size_t loads() const { return loads_.size(); }

  absl::StatusOr<std::shared_ptr<KvHandover>> HandOver() { return kv_->HandOver(backend_.numerics_id(), backend_.ShareKv(), {}); }
  // That the next plan finds all that was computed, in memory and on the disk.
  void ExpectAllIn(const KvHandover& handover) {
    for (const auto& each : positions_) {
      const int32_t sequence = each.first;
      const int64_t positions = each.second;
      const int64_t pages = KvPages::PagesFor(positions, 1);
      for (const int32_t layer : kLayers) {
        int64_t next = 0;
        const absl::Status status =
            handover.ReadAll(layer, /*hosts=*/false, {.sequence = sequence, .first = 0, .end = pages}, [&](int64_t first, auto bytes) {
              EXPECT_EQ(first, next);
              for (int64_t at = 0; at < std::ssize(bytes) && first * kPageTokens + at / kPositionBytes < positions; ++at) {
                const int64_t position = first * kPageTokens + at / kPositionBytes;
                if (bytes[static_cast<size_t>(at)] != backend_.ContentOf(layer, sequence, position, at % kPositionBytes))
                  return absl::InternalError(absl::StrCat("position ", position));
              }
              next = first + std::ssize(bytes) / plan_.page_bytes;
              return absl::OkStatus();
            });
        EXPECT_TRUE(status.ok()) << "layer " << layer << ", sequence " << sequence << ": " << status;
        EXPECT_EQ(next, pages);
      }
    }
  }

  int64_t shown() const { return backend_.shown(); }
  StageKv& kv() { return *kv_; }
  const Plan& plan() const { return plan_; }
  absl::Mutex& mutex() { return mutex_; }
  const TempDir& dir() const { return dir_; }

 private:
  struct Load {
    std::vector<std::byte> memory;
    std::byte* place = nullptr;
    std::shared_ptr<KvLoad> load;
    absl::Notification done;
    absl::Status status;
  };

  void End(int32_t sequence) {
    absl::MutexLock lock(&mutex_);
    kv_->book().Release(sequence);
    kv_->Follow();
    backend_.NextLife(sequence);
    positions_[sequence] = 0;
  }

  // A chunk of one sequence, and a token of others.
  MicroBatch Rows() {
    MicroBatch batch;
    const int32_t chosen = static_cast<int32_t>(Below(plan_.sequences));
    for (int32_t s = 0; s < plan_.sequences; ++s) {
      const int64_t count = s == chosen ? 1 + Below(plan_.prefill_chunk) : Below(2);
      for (int64_t i = 0; i < count && positions_[s] < plan_.context; ++i)
        batch.rows.push_back({.sequence = s, .position = static_cast<int32_t>(positions_[s]++)});
    }
    return batch;
  }

  absl::Status Extend(const StepOrder& order) {
    absl::MutexLock lock(&mutex_);
    while (true) {
      LIME_ASSIGN_OR_RETURN(const bool ready, kv_->book().Extend(order));
      kv_->Follow();
      if (ready) return absl::OkStatus();
      if (wrote_.WaitWithTimeout(&mutex_, absl::Seconds(30))) return absl::DeadlineExceededError("nothing was written for 30 s");
    }
  }

  void Start(int part) {
    auto load = std::make_unique<Load>();
    load->memory.resize(static_cast<size_t>(plan_.parts[static_cast<size_t>(part)].bytes + 4096));
    load->place = load->memory.data() + (4096 - reinterpret_cast<uintptr_t>(load->memory.data()) % 4096);
    Load* const raw = load.get();
    loads_.push_back(std::move(load));
    absl::MutexLock lock(&mutex_);
    raw->load = kv_->StartLoad(part, raw->place, [this, raw](absl::Status status) {
      absl::MutexLock ended(&mutex_);
      raw->status = std::move(status);
      raw->done.Notify();
    });
  }

  // Every part in turn; loads run ahead, into the next step too.
  absl::Status Attend(const MicroBatch& batch) {
    const int parts = plan_.NumParts();
    for (int part = 0; part < parts; ++part) {
      const size_t ahead = 1 + static_cast<size_t>(Below(parts + 3));
      while (loads_.size() < ahead) Start(static_cast<int>((started_++) % parts));
      const std::unique_ptr<Load> load = std::move(loads_.front());
      loads_.pop_front();
      load->done.WaitForNotification();
      LIME_RETURN_IF_ERROR(load->status);
      {
        absl::MutexLock lock(&mutex_);
        kv_->Locate(*load->load, batch);
      }
      LIME_RETURN_IF_ERROR(kv_->Attend());
    }
    return absl::OkStatus();
  }

  const TempDir dir_;
  const Plan plan_;
  PagesBackend backend_;
  std::mt19937_64 random_;
  absl::Mutex mutex_;
  absl::CondVar wrote_;
  std::map<int32_t, int64_t> positions_;
  std::deque<std::unique_ptr<Load>> loads_;  // begun, oldest first
  int64_t started_ = 0;
  std::unique_ptr<StageKv> kv_;  // before what its reads fill
};

TEST(StageKvTest, AttentionIsShownWhatWasComputed) {
  int64_t shown = 0;
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(Cases(12, 24)); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Steps steps(seed);
    const absl::Status status = steps.Run(150);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(std::filesystem::is_empty(steps.dir().path())) << "the file has a name";
    shown += steps.shown();
  }
  EXPECT_GT(shown, ManyCases() ? 5000 : 1000);
}

// What another plan's KV may have, while this one's may still take its own.
TEST(StageKvTest, RoomOnTheDiskIsReportedBesideTheFileOfThisPlan) {
  Steps steps(1);
  const Bytes set_aside = KvOnDiskBytes(steps.plan(), 0);
  EXPECT_EQ(set_aside, 2 * 3 * 8 * 12 * kKiB) << "layers, sequences, pieces";
  const auto used = [&]() -> std::optional<Bytes> {  // nothing where others write meanwhile
    const absl::StatusOr<Bytes> before = FreeDiskBytes(steps.dir().path());
    const std::optional<Bytes> room = steps.kv().disk_room();
    const absl::StatusOr<Bytes> after = FreeDiskBytes(steps.dir().path());
    if (!before.ok() || !room || before != after) return std::nullopt;
    return *before - *room;
  };
  const auto becomes_known = [&] {
    for (int i = 0; i < 10'000; ++i) {
      if (const auto known = used()) return *known;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return Bytes{-1};
  };
  EXPECT_EQ(becomes_known(), set_aside);
  ASSERT_TRUE(steps.Run(150).ok());
  const Bytes left = becomes_known();
  EXPECT_GE(left, 0);
  EXPECT_LT(left, set_aside) << "what is written is not free any more";
}

// Brings other bytes than are there.
class FlippingDevice : public FaultyDevice {
 public:
  FlippingDevice(std::unique_ptr<BlockDevice> device, std::function<bool()> flips)
      : FaultyDevice(std::move(device), [](const Read&) { return Fault{}; }), flips_(std::move(flips)) {}
  void StartRead(int channel, int file, int64_t offset, std::byte* destination, Bytes bytes, Completion done) override {
    FaultyDevice::StartRead(channel, file, offset, destination, bytes, [this, destination, done = std::move(done)](Result result) {
      if (result.bytes > 100 && flips_()) destination[100] ^= std::byte{1};
      done(result);
    });
  }

 private:
  const std::function<bool()> flips_;
};

// Holds reads back while it is closed.
class GatedDevice : public FaultyDevice {
 public:
  explicit GatedDevice(std::unique_ptr<BlockDevice> device) : FaultyDevice(std::move(device), [](const Read&) { return Fault{}; }) {}

  void StartRead(int channel, int file, int64_t offset, std::byte* destination, Bytes bytes, Completion done) override {
    {
      absl::MutexLock lock(&mutex_);
      if (closed_) {
        held_.push_back([=, this] { FaultyDevice::StartRead(channel, file, offset, destination, bytes, done); });
        return;
      }
    }
    FaultyDevice::StartRead(channel, file, offset, destination, bytes, std::move(done));
  }
  void Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }
  void Open() {
    std::vector<std::function<void()>> held;
    {
      absl::MutexLock lock(&mutex_);
      closed_ = false;
      held = std::exchange(held_, {});
    }
    for (auto& read : held) Post(std::move(read));
  }

 private:
  absl::Mutex mutex_;
  bool closed_ = false;
  std::vector<std::function<void()>> held_;
};

TEST(StageKvTest, LoadsUnderWayEndBeforeItLeavesAllThatWasComputed) {
  GatedDevice* gate = nullptr;
  Steps steps(3, [&](std::unique_ptr<BlockDevice> device) {
    auto gated = std::make_unique<GatedDevice>(std::move(device));
    gate = gated.get();
    return gated;
  });
  const absl::Status status = steps.Run(100);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_GT(steps.kv().book().most_away(), 0) << "or nothing is read";
  gate->Close();
  const size_t before = steps.loads();
  steps.StartLoads(8);
  absl::Notification left;
  absl::StatusOr<std::shared_ptr<KvHandover>> kv = absl::UnknownError("");
  std::atomic<pid_t> leaver = 0;
  std::thread leaves([&] {
    leaver = ::gettid();
    kv = steps.HandOver();
    left.Notify();
  });
  while (leaver == 0) std::this_thread::yield();
  EXPECT_TRUE(AwaitWaiting(std::to_string(leaver)));
  EXPECT_FALSE(left.HasBeenNotified()) << "reads would write into memory that is gone";
  EXPECT_LT(steps.ended_loads(), static_cast<int64_t>(before + 8));
  gate->Open();
  leaves.join();
  ASSERT_TRUE(kv.ok()) << kv.status();
  EXPECT_EQ(steps.ended_loads(), static_cast<int64_t>(before + 8));
  steps.ExpectAllIn(**kv);
}

TEST(StageKvTest, WhatItLeavesIsAllThatWasComputed) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Steps steps(seed);
    const absl::Status status = steps.Run(120);
    ASSERT_TRUE(status.ok()) << status;
    const auto handover = steps.HandOver();
    ASSERT_TRUE(handover.ok()) << handover.status();
    steps.ExpectAllIn(**handover);
  }
}

TEST(StageKvTest, WhatComesBackOtherwiseIsReadAgain) {
  int reads = 0;
  Steps steps(7, [&](std::unique_ptr<BlockDevice> device) {
    return std::make_unique<FlippingDevice>(std::move(device), [&] { return ++reads % 3 == 0; });
  });
  const absl::Status status = steps.Run(150);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_GT(steps.shown(), 100);
}

TEST(StageKvTest, ADiskThatAlwaysErrsIsNamed) {
  Steps steps(7,
              [](std::unique_ptr<BlockDevice> device) { return std::make_unique<FlippingDevice>(std::move(device), [] { return true; }); });
  const absl::Status status = steps.Run(200);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("was damaged on the disk"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(steps.dir().path()));
}

TEST(StageKvTest, ADiskThatDoesNotReadIsNamed) {
  Steps steps(7, [](std::unique_ptr<BlockDevice> device) {
    return std::make_unique<FaultyDevice>(std::move(device), [](const FaultyDevice::Read&) { return FaultyDevice::Fault{.error = EIO}; });
  });
  const absl::Status status = steps.Run(200);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(".lime-kv-"));
}

TEST(StageKvTest, AFullDiskIsNamedWhenItsRoomIsNeeded) {
  Steps steps(7);
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit none = before;
  none.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  const absl::Status status = steps.Run(200);
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("write at offset"));
  EXPECT_EQ(steps.shown(), 0);
}

TEST(StageKvTest, AFolderThatCannotBeWrittenIsAnErrorThatSaysWhatToDo) {
  const Plan plan = SmallPlan();
  PagesBackend backend(plan, plan.devices[0].kv_pages);
  absl::Mutex mutex;
  const auto kv = StageKv::Create(plan, {.stage = {.layers = {0, 3}, .backend = &backend}, .mutex = &mutex, .folder = "/nowhere/at/all"});
  EXPECT_FALSE(kv.ok());
  EXPECT_THAT(std::string(kv.status().message()), HasSubstr("give a --kv-dir"));
}

TEST(StageKvTest, ADiskThatHasNoRoomForAllIsAnErrorThatSaysHowMuchItHas) {
  TempDir dir;
  const int64_t pieces = *FreeDiskBytes(dir.path()) / kMiB + 1024;
  const auto file = KvFile::Create(dir.path(), {.layers = 1, .sequences = 2, .pieces = pieces, .piece_bytes = kMiB});
  EXPECT_TRUE(absl::IsResourceExhausted(file.status())) << file.status();
  EXPECT_THAT(std::string(file.status().message()), HasSubstr(FormatBytes(2 * pieces * kMiB)));
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("give --kv-dir on another disk, or plan a shorter context"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

}  // namespace
}  // namespace lime
