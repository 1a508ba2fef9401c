// Attention of which another device has the first pieces: two backends of one model give the bits
// of one that has all, whatever the other one is at.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>

#include "kernels/cpu/attention.h"
#include "kernels/registry/registry.h"
#include "planner/plan/device/backend_names.h"
#include "tests/kernels/random_model.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSequences = 3, kContext = kRandomModelContext, kMaxRows = 96, kPages = kContext / cpu::kPagePositions;

template <typename T>
std::vector<std::byte> BitsOf(std::span<T> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

// A backend that computes attention by rows, and what happens between those of V and O.
class Device {
 public:
  using Between = std::function<void(int64_t layer)>;

  Device(const ModelSpec& spec, const std::vector<std::vector<cpu::Array>>& weights, int threads) : spec_(spec), weights_(weights) {
    const int64_t layers = spec.config.num_layers();
    auto backend = OpenBackend(kCpuBackend, spec,
                               {.num_threads = threads,
                                .max_rows = kMaxRows,
                                .max_logit_rows = kSequences,
                                .max_sequences = kSequences,
                                .context = kContext,
                                .num_kv_pages = kSequences * layers * kPages,
                                .attends_pieces = true,
                                .attends_for_others = true});
    EXPECT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
    for (size_t i = 0; i < spec.blocks.size(); ++i) {
      BlockWeights bound;
      for (size_t t = 0; t < spec.blocks[i].tensors.size(); ++t) bound.tensors.push_back(Bound(i, t));
      EXPECT_TRUE(backend_->BindBlock(spec.blocks[i], bound).ok());
    }
    for (int32_t sequence = 0; sequence < kSequences; ++sequence)
      for (int64_t layer = 0; layer < layers; ++layer) backend_->SetPages(sequence, layer, Pages(sequence, layer, 0));
  }

  Backend& operator*() { return *backend_; }
  Backend* operator->() { return backend_.get(); }

  // The bits of the residual stream after every layer, and of the logits.
  std::vector<std::vector<std::byte>> Step(const MicroBatch& batch, const Between& between = nullptr) {
    std::vector<std::vector<std::byte>> bits;
    EXPECT_TRUE(backend_->Begin(batch).ok() && backend_->Compute({BlockKind::kEmbedding, 0}).ok());
    for (int32_t layer = 0; layer < spec_.config.num_layers(); ++layer) {
      for (const TensorRole role : {TensorRole::kQ, TensorRole::kK, TensorRole::kV}) Rows(layer, role);
      if (between) between(layer);
      Rows(layer, TensorRole::kO);
      EXPECT_TRUE(backend_->Compute({BlockKind::kMlp, layer}).ok());
      bits.push_back(BitsOf(backend_->Hidden()));
    }
    EXPECT_TRUE(backend_->Compute({BlockKind::kHead, 0}).ok());
    bits.push_back(BitsOf(backend_->Logits()));
    return bits;
  }

  void Prefill(int32_t sequence, int32_t end) {
    for (int32_t begin = 0; begin < end; begin += kMaxRows) {
      MicroBatch batch;
      AddRows(sequence, begin, std::min<int32_t>(end, begin + kMaxRows), batch);
      Step(batch);
    }
  }

  // Takes the first pieces of a sequence out of their pages, which then hold nothing but NaN and
  // are not named any more.
  std::vector<std::byte> MoveOut(int32_t sequence, int64_t layer, int64_t pieces) {
    const int64_t page_bytes = spec_.KvPageBytes();
    std::vector<std::byte> moved;
    for (int64_t i = 0; i < 16 * pieces; ++i) {
      const std::byte* const page = backend_->KvPage(Pages(sequence, layer, 0)[static_cast<size_t>(i)]);
      moved.insert(moved.end(), page, page + page_bytes);
      std::memset(const_cast<std::byte*>(page), 0xff, static_cast<size_t>(page_bytes));
    }
    backend_->SetPages(sequence, layer, Pages(sequence, layer, pieces));
    return moved;
  }

  // Of one layer, where all are in their pages.
  absl::Status AttendPiece(int64_t layer, int64_t piece) {
    const std::vector<const std::byte*> nowhere(kSequences, nullptr);
    return backend_->AttendToPieces(layer, piece, piece + 1, nowhere);
  }

 private:
  const std::byte* Bound(size_t block, size_t tensor) const {
    const bool streams = spec_.blocks[block].id.kind == BlockKind::kAttention && !IsPinned(spec_.blocks[block].tensors[tensor]);
    return streams ? nullptr : weights_[block][tensor].data.data();
  }

  std::vector<int32_t> Pages(int32_t sequence, int64_t layer, int64_t pieces_away) const {
    std::vector<int32_t> pages;
    for (int64_t i = 0; i < kPages; ++i)
      pages.push_back(i < 16 * pieces_away ? -1 : static_cast<int32_t>((sequence * spec_.config.num_layers() + layer) * kPages + i));
    return pages;
  }

  void Rows(int32_t layer, TensorRole role) {
    for (size_t i = 0; i < spec_.blocks.size(); ++i) {
      if (!(spec_.blocks[i].id == BlockId{BlockKind::kAttention, layer})) continue;
      for (size_t t = 0; t < spec_.blocks[i].tensors.size(); ++t) {
        const TensorSpec& tensor = spec_.blocks[i].tensors[t];
        if (tensor.role != role || IsPinned(tensor)) continue;
        const RowsInMemory rows{.rows = {role, 0, tensor.info.shape[0]}, .weight = weights_[i][t].data.data()};
        const absl::Status status = backend_->ComputeRows(spec_.blocks[i].id, rows);
        EXPECT_TRUE(status.ok()) << status;
      }
    }
  }

  const ModelSpec& spec_;
  const std::vector<std::vector<cpu::Array>>& weights_;
  std::unique_ptr<Backend> backend_;
};

// What one AttendFor was asked, and what it made of it.
struct Asked {
  std::vector<int32_t> positions;
  std::vector<float> queries, records;
  std::vector<const std::byte*> pieces;
};

class RemoteAttentionTest : public ::testing::TestWithParam<std::string> {
 protected:
  RemoteAttentionTest() : spec_(RandomModelSpec(GetParam())), weights_(RandomWeights(spec_)) {
    AddRows(0, 700, 701, batch_);
    AddRows(1, 520, 560, batch_);  // a chunk of a prompt, into a piece that begins within
    AddRows(2, 40, 41, batch_);
  }

  void Prefill(Device& device) {
    for (const auto& [sequence, end] : {std::pair(0, 700), std::pair(1, 520), std::pair(2, 40)}) device.Prefill(sequence, end);
  }

  int64_t page_bytes() const { return spec_.KvPageBytes(); }

  // Lays the first pieces of the owner's sequences down where the host finds them.
  void MoveAway(const std::vector<int32_t>& covered, Device& owner) {
    memory_.clear();
    for (int64_t layer = 0; layer < spec_.config.num_layers(); ++layer)
      for (int32_t sequence = 0; sequence < kSequences; ++sequence) memory_.push_back(owner.MoveOut(sequence, layer, covered[sequence]));
  }

  // The owner's batch of which the host has the pieces that were moved away.
  std::vector<std::vector<std::byte>> StepOfBoth(const std::vector<int32_t>& covered, Device& owner, Device& host) {
    return owner.Step(batch_, [&](int64_t layer) {
      const auto queries = owner->Queries(layer);
      ASSERT_TRUE(queries.ok()) << queries.status();
      const size_t q_cols = queries->size() / batch_.rows.size(), width = static_cast<size_t>(owner->RecordFloats());
      std::vector<float> records(batch_.rows.size() * width, std::numeric_limits<float>::quiet_NaN());
      for (size_t begin = 0, end = 0; begin < batch_.rows.size(); begin = end) {
        const int32_t sequence = batch_.rows[begin].sequence;
        Asked ask;
        for (end = begin; end < batch_.rows.size() && batch_.rows[end].sequence == sequence; ++end)
          ask.positions.push_back(batch_.rows[end].position);
        const auto some = queries->subspan(begin * q_cols, (end - begin) * q_cols);
        ask.queries.assign(some.begin(), some.end());
        const std::byte* const memory = memory_[static_cast<size_t>(layer * kSequences + sequence)].data();
        for (int64_t piece = 0; piece < covered[sequence]; ++piece) ask.pieces.push_back(memory + piece * 16 * page_bytes());
        if (ask.pieces.empty()) continue;
        ask.records.assign((end - begin) * width, 7.0F);
        const absl::Status status = host->AttendFor(ask.positions, ask.queries, ask.pieces, ask.records);
        ASSERT_TRUE(status.ok()) << status;
        std::ranges::copy(ask.records, records.begin() + static_cast<int64_t>(begin * width));
        asked_.push_back(std::move(ask));
      }
      const absl::Status status = owner->ContinueFromRecords(layer, covered, records);
      ASSERT_TRUE(status.ok()) << status;
      std::ranges::fill(records, std::numeric_limits<float>::quiet_NaN());  // nobody needs them afterwards
    });
  }

  ModelSpec spec_;
  const std::vector<std::vector<cpu::Array>> weights_;
  MicroBatch batch_;
  std::vector<std::vector<std::byte>> memory_;  // by layer and sequence
  std::vector<Asked> asked_;
};

TEST_P(RemoteAttentionTest, TwoDevicesHaveTheBitsOfOne) {
  Device whole(spec_, weights_, 1), host(spec_, weights_, 1);
  Prefill(whole);
  const auto expected = whole.Step(batch_);
  for (const std::vector<int32_t>& covered : std::vector<std::vector<int32_t>>{{0, 0, 0}, {1, 0, 0}, {1, 2, 0}, {2, 2, 0}}) {
    Device owner(spec_, weights_, 2);
    Prefill(owner);
    MoveAway(covered, owner);
    EXPECT_EQ(StepOfBoth(covered, owner, host), expected) << covered[0] << " " << covered[1] << " " << covered[2];
  }
}

// In the middle of the pieces of a batch of its own, on one thread and on several.
TEST_P(RemoteAttentionTest, AHostsOwnBatchIsLeftAlone) {
  Device owner(spec_, weights_, 1), host(spec_, weights_, 2);
  Prefill(owner);
  const std::vector<int32_t> covered = {2, 1, 0};
  MoveAway(covered, owner);
  StepOfBoth(covered, owner, host);
  ASSERT_EQ(asked_.size(), 4U);

  Prefill(host);
  const auto expected = host.Step(batch_);
  int64_t attended = 0;
  const auto attend_for_owner = [&] {
    for (const Asked& ask : asked_) {
      std::vector<float> records(ask.records.size(), 7.0F);
      ASSERT_TRUE(host->AttendFor(ask.positions, ask.queries, ask.pieces, records).ok());
      EXPECT_EQ(cpu::Bits(records), cpu::Bits(ask.records));
      ++attended;
    }
  };
  const auto got = host.Step(batch_, [&](int64_t layer) {
    attend_for_owner();
    for (int64_t piece = 0; piece < 2; ++piece) {
      ASSERT_TRUE(host.AttendPiece(layer, piece).ok());
      attend_for_owner();
    }
  });
  EXPECT_EQ(got, expected);
  EXPECT_EQ(attended, 4 * 3 * spec_.config.num_layers());
}

TEST_P(RemoteAttentionTest, WhatDoesNotAgreeIsRefused) {
  Device device(spec_, weights_, 1);
  const size_t width = static_cast<size_t>(device->RecordFloats()), q_cols = static_cast<size_t>(spec_.config.q_cols(0));
  EXPECT_EQ(width, q_cols + 2 * static_cast<size_t>(spec_.config.num_heads));
  const std::vector<std::byte> piece(static_cast<size_t>(16 * page_bytes()));
  const std::vector<const std::byte*> pieces = {piece.data(), piece.data()};
  const auto attend = [&](std::vector<int32_t> positions, size_t queries, std::span<const std::byte* const> of, size_t records) {
    const std::vector<float> q(queries);
    std::vector<float> out(records);
    return device->AttendFor(positions, q, of, out);
  };
  EXPECT_TRUE(attend({512, 513}, 2 * q_cols, pieces, 2 * width).ok());
  for (const absl::Status& status :
       {attend({511, 512}, 2 * q_cols, pieces, 2 * width), attend({-1}, q_cols, pieces, width), attend({}, 0, pieces, 0),
        attend(std::vector<int32_t>(kMaxRows + 1, 600), (kMaxRows + 1) * q_cols, pieces, (kMaxRows + 1) * width),
        attend({600}, q_cols - 1, pieces, width), attend({600}, q_cols, pieces, width + 1), attend({600}, q_cols, {}, width)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }

  Prefill(device);
  const std::vector<float> records(batch_.rows.size() * width);
  const std::vector<int32_t> none = {0, 0, 0};
  device.Step(batch_, [&](int64_t layer) {
    EXPECT_THAT(std::string(device->ContinueFromRecords(layer, none, records).message()),
                HasSubstr("records came after attention to -1 pieces"));
    ASSERT_TRUE(device->Queries(layer).ok());
    EXPECT_EQ(device->ContinueFromRecords(layer, std::vector<int32_t>{3, 0, 0}, records).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(device->ContinueFromRecords(layer, none, std::span(records).first(width)).code(), absl::StatusCode::kInvalidArgument);
    if (layer == 0) {
      EXPECT_TRUE(device->ContinueFromRecords(layer, none, records).ok());
      EXPECT_FALSE(device.AttendPiece(layer, 0).ok());
      EXPECT_FALSE(device->ContinueFromRecords(layer, none, records).ok()) << "twice";
    } else {
      EXPECT_TRUE(device.AttendPiece(layer, 0).ok());
      EXPECT_FALSE(device->ContinueFromRecords(layer, none, records).ok());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Families, RemoteAttentionTest, ::testing::Values("llama", "qwen3", "opt", "gates", "mistral_300", "mistral_20"),
                         [](const auto& info) { return info.param; });

TEST(RemoteAttentionMemoryTest, RoomForOthersIsPlannedAsItIsMade) {
  const ModelSpec spec = RandomModelSpec("llama");
  BackendOptions options{.max_rows = kMaxRows, .max_logit_rows = 1, .max_sequences = kSequences, .context = kContext, .num_kv_pages = 1};
  std::vector<Bytes> bytes;
  for (const auto& [pieces, others] : {std::pair(false, false), std::pair(true, false), std::pair(false, true), std::pair(true, true)}) {
    options.attends_pieces = pieces, options.attends_for_others = others;
    const auto backend = OpenBackend(kCpuBackend, spec, options);
    ASSERT_TRUE(backend.ok()) << backend.status();
    bytes.push_back((*backend)->ActivationBytes());
    EXPECT_EQ(bytes.back(), *PlanActivationBytes(kCpuBackend, spec, options));
  }
  EXPECT_GT(bytes[2], bytes[0] + kMaxRows * 4 * (2 + 64) * static_cast<Bytes>(sizeof(float)));
  EXPECT_EQ(bytes[3] - bytes[1], bytes[2] - bytes[0]);
}

}  // namespace
}  // namespace lime
