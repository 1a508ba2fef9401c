// Reads of several bundles at once, on a real disk: each record comes into its own slot.
#include "daemon/weights/bundle_scatter.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "daemon/machine/huge_buffer.h"
#include "planner/base/random.h"
#include "tests/daemon/weights/block_store_fixture.h"

namespace lime {
namespace {

class BundleScatterTest : public ::testing::Test {
 protected:
  // One layer of a gated ReLU model, whose parts have hidden * 4 bytes.
  LayerBundles Prepare(int64_t hidden, int64_t neurons = 160) {
    MakeModelOptions options{.dtype = DType::kF32};
    options.config = {
        .num_layers = 1, .hidden_size = hidden, .num_heads = 1, .num_kv_heads = 1, .head_dim = 16, .intermediate_size = neurons};
    options.config.activation = Activation::kRelu;
    const std::string model = dir_.file(absl::StrCat("model", hidden)), store = dir_.file(absl::StrCat("store", hidden));
    EXPECT_TRUE(MakeModel(options, model).ok());
    const auto report = PrepareBlockStore(model, store, {.bundles = true});
    EXPECT_TRUE(report.ok()) << report.status();
    const Checkpoint checkpoint = Checkpoint::Open(store).value();
    const ModelSpec spec = checkpoint.BuildModelSpec().value();
    return *BundleStore::Open(checkpoint, spec).value().OfLayer(0);
  }

  // Runs all reads, and checks every record.
  static void ExpectRead(const LayerBundles& layer, BlockDevice& device, const std::vector<BundleSlot>& wanted, int first,
                         const ScatteredReads& scattered) {
    for (const ScatteredRead& read : scattered.reads) {
      const auto segments = std::span(scattered.segments).subspan(read.first_segment, read.num_segments);
      ASSERT_LE(segments.size(), BlockDevice::kMostSegments);
      Bytes bytes = 0;
      for (const BlockDevice::Segment& segment : segments) {
        EXPECT_EQ(segment.bytes % kBundleReadAlign, 0);
        bytes += segment.bytes;
      }
      EXPECT_EQ(bytes, read.bytes);
      absl::Notification done;
      BlockDevice::Result result;
      device.Post([&] {
        device.StartScatteredRead(0, 0, read.offset, segments, [&](BlockDevice::Result got) {
          result = got;
          done.Notify();
        });
      });
      done.WaitForNotification();
      ASSERT_EQ(result.error, 0) << device.Describe();
      ASSERT_EQ(result.bytes, read.bytes);
    }
    const BundleLayout& layout = layer.shape().layout;
    for (const BundleSlot& slot : wanted) {
      const std::span<const std::byte> record(slot.memory + layer.RangeOf(slot.neuron, first).skipped,
                                              static_cast<size_t>(layout.record_bytes - layout.PartAt(first)));
      const absl::Status status = layer.Check(slot.neuron, first, record);
      ASSERT_TRUE(status.ok()) << status;
    }
  }

  TempDir dir_;  // on a disk, not in memory
};

TEST_F(BundleScatterTest, JoinedReadsBringEachRecordIntoItsSlot) {
  Random random(3);
  int64_t joined_reads = 0;
  for (const int64_t hidden : {1024, 256}) {  // bundles of 12 KiB; of 3 KiB, which share pages
    const LayerBundles layer = Prepare(hidden);
    const BundleLayout& layout = layer.shape().layout;
    const bool apart = layout.stride % kBundleReadAlign == 0;
    ASSERT_EQ(apart, hidden == 1024);
    const auto slots = HugeBuffer::AllocatePresent(layer.shape().neurons * layout.slot_bytes + kBundleReadAlign);
    ASSERT_TRUE(slots.ok()) << slots.status();
    for (const bool io_uring : {true, false}) {
      const auto device = OpenBlockDevice({layer.path()}, {.channels = 1, .direct = true, .io_uring = io_uring});
      ASSERT_TRUE(device.ok()) << device.status();
      for (const int percent : {3, 30, 95}) {
        for (const int first : {0, 1, 2}) {
          for (const Bytes gap_bytes : {Bytes{0}, 2 * layout.stride}) {
            SCOPED_TRACE(
                absl::StrCat((*device)->Describe(), ", hidden ", hidden, ", ", percent, " %, from part ", first, ", gaps ", gap_bytes));
            std::vector<BundleSlot> wanted;
            for (int32_t neuron = 0; neuron < layer.shape().neurons; ++neuron) {
              if (random.Below(100) < percent)
                wanted.push_back({neuron, slots->data() + kBundleReadAlign + std::ssize(wanted) * layout.slot_bytes});
            }
            std::fill(slots->data(), slots->data() + slots->bytes(), std::byte{0xee});
            ScatteredReads scattered;
            const ScatterOptions options{.first_part = first,
                                         .gap_bytes = gap_bytes,
                                         .longest_bytes = 256 * kKiB,
                                         .gap_memory = {slots->data(), static_cast<size_t>(kBundleReadAlign)}};
            ScatterReads(layer, wanted, options, scattered);
            ExpectRead(layer, **device, wanted, first, scattered);
            if (!apart) EXPECT_EQ(scattered.reads.size(), wanted.size()) << "two bundles share a page";
            if (apart && percent == 30) EXPECT_EQ(scattered.reads.size(), scattered.joined.size()) << "few enough segments";
            joined_reads += static_cast<int64_t>(wanted.size() - scattered.reads.size());
          }
        }
      }
    }
  }
  EXPECT_GT(joined_reads, 500) << "nothing was joined";
}

// Reads longer than a device can scatter are cut between two bundles.
TEST_F(BundleScatterTest, AReadOfTooManySegmentsIsCut) {
  const LayerBundles layer = Prepare(1024);
  const BundleLayout& layout = layer.shape().layout;
  const auto slots = HugeBuffer::AllocatePresent(layer.shape().neurons * layout.slot_bytes + kBundleReadAlign);
  ASSERT_TRUE(slots.ok()) << slots.status();
  std::vector<BundleSlot> wanted;
  for (int32_t neuron = 0; neuron < layer.shape().neurons; ++neuron)
    wanted.push_back({neuron, slots->data() + kBundleReadAlign + neuron * layout.slot_bytes});
  ScatteredReads scattered;
  const std::span<std::byte> gap(slots->data(), static_cast<size_t>(kBundleReadAlign));
  ScatterReads(layer, wanted, {.first_part = 1, .gap_bytes = 0, .longest_bytes = 1 * kGiB, .gap_memory = gap}, scattered);
  ASSERT_EQ(scattered.joined.size(), 1u);
  EXPECT_EQ(scattered.reads.size(), 5u) << "160 records with 4 KiB between them, 32 in a read";
  const auto device = OpenBlockDevice({layer.path()}, {.channels = 1});
  ASSERT_TRUE(device.ok()) << device.status();
  ExpectRead(layer, **device, wanted, 1, scattered);
  ScatterReads(layer, wanted, {.first_part = 1, .longest_bytes = 1 * kGiB}, scattered);
  EXPECT_EQ(scattered.reads.size(), wanted.size()) << "there is no memory for what lies between";
}

// The part of the decider, which is not read, has 16 KiB, more than the gap between two bundles may have.
TEST_F(BundleScatterTest, ReadsOfWideNeuronsHaveTwoSegmentsEachAtMost) {
  constexpr Bytes kGap = 12 * kKiB;
  const LayerBundles layer = Prepare(4096, 40);
  const BundleLayout& layout = layer.shape().layout;
  ASSERT_EQ(layout.part_stride, 16 * kKiB);
  const Bytes gap_bytes = GapMemory(layout, 1, kGap);
  EXPECT_EQ(gap_bytes, 28 * kKiB);
  const auto slots = HugeBuffer::AllocatePresent(gap_bytes + layer.shape().neurons * layout.slot_bytes);
  ASSERT_TRUE(slots.ok()) << slots.status();
  std::vector<BundleSlot> wanted;
  for (int32_t neuron = 0; neuron < layer.shape().neurons; ++neuron)
    wanted.push_back({neuron, slots->data() + gap_bytes + neuron * layout.slot_bytes});
  ScatteredReads scattered;
  scattered.Reserve(wanted.size());
  const BlockDevice::Segment* const memory = scattered.segments.data();
  const std::span<std::byte> gap(slots->data(), static_cast<size_t>(gap_bytes));
  ScatterReads(layer, wanted, {.first_part = 1, .gap_bytes = kGap, .longest_bytes = 1 * kMiB, .gap_memory = gap}, scattered);
  EXPECT_EQ(scattered.reads.size(), 2u);
  EXPECT_EQ(scattered.segments.size(), 2 * wanted.size() - scattered.reads.size());
  EXPECT_EQ(scattered.segments.data(), memory) << "it has allocated";
  const auto device = OpenBlockDevice({layer.path()}, {.channels = 1});
  ASSERT_TRUE(device.ok()) << device.status();
  ExpectRead(layer, **device, wanted, 1, scattered);
}

}  // namespace
}  // namespace lime
