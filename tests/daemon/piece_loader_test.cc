#include "daemon/engine/piece_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cerrno>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "testbed/make_model/make_model.h"
#include "tests/daemon/faulty_device.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using Use = WeightStream::Use;

// A tiny model in many pieces, and the hash of the rows of each.
class PieceLoaderTest : public ::testing::Test {
 protected:
  PieceLoaderTest() {
    MakeModelOptions options;
    options.config.num_layers = 4;
    LIME_CHECK(MakeModel(options, dir_.path() + "/model").ok());
    checkpoint_.emplace(*Checkpoint::Open(dir_.path() + "/model"));
    spec_.emplace(*checkpoint_->BuildModelSpec());
    num_blocks_ = static_cast<int>(spec_->blocks.size());
  }

  std::unique_ptr<PieceReader> Reader(FaultyDevice::Plan plan = nullptr) {
    PieceReader::Options options{.lanes = 3, .read_bytes = 4 * kKiB, .piece_bytes = 12 * kKiB};
    if (plan) {
      options.wrap_device = [plan](std::unique_ptr<BlockDevice> device) { return std::make_unique<FaultyDevice>(std::move(device), plan); };
    }
    auto reader = PieceReader::Open(*checkpoint_, *spec_, options);
    LIME_CHECK(reader.ok()) << reader.status();
    return *std::move(reader);
  }

  std::unique_ptr<PieceLoader> Loader(std::vector<bool> resident, Bytes more_ring = 0, FaultyDevice::Plan plan = nullptr) {
    std::unique_ptr<PieceReader> reader = Reader(std::move(plan));
    const Bytes ring = PieceLoader::LeastRing(*reader, num_blocks_) + more_ring;
    auto loader = PieceLoader::Create(std::move(reader), num_blocks_, {.ring_bytes = ring, .resident = std::move(resident)});
    LIME_CHECK(loader.ok()) << loader.status();
    return *std::move(loader);
  }

  // Hash of all rows of a piece.
  static uint64_t HashOf(const PieceReader& reader, const ModelSpec& spec, int block, int piece, const std::byte* place) {
    uint64_t hash = 0;
    for (int i = 0; i < reader.NumRows(block, piece); ++i) {
      const RowsInMemory rows = reader.Rows(block, piece, i, place);
      for (const TensorSpec& tensor : spec.blocks[static_cast<size_t>(block)].tensors) {
        if (tensor.role != rows.rows.role || tensor.part != TensorPart::kWeight || IsKept(tensor)) continue;
        const Bytes bytes = (rows.rows.end - rows.rows.begin) * tensor.info.bytes / tensor.info.shape[0];
        hash = XXH3_64bits_withSeed(rows.weight, static_cast<size_t>(bytes), hash);
      }
    }
    return hash;
  }

  // One step; every piece that comes must have the hash it had when it came first.
  absl::Status Step(PieceLoader& loader, bool with_head = true) {
    LIME_RETURN_IF_ERROR(loader.BeginStep(with_head));
    for (int block = 1; block < num_blocks_; ++block) {
      const Use use = loader.BeginBlock();
      for (int piece = 0; piece < loader.reader().NumPieces(block); ++piece) {
        const std::byte* place = nullptr;
        if (use == Use::kStream || use == Use::kFill) {
          LIME_ASSIGN_OR_RETURN(place, loader.AwaitPiece(piece));
        } else if (use == Use::kResident) {
          place = loader.FilledPiece(block, piece);
        }
        if (place != nullptr) {
          const uint64_t hash = HashOf(loader.reader(), *spec_, block, piece, place);
          EXPECT_EQ(hashes_.emplace(std::pair(block, piece), hash).first->second, hash) << block << "." << piece;
        }
        if (use == Use::kStream || use == Use::kFill) loader.ReleasePiece();
      }
      LIME_RETURN_IF_ERROR(loader.FinishBlock());
      loader.TakeFreed();
    }
    return absl::OkStatus();
  }

  TempDir dir_;
  std::optional<Checkpoint> checkpoint_;
  std::optional<ModelSpec> spec_;
  int num_blocks_ = 0;
  std::map<std::pair<int, int>, uint64_t> hashes_;
};

TEST_F(PieceLoaderTest, BringsEveryPieceInEveryStepWhateverTheRing) {
  for (const Bytes more : {Bytes{0}, 8 * kKiB, 40 * kKiB, 4 * kMiB}) {
    const auto loader = Loader(std::vector<bool>(static_cast<size_t>(num_blocks_), false), more);
    for (int step = 0; step < 5; ++step) ASSERT_TRUE(Step(*loader, step % 2 == 0).ok());
  }
  EXPECT_GT(hashes_.size(), 20u);
}

TEST_F(PieceLoaderTest, BlocksAreGivenBackAndFilledWhilePiecesAreOnTheirWay) {
  std::mt19937 random(5);
  const auto loader = Loader(std::vector<bool>(static_cast<size_t>(num_blocks_), false), 16 * kKiB, [&](const FaultyDevice::Read&) {
    if (random() % 4 == 0) std::this_thread::yield();
    return FaultyDevice::Fault{};
  });
  std::mt19937 own(6);
  for (int step = 0; step < 40; ++step) {
    for (int i = 0; i < 3; ++i) {
      const int block = 1 + static_cast<int>(own() % static_cast<uint32_t>(num_blocks_ - 1));
      if (own() % 2 == 0) {
        loader->Shed(block);
      } else {
        const bool streams = loader->state(block) == WeightStream::State::kStreamed;
        loader->Fill(block, streams ? loader->MakeRoom(block).value() : HugeBuffer());
      }
    }
    ASSERT_TRUE(Step(*loader, own() % 4 != 0).ok());
  }
}

TEST_F(PieceLoaderTest, AfterAnErrorTheNextStepBeginsAnew) {
  std::atomic<int> failing = 0;
  const auto loader = Loader(std::vector<bool>(static_cast<size_t>(num_blocks_), false), 16 * kKiB, [&](const FaultyDevice::Read&) {
    return failing > 0 ? FaultyDevice::Fault{.error = EIO} : FaultyDevice::Fault{};
  });
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(Step(*loader).ok());
    failing = 1;
    const absl::Status status = Step(*loader);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("model.safetensors"));
    failing = 0;
  }
  EXPECT_TRUE(Step(*loader).ok());
}

// With a ring that holds the whole model all reads have ended before most pieces are used.
TEST_F(PieceLoaderTest, WhatCouldNotBeReadIsNeverHandedOut) {
  std::set<int64_t> offsets;
  {
    const auto loader = Loader(std::vector<bool>(static_cast<size_t>(num_blocks_), false), 8 * kMiB, [&](const FaultyDevice::Read& read) {
      offsets.insert(read.offset);
      return FaultyDevice::Fault{};
    });
    ASSERT_TRUE(Step(*loader).ok());
  }
  for (const int64_t bad : offsets) {
    std::atomic<bool> failing = true;
    const auto loader = Loader(std::vector<bool>(static_cast<size_t>(num_blocks_), false), 8 * kMiB, [&](const FaultyDevice::Read& read) {
      return failing && read.offset == bad ? FaultyDevice::Fault{.error = EIO} : FaultyDevice::Fault{};
    });
    EXPECT_EQ(Step(*loader).code(), absl::StatusCode::kUnavailable) << "offset " << bad;
    failing = false;
    EXPECT_TRUE(Step(*loader).ok());
  }
}

TEST_F(PieceLoaderTest, ClosesWhilePiecesAreOnTheirWay) {
  for (int i = 0; i < 20; ++i) {
    const auto loader = Loader(std::vector<bool>(static_cast<size_t>(num_blocks_), false), 64 * kKiB);
    ASSERT_TRUE(loader->BeginStep(true).ok());
  }
}

TEST_F(PieceLoaderTest, RefusesARingThatHoldsNoTwoPieces) {
  std::unique_ptr<PieceReader> reader = Reader();
  const Bytes least = PieceLoader::LeastRing(*reader, num_blocks_);
  const auto loader = PieceLoader::Create(
      std::move(reader), num_blocks_, {.ring_bytes = least - 1, .resident = std::vector<bool>(static_cast<size_t>(num_blocks_), false)});
  EXPECT_EQ(loader.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(loader.status().message()), HasSubstr("two pieces"));
}

}  // namespace
}  // namespace lime
