// A plan for this process of which something streams gives the bits of the model by itself, all in
// memory: tiny random models of every family, dtype and packing, and the shipped ones, whatever
// stays, wherever it is placed, prepared or not, by either loader, through rings of every size.
// (With parts that are evicted and loaded again during a generation: stage_pressure_test.)
#include <algorithm>

#include "daemon/stores/block_store.h"
#include "gtest/gtest.h"
#include "tests/cases.h"
#include "tests/integration/models.h"
#include "tests/integration/variants.h"

namespace lime {
namespace {

constexpr Placement kPlacements[] = {Placement::kAuto, Placement::kFirstN, Placement::kLastN, Placement::kInterleaved,
                                     Placement::kAttentionFirst};
constexpr LoaderKind kLoaders[] = {LoaderKind::kRead, LoaderKind::kMmap};

// A folder, plain or prepared, in which nothing, half or all stays, placed in each way where that
// makes a difference.
void ExpectSameBitsWhateverStays(const std::string& dir, const std::vector<int32_t>& ids, bool prepared, Bytes part_bytes,
                                 uint64_t expected) {
  for (const LoaderKind loader : kLoaders) {
    const auto expect = [&](double resident, Placement placement) {
      const RunShape shape{.loader = loader, .chunk = 64, .resident = resident, .placement = placement, .part_bytes = part_bytes};
      EXPECT_EQ(LogitsHashOf(dir, shape, ids), expected)
          << dir << ", " << LoaderName(loader) << ", " << resident << " resident, " << static_cast<int>(placement);
    };
    expect(0, Placement::kAuto);
    expect(1, Placement::kAuto);
    for (const Placement placement : kPlacements) {
      // Where blocks are placed is decided before either loader sees them, and the same for a folder and its store.
      if ((loader == LoaderKind::kRead && prepared) || placement == Placement::kInterleaved || Soaking()) expect(0.5, placement);
    }
  }
}

// Rings of two, three and all pieces, blocks in many pieces with matrices cut, prompts in chunks of
// 1, 7 and all at once: each pair of ring and piece with one chunk, each chunk with two of the
// pairs.
void ExpectSameBitsThroughEveryRing(const std::string& dir, const std::vector<int32_t>& ids) {
  const std::vector<int32_t> some(ids.begin(), ids.begin() + 20);  // token by token
  const uint64_t expected = ReferenceHash(dir, ids), expected_of_some = ReferenceHash(dir, some);
  constexpr int64_t kChunks[] = {1, 7, 300};
  int next = 0;
  for (const int64_t pieces : {2, 3, 50}) {
    for (const Bytes part_bytes : {4 * kKiB, 20 * kKiB}) {
      const int64_t chunk = kChunks[(next++ * 2) % 3];
      const RunShape shape{.chunk = chunk, .resident = 0.3, .ring_parts = pieces, .part_bytes = part_bytes};
      EXPECT_EQ(LogitsHashOf(dir, shape, chunk == 1 ? some : ids), chunk == 1 ? expected_of_some : expected)
          << pieces << " pieces of " << part_bytes << " in the ring, chunk " << chunk;
    }
  }
  const RunShape batch{.chunk = 16, .companions = {RandomIds(5, 40, 200), RandomIds(6, 3, 200)}, .resident = 0, .part_bytes = 8 * kKiB};
  EXPECT_EQ(LogitsHashOf(dir, batch, ids), expected) << "in a batch";
}

void ExpectSameBits(const std::string& model, const std::string& store, int64_t vocab) {
  const std::vector<int32_t> ids = RandomIds(1, 290, std::min<int64_t>(200, vocab));
  ASSERT_TRUE(PrepareBlockStore(model, store).ok());
  const uint64_t expected = ReferenceHash(model, ids);
  ExpectSameBitsWhateverStays(model, ids, /*prepared=*/false, 32 * kKiB, expected);
  ExpectSameBitsWhateverStays(store, ids, /*prepared=*/true, kPartBytes, expected);
  ExpectSameBitsThroughEveryRing(model, ids);
}

class StreamingBitsTest : public ::testing::TestWithParam<Variant> {};

TEST_P(StreamingBitsTest, LogitsAreTheSameWhateverStreams) {
  const MakeModelOptions options = OptionsOf(GetParam());
  TempDir dir;
  ASSERT_TRUE(MakeModel(options, dir / "model").ok());
  ExpectSameBits(dir / "model", dir / "store", options.config.vocab_size);
}

constexpr auto kNameOf = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Families, StreamingBitsTest, ::testing::ValuesIn(Variants()), kNameOf);
INSTANTIATE_TEST_SUITE_P(Packed, StreamingBitsTest, ::testing::ValuesIn(PackedVariants()), kNameOf);

class ShippedBitsTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ShippedBitsTest, LogitsAreTheSameWhateverStreams) {
  TempDir dir;
  ExpectSameBits(ShippedModel(GetParam()), dir / "store", 512);
}

INSTANTIATE_TEST_SUITE_P(Shipped, ShippedBitsTest, ::testing::Values("lime-fables", "lime-fables-relu"),
                         [](const auto& info) { return info.param == "lime-fables" ? "Silu" : "Relu"; });

}  // namespace
}  // namespace lime
