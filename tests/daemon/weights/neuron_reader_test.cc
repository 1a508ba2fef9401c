// Neurons come into their slots, whatever lies between them; wrong records and failed reads are read
// again, and an error names file, layer and neuron.
#include "daemon/weights/neuron_reader.h"

#include <gmock/gmock.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "planner/base/random.h"
#include "planner/demand/bundle_layout.h"
#include "tests/daemon/weights/block_store_fixture.h"
#include "tests/daemon/weights/faulty_device.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

class NeuronReaderTest : public ::testing::Test {
 protected:
  // Two layers of a ReLU model in fp32: gated, or plain.
  void Make(const std::string& family, int64_t hidden) {
    MakeModelOptions options{.dtype = DType::kF32};
    const bool opt = family == "opt";  // whose heads are as wide as the model
    options.config = {
        .num_layers = 2, .hidden_size = hidden, .num_heads = opt ? 4 : 1, .num_kv_heads = opt ? 4 : 1, .head_dim = opt ? hidden / 4 : 16};
    options.config.family = family;
    options.config.activation = Activation::kRelu;
    options.config.intermediate_size = 90;
    options.config.tie_embeddings = opt;
    const std::string model = dir_.file(absl::StrCat(family, hidden));
    store_ = absl::StrCat(model, "_store");
    ASSERT_TRUE(MakeModel(options, model).ok());
    ASSERT_TRUE(PrepareBlockStore(model, store_, {.bundles = true}).ok());
    checkpoint_ = std::make_unique<Checkpoint>(Checkpoint::Open(store_).value());
    spec_ = checkpoint_->BuildModelSpec().value();
  }

  absl::StatusOr<std::unique_ptr<NeuronReader>> Open(FaultyDevice::Plan plan = nullptr) {
    NeuronReader::Options options{.done = [this](int32_t layer, std::span<const BundleSlot> neurons, const absl::Status& status) {
      absl::MutexLock lock(&mutex_);
      for (const BundleSlot& slot : neurons) ended_[{layer, slot.neuron}] = status;
    }};
    if (plan) {
      options.wrap_device = [plan](std::unique_ptr<BlockDevice> device) -> std::unique_ptr<BlockDevice> {
        return std::make_unique<FaultyDevice>(std::move(device), plan);
      };
    }
    const std::vector<int32_t> layers = {0, 1};
    return NeuronReader::Open(*checkpoint_, spec_, layers, options);
  }

  // Reads these neurons into slots of their own, in this order.
  void ReadAll(NeuronReader& reader, int32_t layer, const std::vector<int32_t>& neurons) {
    const BundleStore store = BundleStore::Open(*checkpoint_, spec_).value();
    slot_bytes_ = store.OfLayer(layer)->shape().layout.SlotBytes(1);
    slots_ = HugeBuffer::AllocatePresent(std::ssize(neurons) * slot_bytes_).value();
    std::vector<BundleSlot> wanted;
    for (size_t i = 0; i < neurons.size(); ++i) wanted.push_back({neurons[i], slots_.data() + static_cast<int64_t>(i) * slot_bytes_});
    {
      absl::MutexLock lock(&mutex_);
      ended_.clear();
    }
    all_ = {this, neurons.size()};
    reader.StartBurst(layer, wanted);
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](std::pair<NeuronReaderTest*, size_t>* all) { return all->first->ended_.size() == all->second; }, &all_));
  }

  // Compares the weights of every neuron with those of the matrices.
  void ExpectNeurons(const NeuronReader& reader, int32_t layer, const std::vector<int32_t>& neurons) {
    const BlockSpec& mlp = spec_.block({BlockKind::kMlp, layer});
    const bool gated = spec_.config.gated_mlp;
    const std::string up = Matrix(mlp, TensorRole::kUp), down = Matrix(mlp, TensorRole::kDown);
    const int64_t hidden = spec_.config.hidden_size;
    for (size_t i = 0; i < neurons.size(); ++i) {
      const std::byte* part = slots_.data() + static_cast<int64_t>(i) * slot_bytes_ + reader.OffsetInSlot(layer, neurons[i]);
      if (gated) {
        EXPECT_EQ(std::memcmp(part, up.data() + neurons[i] * hidden * 4, static_cast<size_t>(hidden * 4)), 0) << "up of " << neurons[i];
        part += reader.layout(layer).part_stride;
      }
      for (int64_t out = 0; out < hidden; ++out)
        ASSERT_EQ(std::memcmp(part + out * 4, down.data() + (out * 90 + neurons[i]) * 4, 4), 0) << "down of " << neurons[i] << ", " << out;
    }
  }

  std::string Matrix(const BlockSpec& block, TensorRole role) {
    const TensorLocation at = checkpoint_->location(block.tensors[block.Find(role, TensorPart::kWeight).value()]);
    return ReadRange(checkpoint_->files()[static_cast<size_t>(at.file)], at.offset, at.bytes);
  }

  TempDir dir_;
  std::string store_;
  std::unique_ptr<Checkpoint> checkpoint_;
  ModelSpec spec_;
  HugeBuffer slots_;
  Bytes slot_bytes_ = 0;
  absl::Mutex mutex_;
  std::map<std::pair<int32_t, int32_t>, absl::Status> ended_;  // under the mutex
  std::pair<NeuronReaderTest*, size_t> all_;
};

TEST_F(NeuronReaderTest, NeuronsComeIntoTheirSlotsWhateverLiesBetween) {
  Random random(1);
  for (const auto& [family, hidden] : {std::pair<std::string, int64_t>("opt", 64), {"opt", 512}, {"llama", 64}, {"llama", 1024}}) {
    SCOPED_TRACE(absl::StrCat(family, " ", hidden));
    Make(family, hidden);
    const auto reader = Open();
    ASSERT_TRUE(reader.ok()) << reader.status();
    for (const int percent : {2, 30, 100}) {
      for (const int32_t layer : {1, 0}) {
        std::vector<int32_t> neurons;
        for (int32_t neuron = 0; neuron < 90; ++neuron) {
          if (neurons.empty() || random.Below(100) < percent) neurons.push_back(neuron);
        }
        ReadAll(**reader, layer, neurons);
        absl::MutexLock lock(&mutex_);
        for (const auto& [neuron, status] : ended_) EXPECT_TRUE(status.ok()) << status;
        ExpectNeurons(**reader, layer, neurons);
      }
    }
    EXPECT_GT((*reader)->bytes_read(), 0);
    EXPECT_GT((*reader)->reads_started(), 6);
  }
}

TEST_F(NeuronReaderTest, AWrongRecordIsReadAgainAndSoIsAShortOrFailedRead) {
  Make("llama", 1024);
  for (const FaultyDevice::Fault& fault :
       {FaultyDevice::Fault{.wrong = true}, FaultyDevice::Fault{.shortened_to = 4096}, FaultyDevice::Fault{.error = EIO}}) {
    int reads = 0;
    const auto reader = Open([&](const FaultyDevice::Read&) { return reads++ == 0 ? fault : FaultyDevice::Fault{}; });
    ASSERT_TRUE(reader.ok()) << reader.status();
    const std::vector<int32_t> neurons = {3, 40, 41, 77};
    ReadAll(**reader, 1, neurons);
    absl::MutexLock lock(&mutex_);
    for (const auto& [neuron, status] : ended_) EXPECT_TRUE(status.ok()) << status;
    ExpectNeurons(**reader, 1, neurons);
    EXPECT_EQ(reads, (*reader)->reads_started() + 1);
  }
}

TEST_F(NeuronReaderTest, ARecordThatIsWrongTwiceIsAnErrorThatNamesFileLayerAndNeuron) {
  Make("llama", 1024);
  int64_t wrong = -1;
  const auto reader = Open([&](const FaultyDevice::Read& read) {
    if (wrong < 0) wrong = read.offset;
    return FaultyDevice::Fault{.wrong = read.offset == wrong};
  });
  ASSERT_TRUE(reader.ok()) << reader.status();
  ReadAll(**reader, 1, {9});
  absl::MutexLock lock(&mutex_);
  const absl::Status status = ended_.at({1, 9});
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("bundles_0001.safetensors: layer 1, neuron 9"));
}

TEST_F(NeuronReaderTest, AStoreWithoutTheBundlesOfALayerIsRefused) {
  Make("opt", 64);
  const std::vector<int32_t> layers = {0, 2};
  const auto reader = NeuronReader::Open(*checkpoint_, spec_, layers, {});
  EXPECT_TRUE(absl::IsFailedPrecondition(reader.status()));
  EXPECT_THAT(std::string(reader.status().message()), HasSubstr("has no bundles of layer 2"));
}

TEST_F(NeuronReaderTest, FilesOfOtherLayersAreNotOpened) {
  Make("opt", 64);
  ASSERT_TRUE(std::filesystem::remove(store_ + "/bundles_0000.safetensors"));
  const std::vector<int32_t> other = {1}, removed = {0};
  EXPECT_TRUE(NeuronReader::Open(*checkpoint_, spec_, other, {}).ok());
  EXPECT_FALSE(NeuronReader::Open(*checkpoint_, spec_, removed, {}).ok());
}

}  // namespace
}  // namespace lime
