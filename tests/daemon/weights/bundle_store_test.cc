// Stores with bundles: each neuron's rows and columns as the checkpoint has them, and every damage is
// found and named.
#include "daemon/weights/bundle_store.h"

#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/formats/push_units.h"
#include "daemon/stores/neuron_files.h"
#include "daemon/stores/store_source.h"
#include "planner/base/float_bits.h"
#include "tests/daemon/weights/block_store_fixture.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class BundleStoreTest : public PreparedTest {
 protected:
  void Make(const std::string& family, DType dtype, std::optional<Quantization> packing = std::nullopt) {
    options_.config.family = family;
    options_.config.activation = Activation::kRelu;
    options_.config.quantization = packing;
    options_.config.intermediate_size = 96;
    options_.dtype = dtype;
    fs::remove_all(model_);
    fs::remove_all(store_);
    ASSERT_TRUE(MakeModel(options_, model_).ok());
  }

  absl::StatusOr<PrepareReport> PrepareBundles(Bytes buffer = 64 * kMiB) {
    return PrepareBlockStore(model_, store_, {.bundles = true, .bundle_buffer_bytes = buffer});
  }

  absl::StatusOr<BundleStore> Open() {
    LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(store_));
    LIME_ASSIGN_OR_RETURN(const ModelSpec spec, checkpoint.BuildModelSpec());
    return BundleStore::Open(checkpoint, spec);
  }

  // Overwrites element `index` of a tensor of the model.
  void Poke(const BlockSpec& block, const Checkpoint& checkpoint, TensorRole role, TensorPart part, int64_t index, float value) {
    const TensorSpec& tensor = block.tensors[block.Find(role, part).value()];
    const TensorLocation at = checkpoint.location(tensor);
    std::fstream file(checkpoint.files()[static_cast<size_t>(at.file)].path, std::ios::in | std::ios::out | std::ios::binary);
    WithWorkingType(tensor.info.dtype, [&](auto stored) {
      stored = FromFloat<decltype(stored)>(value);
      file.seekp(at.offset + index * static_cast<int64_t>(sizeof(stored)));
      file.write(reinterpret_cast<const char*>(&stored), sizeof(stored));
    });
  }
  void Poke(int32_t layer, TensorRole role, TensorPart part, int64_t index, float value) {
    const Checkpoint checkpoint = Checkpoint::Open(model_).value();
    const ModelSpec spec = checkpoint.BuildModelSpec().value();
    Poke(spec.block({BlockKind::kMlp, layer}), checkpoint, role, part, index, value);
  }
};

// Code i of a little-endian stream of bits, whatever is packed there.
uint64_t CodeAt(const std::string& stream, int64_t i, int bits) {
  const int64_t at = i * bits, first = at / 8;
  uint64_t window = 0;
  for (int64_t byte = (at + bits - 1) / 8; byte >= first; --byte)
    window = window << 8 | static_cast<uint8_t>(stream[static_cast<size_t>(byte)]);
  return window >> (at % 8) & ((uint64_t{1} << bits) - 1);
}

std::string RawTensor(const Checkpoint& checkpoint, const TensorSpec& tensor) {
  const TensorLocation at = checkpoint.location(tensor);
  return ReadRange(checkpoint.files()[static_cast<size_t>(at.file)], at.offset, at.bytes);
}

// All bundles of a layer beside the tensors of the checkpoint.
void ExpectLayer(const LayerBundles& layer, const BlockSpec& block, const Checkpoint& checkpoint, bool gated, int64_t hidden, int bits) {
  const BundleLayout& layout = layer.shape().layout;
  const int64_t neurons = layer.shape().neurons;
  std::vector<std::string> tensors;
  for (const TensorRole role : {TensorRole::kGate, TensorRole::kUp, TensorRole::kDown}) {
    if (role == TensorRole::kGate && !gated) continue;
    tensors.push_back(RawTensor(checkpoint, block.tensors[block.Find(role, TensorPart::kWeight).value()]));
  }
  ASSERT_EQ(static_cast<int>(tensors.size()), layout.parts);
  const CheckpointFile file{layer.path(), 0};
  for (int32_t neuron = 0; neuron < neurons; ++neuron) {
    const EnclosingRange range = layer.RangeOf(neuron, 0);
    EXPECT_EQ(range.offset % kBundleReadAlign, 0);
    ASSERT_LE(range.offset + range.bytes, layer.file_bytes());
    ASSERT_LE(range.bytes, layout.slot_bytes);
    const std::string read = ReadRange(file, range.offset, range.bytes);
    const auto record =
        std::as_bytes(std::span(read)).subspan(static_cast<size_t>(range.skipped), static_cast<size_t>(layout.record_bytes));
    ASSERT_TRUE(layer.Check(neuron, 0, record).ok());
    ASSERT_TRUE(layer.Check(neuron, 1, record.subspan(static_cast<size_t>(layout.TailAt()))).ok());
    for (int part = 0; part < layout.parts; ++part) {
      const std::span<const std::byte> bytes = PartOf(layout, record, 0, part);
      const std::string weights(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      const bool down = part + 1 == layout.parts;
      for (int64_t k = 0; k < hidden; ++k) {
        const int64_t at = down ? k * neurons + neuron : neuron * hidden + k;
        ASSERT_EQ(CodeAt(weights, k, bits), CodeAt(tensors[static_cast<size_t>(part)], at, bits)) << neuron << " " << part << " " << k;
      }
    }
  }
}

TEST_F(BundleStoreTest, EveryNeuronHasItsRowsAndItsColumnOfTheCheckpoint) {
  struct Case {
    std::string family;
    DType dtype;
    int bits = 0;  // packed
  };
  const Case cases[] = {{"opt", DType::kF32},      {"opt", DType::kF16},      {"opt", DType::kBF16},   {"llama", DType::kBF16},
                        {"llama", DType::kF16},    {"falcon", DType::kBF16},  {"phi3", DType::kF16},   {"llama", DType::kBF16, 3},
                        {"llama", DType::kF16, 4}, {"llama", DType::kF32, 6}, {"opt", DType::kBF16, 8}};
  for (const Case& each : cases) {
    SCOPED_TRACE(absl::StrCat(each.family, " ", static_cast<int>(each.dtype), " ", each.bits));
    Make(each.family, each.dtype, each.bits > 0 ? std::optional(Quantization{.bits = each.bits, .group_size = 32}) : std::nullopt);
    const auto report = PrepareBundles(20'000);  // several batches
    ASSERT_TRUE(report.ok()) << report.status();
    ASSERT_TRUE(report->bundles.has_value());
    EXPECT_EQ(report->bundles->layers, 2);
    EXPECT_THAT(report->bundles->without, IsEmpty());
    const auto batched = Contents(store_);
    const auto verified = VerifyBlockStore(store_);
    ASSERT_TRUE(verified.ok()) << verified.status();
    EXPECT_EQ(verified->bundles->bytes, report->bundles->bytes);
    const Checkpoint checkpoint = Checkpoint::Open(model_).value();
    const ModelSpec spec = checkpoint.BuildModelSpec().value();
    const auto store = Open();
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_EQ(store->layers().size(), 2u);
    const int bits = each.bits > 0 ? each.bits : static_cast<int>(8 * ElementBytes(each.dtype));
    for (const LayerBundles& layer : store->layers()) {
      ExpectLayer(layer, spec.block({BlockKind::kMlp, layer.layer()}), checkpoint, spec.config.gated_mlp, spec.config.hidden_size, bits);
    }
    EXPECT_EQ(store->OfLayer(2), nullptr);
    fs::remove_all(store_);
    ASSERT_TRUE(PrepareBundles().ok());
    EXPECT_EQ(Contents(store_), batched) << "other batches, other bytes";
    fs::remove_all(store_);
    std::vector<int32_t> places(96);
    for (int32_t neuron = 0; neuron < 96; ++neuron) places[static_cast<size_t>(neuron)] = (35 * neuron + 11) % 96;
    ASSERT_TRUE(PrepareBlockStore(model_, store_, {.bundles = true, .bundle_buffer_bytes = 20'000, .bundle_places = {{1, places}}}).ok());
    ASSERT_TRUE(VerifyBlockStore(store_).ok());
    const auto ordered = Open();
    ASSERT_TRUE(ordered.ok()) << ordered.status();
    EXPECT_THAT(ordered->OfLayer(1)->places(), ElementsAreArray(places));
    EXPECT_EQ(ordered->OfLayer(0)->places()[5], 5);
    for (const LayerBundles& layer : ordered->layers()) {
      ExpectLayer(layer, spec.block({BlockKind::kMlp, layer.layer()}), checkpoint, spec.config.gated_mlp, spec.config.hidden_size, bits);
    }
  }
}

TEST_F(BundleStoreTest, PlacesOfAnotherNumberOfNeuronsAreRefused) {
  Make("opt", DType::kBF16);
  const absl::Status status = PrepareBlockStore(model_, store_, {.bundles = true, .bundle_places = {{1, {0, 1}}}}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer 1 has 96 neurons, but places for 2 are given"));
}

TEST_F(BundleStoreTest, ADamagedFileIsWrittenAgainWhateverItsOrder) {
  Make("llama", DType::kBF16);
  std::vector<int32_t> places(96);
  for (int32_t neuron = 0; neuron < 96; ++neuron) places[static_cast<size_t>(neuron)] = (35 * neuron + 11) % 96;
  int firsts = 0;
  PrepareOptions ordered{.bundles = true, .bundle_places = {{0, places}, {1, places}}, .first_bundles = [&firsts] {
                           ++firsts;
                           return absl::OkStatus();
                         }};
  ASSERT_TRUE(PrepareBlockStore(model_, store_, ordered).ok());
  EXPECT_EQ(firsts, 1);
  EXPECT_TRUE(HasBundles(store_));
  EXPECT_FALSE(HasBundles(model_));
  const std::string name = "bundles_0001.safetensors";
  const auto whole = Contents(store_);
  const auto truncate = [&] { fs::resize_file(InStore(name), whole.at(name).size() * 3 / 4); };
  truncate();
  absl::Status status = PrepareBlockStore(model_, store_).status();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(Open()->OfLayer(1)->places()[5], 5) << "no places were given";
  EXPECT_THAT(Open()->OfLayer(0)->places(), ElementsAreArray(places)) << "it is kept";
  for (const bool is_there : {true, false}) {
    is_there ? truncate() : static_cast<void>(fs::remove(InStore(name)));
    status = PrepareBlockStore(model_, store_, ordered).status();
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(Contents(store_), whole);
  }
  EXPECT_EQ(firsts, 1) << "the other layer was kept";
  // Bundles of another model begin with the same header.
  const std::string other_model = dir_.file("other"), other_store = dir_.file("other_store");
  options_.seed = 2;
  ASSERT_TRUE(MakeModel(options_, other_model).ok());
  ASSERT_TRUE(PrepareBlockStore(other_model, other_store, ordered).ok());
  fs::copy_file(other_store + "/" + name, InStore(name), fs::copy_options::overwrite_existing);
  truncate();
  status = PrepareBlockStore(model_, store_, ordered).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(name));
}

TEST_F(BundleStoreTest, OtherActivationsAndFormatsAreRefusedByNameAndNothingIsWritten) {
  const auto refused = [&](const std::string& family, Activation activation, const std::string& words) {
    options_.config.family = family;
    options_.config.activation = activation;
    ASSERT_TRUE(MakeModel(options_, model_).ok());
    const absl::Status status = PrepareBundles().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
    EXPECT_FALSE(fs::exists(store_));
    fs::remove_all(model_);
  };
  refused("llama", Activation::kSilu, "its MLPs use SiLU");
  refused("falcon", Activation::kGelu, "its MLPs use GELU");
  options_.config.num_experts = 0, options_.config.full_attention_interval = 2, options_.config.sliding_window = 50;
  refused("gemma4", Activation::kRelu, "its layers have inputs of their own");
  options_.config.quantization = kFp8;
  options_.config.quantization_method = "fp8";
  refused("llama", Activation::kRelu, "mlp.up_proj.weight is mxfp4 or FP8, for which there are no bundles");
}

// ---- Layers without bundles

TEST_F(BundleStoreTest, AnInfiniteOrMissingNumberLeavesItsLayerWithoutBundles) {
  struct Case {
    TensorRole role;
    TensorPart part = TensorPart::kWeight;
    std::optional<Quantization> packing = std::nullopt;
  };
  const Quantization packed{.bits = 4, .group_size = 32};
  const Case cases[] = {{TensorRole::kGate},
                        {TensorRole::kUp},
                        {TensorRole::kDown},
                        {TensorRole::kGate, TensorPart::kScales, packed},
                        {TensorRole::kDown, TensorPart::kGroupBiases, packed}};
  for (const Case& each : cases) {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      Make("llama", DType::kBF16, each.packing);
      Poke(1, each.role, each.part, 37, bad);
      const auto report = PrepareBundles();
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->bundles->layers, 1);
      EXPECT_THAT(report->bundles->without, ElementsAre(HasSubstr("layer 1 has no bundles: a weight of its MLP is infinite or NaN")));
      EXPECT_FALSE(fs::exists(InStore("bundles_0001.safetensors")));
      EXPECT_FALSE(fs::exists(InStore("bundles_0001.safetensors.partial")));
      EXPECT_TRUE(VerifyBlockStore(store_).ok());
      const auto store = Open();
      ASSERT_TRUE(store.ok()) << store.status();
      EXPECT_NE(store->OfLayer(0), nullptr);
      EXPECT_EQ(store->OfLayer(1), nullptr);
      const auto again = PrepareBundles();
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_TRUE(again->was_complete);
      EXPECT_EQ(again->bundles->without, report->bundles->without);
    }
  }
}

TEST_F(BundleStoreTest, UpThatCouldOverflowLeavesItsLayerWithoutBundles) {
  const auto layers = [&] {
    const auto report = PrepareBundles();
    EXPECT_TRUE(report.ok()) << report.status();
    for (const std::string& why_not : report->bundles->without) EXPECT_THAT(why_not, HasSubstr("do not show that up stays finite"));
    return report->bundles->layers;
  };
  // Of a hidden size of 64, the input is at most 8 times the largest weight of the norm.
  const auto with_norm = [&](const std::string& family, DType dtype, float norm, float up) {
    Make(family, dtype);
    Poke(0, TensorRole::kNorm, TensorPart::kWeight, 3, norm);
    Poke(0, TensorRole::kUp, TensorPart::kWeight, 700, up);
    return layers();
  };
  EXPECT_EQ(with_norm("llama", DType::kBF16, 0x1p60f, 0x1p60f), 2);
  EXPECT_EQ(with_norm("llama", DType::kBF16, 0x1p60f, -0x1p64f), 1);
  EXPECT_EQ(with_norm("llama", DType::kF32, std::numeric_limits<float>::infinity(), 1), 1);
  EXPECT_EQ(with_norm("llama", DType::kF32, std::numeric_limits<float>::quiet_NaN(), 1), 1);
  EXPECT_EQ(with_norm("llama", DType::kF16, 8000, 1), 2);
  EXPECT_EQ(with_norm("llama", DType::kF16, 8200, 1), 1) << "the input itself overflows in fp16";
  EXPECT_EQ(with_norm("opt", DType::kBF16, 0x1p60f, 0x1p64f), 2) << "up of a plain MLP decides, and nothing multiplies it";
  Make("llama", DType::kBF16, Quantization{.bits = 4, .group_size = 32});
  Poke(1, TensorRole::kUp, TensorPart::kScales, 5, 0x1p123f);
  EXPECT_EQ(layers(), 1);
}

// ---- Adding bundles, keeping them

TEST_F(BundleStoreTest, AStoreGetsBundlesLaterAndKeepsThem) {
  Make("opt", DType::kBF16);
  Prepare();
  EXPECT_THAT(std::string(Open().status().message()), HasSubstr("is a block store without bundles"));
  const auto without = Contents(store_);
  const auto report = PrepareBundles();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->kept_files, 3);
  EXPECT_FALSE(report->was_complete);
  auto with = Contents(store_);
  for (const auto& [name, bytes] : without) {
    if (name != kStoreManifestName) EXPECT_EQ(with[name], bytes) << name;
  }
  EXPECT_EQ(with.size(), without.size() + 2);
  const auto again = PrepareBlockStore(model_, store_);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->was_complete);
  EXPECT_EQ(again->bundles->layers, 2);
  fs::resize_file(InStore("bundles_0000.safetensors"), 5000);
  EXPECT_THAT(std::string(Open().status().message()), HasSubstr("bundles_0000.safetensors: "));
  EXPECT_THAT(std::string(VerifyBlockStore(store_).status().message()), HasSubstr("bundles_0000.safetensors: has 5000 bytes"));
  ASSERT_TRUE(PrepareBlockStore(model_, store_).ok()) << "also without being told again";
  EXPECT_EQ(Contents(store_), with);
}

TEST_F(BundleStoreTest, BundlesOfAnotherModelAreNotReplaced) {
  Make("opt", DType::kBF16);
  ASSERT_TRUE(PrepareBundles().ok());
  options_.seed = 2;
  ASSERT_TRUE(MakeModel(options_, dir_.file("other")).ok());
  ASSERT_TRUE(PrepareBlockStore(dir_.file("other"), dir_.file("other_store"), {.bundles = true}).ok());
  fs::copy_file(dir_.file("other_store/bundles_0000.safetensors"), InStore("bundles_0000.safetensors"),
                fs::copy_options::overwrite_existing);
  auto manifest = nlohmann::json::parse(dir_.Read("store/lime_store.json"));
  manifest["version"] = 3;  // as if the call had ended before it recorded the file
  manifest.erase("bundles");
  dir_.Write("store/lime_store.json", manifest.dump());
  const auto before = Contents(store_);
  EXPECT_THAT(std::string(PrepareBundles().status().message()), HasSubstr("bundles_0000.safetensors"));
  EXPECT_EQ(Contents(store_), before);
  fs::remove(InStore("bundles_0000.safetensors"));
  EXPECT_TRUE(PrepareBundles().ok()) << "its own file of layer 1 is written again";
  EXPECT_TRUE(VerifyBlockStore(store_).ok());
}

TEST_F(BundleStoreTest, APushLeavesBundlesOut) {
  Make("opt", DType::kBF16);
  ASSERT_TRUE(PrepareBundles().ok());
  const auto source = StoreSource::Open(store_);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_FALSE((*source)->manifest().bundles.has_value());
  for (const StoredFile& file : (*source)->manifest().files) EXPECT_FALSE(file.name.starts_with("bundles_")) << file.name;
  StoreOffer offer = (*source)->OfferOf(BlocksOf((*source)->manifest()), /*check=*/false);
  EXPECT_TRUE(CheckOffer(offer).ok());
  offer.manifest.bundles.emplace();
  EXPECT_THAT(std::string(CheckOffer(offer).message()), HasSubstr("the offer has bundles, which are not pushed"));
}

// ---- Copies of deciders

class DeciderStoreTest : public BundleStoreTest {
 protected:
  static constexpr int64_t kCols = 64, kRows = 96;

  // Each piece of work has a thread of its own.
  static void OnThreads(int64_t count, const std::function<void(int64_t i)>& body) {
    std::vector<std::jthread> threads;
    for (int64_t i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
  }

  PrepareOptions WithCopies(int bits, int64_t directions = 3) {
    PrepareOptions options{.bundles = true, .for_each = OnThreads};
    InputFrame frame{.mean = std::vector<float>(kCols, 0.25f)};
    for (int64_t i = 0; i < directions * kCols; ++i) frame.directions.push_back(0.01f * static_cast<float>(i % 17 - 8));
    for (const int32_t layer : {0, 1}) {
      options.decider_copies[layer] = std::make_shared<RowCopier>(RowCopier::Create(kCols, bits, frame).value());
    }
    return options;
  }
};

TEST_F(DeciderStoreTest, ACopyComesBackAsItWasMade) {
  const PrepareOptions prepare = WithCopies(5);
  const RowCopier& copier = *prepare.decider_copies.at(0);
  for (const std::string family : {"opt", "llama"}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(family);
      Make(family, dtype);
      const auto report = PrepareBlockStore(model_, store_, prepare);
      ASSERT_TRUE(report.ok()) << report.status();
      ASSERT_TRUE(VerifyBlockStore(store_).ok());
      const auto store = Open();
      ASSERT_TRUE(store.ok()) << store.status();
      const Checkpoint checkpoint = Checkpoint::Open(model_).value();
      const ModelSpec spec = checkpoint.BuildModelSpec().value();
      for (const LayerBundles& layer : store->layers()) {
        const BlockSpec& block = spec.block({BlockKind::kMlp, layer.layer()});
        ExpectLayer(layer, block, checkpoint, spec.config.gated_mlp, kCols, static_cast<int>(8 * ElementBytes(dtype)));
        ASSERT_NE(layer.decider(), nullptr);
        EXPECT_EQ(layer.decider()->shape, (DeciderShape{.rows = kRows, .cols = kCols, .directions = 3, .bits = 5}));
        const auto loaded = layer.LoadDecider();
        ASSERT_TRUE(loaded.ok()) << loaded.status();
        const TensorRole role = spec.config.gated_mlp ? TensorRole::kGate : TensorRole::kUp;
        const std::string raw = RawTensor(checkpoint, block.tensors[block.Find(role, TensorPart::kWeight).value()]);
        std::vector<float> weights;
        WithWorkingType(dtype, [&](auto stored) {
          for (size_t at = 0; at < raw.size(); at += sizeof(stored)) {
            std::memcpy(&stored, raw.data() + at, sizeof(stored));
            weights.push_back(ToFloat(stored));
          }
        });
        for (int64_t row = 0; row < kRows; ++row) {
          std::vector<uint8_t> codes(static_cast<size_t>(CodeRowBytes(kCols, 5)));
          std::vector<int8_t> kept(3);
          CopiedRow copied;
          ASSERT_TRUE(copier.Copy(std::span(weights).subspan(static_cast<size_t>(row * kCols), kCols), codes, kept, copied));
          const DeciderView& view = (*loaded)->view;
          EXPECT_EQ(view.of_rows[row], copied) << row;
          EXPECT_TRUE(std::equal(codes.begin(), codes.end(), view.CodesOf(row))) << row;
          EXPECT_TRUE(std::equal(kept.begin(), kept.end(), view.kept + row * 3)) << row;
        }
        EXPECT_GT((*loaded)->view.axes_norm, 0);
      }
    }
  }
}

TEST_F(DeciderStoreTest, AStoreGetsCopiesLaterAndKeepsThem) {
  Make("opt", DType::kBF16);
  ASSERT_TRUE(PrepareBundles().ok());
  const auto without = Contents(store_);
  ASSERT_TRUE(PrepareBlockStore(model_, store_, WithCopies(5)).ok());
  const auto with = Contents(store_);
  EXPECT_NE(with, without);
  EXPECT_TRUE(PrepareBlockStore(model_, store_, WithCopies(5))->was_complete);
  EXPECT_TRUE(PrepareBundles()->was_complete) << "a call that asks for no copies keeps them";
  fs::resize_file(InStore("bundles_0001.safetensors"), 9000);
  const absl::Status again = PrepareBlockStore(model_, store_, WithCopies(5)).status();
  ASSERT_TRUE(again.ok()) << again;
  EXPECT_EQ(Contents(store_), with);
  fs::resize_file(InStore("bundles_0001.safetensors"), 9000);
  ASSERT_TRUE(PrepareBundles().ok()) << "its file is recognised although it would be written otherwise";
  EXPECT_NE(Open()->OfLayer(0)->decider(), nullptr) << "it was whole";
  EXPECT_EQ(Open()->OfLayer(1)->decider(), nullptr);
  ASSERT_TRUE(PrepareBlockStore(model_, store_, WithCopies(8)).ok());
  EXPECT_EQ(Open()->OfLayer(0)->decider()->shape.bits, 8) << "other copies replace those that were there";
  EXPECT_TRUE(VerifyBlockStore(store_).ok());
}

TEST_F(DeciderStoreTest, ADamagedCopyIsFoundAndLayersWithoutProofsHaveNone) {
  Make("llama", DType::kBF16);
  Poke(1, TensorRole::kGate, TensorPart::kWeight, 37, std::numeric_limits<float>::infinity());
  ASSERT_TRUE(PrepareBlockStore(model_, store_, WithCopies(6)).ok());
  EXPECT_EQ(Open()->OfLayer(1), nullptr);
  const LayerBundles layer = *Open()->OfLayer(0);
  for (const BundleTensor& part : layer.decider()->parts) {
    Flip("bundles_0000.safetensors", part.offset + part.bytes / 2);
    EXPECT_TRUE(absl::IsDataLoss(Open()->OfLayer(0)->LoadDecider().status())) << part.offset;
    EXPECT_FALSE(VerifyBlockStore(store_).ok());
    Flip("bundles_0000.safetensors", part.offset + part.bytes / 2);
  }
  EXPECT_TRUE(layer.LoadDecider().ok());
  fs::remove_all(store_);
  PrepareOptions narrow = WithCopies(6);
  narrow.decider_copies[0] = std::make_shared<RowCopier>(RowCopier::Create(63, 6, {.mean = std::vector<float>(63)}).value());
  EXPECT_THAT(std::string(PrepareBlockStore(model_, store_, narrow).status().message()), HasSubstr("has 63 columns and 0 directions"));
  Make("llama", DType::kBF16, Quantization{.bits = 4, .group_size = 32});
  EXPECT_THAT(std::string(PrepareBlockStore(model_, store_, WithCopies(6)).status().message()), HasSubstr("layer 0 are packed"));
}

// ---- Damage

TEST_F(BundleStoreTest, AFlippedBitIsFoundAndNamedByFileLayerAndNeuron) {
  Make("llama", DType::kF16);
  ASSERT_TRUE(PrepareBundles().ok());
  const LayerBundles layer = *Open()->OfLayer(1);
  const BundleLayout& layout = layer.shape().layout;
  const EnclosingRange range = layer.RangeOf(5, 0);
  Flip("bundles_0001.safetensors", range.offset + range.skipped + layout.PartAt(2) + 3);
  EXPECT_THAT(std::string(VerifyBlockStore(store_).status().message()),
              HasSubstr("bundles_0001.safetensors: layer 1, neuron 5: part 2 of its bundle differs from what was written"));
  EXPECT_TRUE(Open().ok()) << "records are checked when they are read";
  const std::string read = ReadRange({layer.path(), 0}, range.offset, range.bytes);
  const auto record = std::as_bytes(std::span(read)).subspan(static_cast<size_t>(range.skipped), static_cast<size_t>(layout.record_bytes));
  const absl::Status status = layer.Check(5, 0, record);
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer 1, neuron 5"));
  Flip("bundles_0001.safetensors", range.offset + range.skipped + layout.PartAt(2) + 3);
  EXPECT_TRUE(VerifyBlockStore(store_).ok());
}

TEST_F(BundleStoreTest, DamageBesideTheRecordsIsFound) {
  Make("opt", DType::kBF16);
  ASSERT_TRUE(PrepareBundles().ok());
  const std::string name = "bundles_0000.safetensors";
  const auto size = static_cast<int64_t>(fs::file_size(InStore(name)));
  const LayerBundles layer = *Open()->OfLayer(0);
  const int64_t sums = layer.begin() + RoundUp(layer.shape().neurons * layer.shape().layout.stride, kBundleReadAlign);
  for (const int64_t at : {sums, size - 1}) {
    Flip(name, at);
    const absl::Status status = Open().status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(name, ": ")));
    EXPECT_FALSE(VerifyBlockStore(store_).ok());
    Flip(name, at);
  }
  Flip(name, 20);  // in the header
  EXPECT_THAT(std::string(Open().status().message()), HasSubstr(name));
  Flip(name, 20);
  Flip(name, layer.begin() + layer.shape().layout.record_bytes);  // padding: no record differs, but the file does
  EXPECT_TRUE(Open().ok());
  EXPECT_THAT(std::string(VerifyBlockStore(store_).status().message()), HasSubstr(absl::StrCat(name, ": the file differs")));
}

TEST_F(BundleStoreTest, AManifestThatDoesNotFitItsFilesIsRefused) {
  Make("opt", DType::kBF16);
  ASSERT_TRUE(PrepareBundles().ok());
  const auto good = nlohmann::json::parse(dir_.Read("store/lime_store.json"));
  const auto refused = [&](const nlohmann::json& manifest) {
    dir_.Write("store/lime_store.json", manifest.dump());
    return std::string(Open().status().message());
  };
  auto manifest = good;
  std::swap(manifest["bundles"][0]["file"], manifest["bundles"][1]["file"]);
  EXPECT_THAT(refused(manifest), HasSubstr("the bundles of layer 0 are in bundles_0001.safetensors, not in bundles_0000.safetensors"));
  manifest = good;
  for (auto& file : manifest["files"]) {
    if (file["name"] == "bundles_0000.safetensors") file["ranges"] = nlohmann::json::array();
  }
  EXPECT_THAT(refused(manifest), HasSubstr("has no checksum of the"));
  manifest = good;
  manifest["bundles"][0]["file"] = "tokenizer.json";
  EXPECT_THAT(refused(manifest), HasSubstr("tokenizer.json"));
  dir_.Write("store/lime_store.json", good.dump());
  fs::rename(InStore("bundles_0000.safetensors"), InStore("x"));  // files of two layers of the same shape
  fs::rename(InStore("bundles_0001.safetensors"), InStore("bundles_0000.safetensors"));
  fs::rename(InStore("x"), InStore("bundles_0001.safetensors"));
  EXPECT_THAT(refused(good), HasSubstr("bundles_0000.safetensors: 768 bytes at offset"));
  manifest = good;
  for (auto& file : manifest["files"]) {
    if (file["name"] == "bundles_0000.safetensors") file["bytes"] = 4096;
  }
  EXPECT_FALSE(refused(manifest).empty());
}

TEST_F(BundleStoreTest, AFolderSaysWhichLayersHaveBundles) {
  Make("opt", DType::kF32);
  EXPECT_EQ(NeuronFilesIn(model_), NeuronFiles()) << "a checkpoint has none";
  EXPECT_EQ(NeuronFilesIn("/nowhere"), NeuronFiles());
  ASSERT_TRUE(PrepareBundles().ok());
  const NeuronFiles files = NeuronFilesIn(store_);
  ASSERT_EQ(std::ssize(files.bundles), Open()->layers().size());
  for (size_t i = 0; i < files.bundles.size(); ++i) EXPECT_EQ(files.bundles[i], HeldBundles{.layer = static_cast<int32_t>(i)});
  EXPECT_THAT(files.predictor, IsEmpty());
  fs::resize_file(Open()->layers().front().path(), 100);
  EXPECT_EQ(NeuronFilesIn(store_), NeuronFiles()) << "a damaged file counts as none";
}

}  // namespace
}  // namespace lime
