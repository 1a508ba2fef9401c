// A plan for this process gives the logits of the model by itself, bit by bit, for either loader,
// any number of threads, any chunking, alone or in a batch: tiny random models of every family and
// dtype, and the shipped models.

#include <algorithm>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>

#include "gtest/gtest.h"
#include "kernels/cpu/linear/linear_bf16.h"
#include "tests/cases.h"
#include "tests/integration/models.h"
#include "tests/integration/variants.h"
#include "tests/skips.h"

namespace lime {
namespace {

// The orders of reduction that this CPU can follow.
std::vector<std::string> AllNumerics() {
  std::vector<std::string> all = {"portable"};
  if (cpu::HardwareBf16() != nullptr) all.push_back("bf16-dot");
  if (cpu::HardwareBf16() == nullptr && cpu::EmulatedBf16() != nullptr) all.push_back("emulated-bf16");
  return all;
}

// Every shape of the matrix gives the hash of the model by itself, which is returned. Where not
// `whole`, a part of the shapes.
uint64_t ExpectSameBits(const std::string& dir, int64_t vocab, int64_t length, const std::string& numerics, bool whole) {
  const std::vector<int32_t> ids = RandomIds(1, length, vocab);
  const uint64_t expected = ReferenceHash(dir, ids, {.threads = 1, .chunk = length, .numerics = numerics});
  for (const LoaderKind loader : {LoaderKind::kRead, LoaderKind::kMmap}) {
    for (const int threads : {1, 2}) {
      for (const int64_t chunk : {int64_t{1}, int64_t{7}, int64_t{64}, length}) {
        // How rows are computed depends neither on the loader nor on the number of threads, so each
        // chunk has one of both.
        const bool by_one = chunk == 1 || chunk == 64;
        if ((by_one != (threads == 1) || (loader == LoaderKind::kMmap && chunk != 7)) && !whole) continue;
        const RunShape shape{.loader = loader, .threads = threads, .chunk = chunk, .numerics = numerics};
        EXPECT_EQ(LogitsHashOf(dir, shape, ids), expected)
            << "numerics " << numerics << ", loader " << LoaderName(loader) << ", threads " << threads << ", chunk " << chunk;
      }
    }
  }
  for (const int companions : {1, 3, 7, 15}) {
    if ((companions == 1 || companions == 7) && !whole) continue;
    RunShape shape{.threads = 2, .chunk = 7, .numerics = numerics};
    for (int i = 0; i < companions; ++i) shape.companions.push_back(RandomIds(100 + i, 1 + (37 * i) % length, vocab));
    EXPECT_EQ(LogitsHashOf(dir, shape, ids), expected) << "numerics " << numerics << ", in a batch of " << companions + 1;
  }
  return expected;
}

class BitsTest : public ::testing::TestWithParam<Variant> {};

TEST_P(BitsTest, LogitsAreTheSameWhateverTheRunLooksLike) {
  const Variant& variant = GetParam();
  const MakeModelOptions options = OptionsOf(variant);
  TempDir dir;
  ASSERT_TRUE(MakeModel(options, dir.path()).ok());
  std::set<uint64_t> hashes;
  for (const std::string& numerics : AllNumerics()) {
    const bool whole = Soaking() || variant.name == "llama_bf16" || variant.name == "qwen3_5_bf16";
    hashes.insert(ExpectSameBits(dir.path(), options.config.vocab_size, 300, numerics, whole));  // more than one piece of 256 positions
  }
  EXPECT_EQ(hashes.size(), variant.dtype == DType::kBF16 ? AllNumerics().size() : 1) << "only layers of a bf16 model have another order";
}

INSTANTIATE_TEST_SUITE_P(Families, BitsTest, ::testing::ValuesIn(Variants()), [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(OneProcess, BitsTest, ::testing::ValuesIn(OneProcessVariants()), [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(Packed, BitsTest, ::testing::ValuesIn(PackedVariants()), [](const auto& info) { return info.param.name; });

TEST(ShippedModelBitsTest, LogitsAreTheSameWhateverTheRunLooksLike) {
  for (const char* name : {"lime-fables", "lime-fables-relu"}) {
    SCOPED_TRACE(name);
    const std::string dir = std::string(LIME_SOURCE_DIR) + "/models/" + name;
    ASSERT_TRUE(std::filesystem::exists(dir + "/config.json"));
    for (const std::string& numerics : AllNumerics()) ExpectSameBits(dir, 512, 200, numerics, Soaking());
  }
}

// tests/golden/logits_xxh3.txt, one line a model and order of reduction: the hash of the logits of
// RecordedIds(), as the program printed it before one engine took the place of two. A hash that
// differs is another model to whoever compares results, so nothing writes this file.
struct Recorded {
  std::string model, numerics_id, hash;
};

std::vector<Recorded> ReadRecorded() {
  std::ifstream file(LIME_SOURCE_DIR "/tests/golden/logits_xxh3.txt");
  std::vector<Recorded> all;
  for (std::string line; std::getline(file, line);) {
    Recorded recorded;
    if (std::istringstream words(line); !line.starts_with('#') && words >> recorded.model >> recorded.numerics_id >> recorded.hash)
      all.push_back(recorded);
  }
  return all;
}

std::vector<int32_t> RecordedIds() {
  std::vector<int32_t> ids(100);
  for (int32_t i = 0; i < 100; ++i) ids[i] = (1 + 31 * i) % 61;
  return ids;
}

// How this CPU follows the order of that name; nothing where it cannot.
std::optional<std::string> NumericsOf(const std::string& id) {
  if (id == cpu::NumericsId(cpu::Numerics::kPortable)) return "portable";
  for (const bool packed : {false, true}) {
    if (id == cpu::NumericsId(cpu::Numerics::kBf16Dot, packed)) return "bf16-dot";
  }
  return std::nullopt;
}

TEST(RecordedBitsFileTest, NoRecordIsLost) {
  EXPECT_EQ(ReadRecorded().size(), 19u) << "ten models, five of them with layers that have two orders, and four packed ones";
}

class RecordedBitsTest : public ::testing::TestWithParam<Recorded> {};

TEST_P(RecordedBitsTest, LogitsAreThoseOfTheProgramsBeforeThisOne) {
  const Recorded& recorded = GetParam();
  const std::optional<std::string> numerics = NumericsOf(recorded.numerics_id);
  LIME_SKIP_WITHOUT(numerics, "a CPU with AVX512-BF16");
  std::string dir = ShippedModel(recorded.model);
  if (!std::filesystem::exists(dir)) dir = SharedModel(recorded.model);
  if (!std::filesystem::exists(dir)) dir = SharedDir() / "families" / recorded.model;
  LIME_SKIP_WITHOUT_SHARED(dir);
  EXPECT_EQ(HashText(ReferenceHash(dir, RecordedIds(), {.numerics = *numerics})), recorded.hash);
  EXPECT_EQ(HashText(LogitsHashOf(dir, {.chunk = 7, .numerics = *numerics}, RecordedIds())), recorded.hash);
  const RunShape streamed{.loader = LoaderKind::kRead, .numerics = *numerics, .resident = 0.5};
  EXPECT_EQ(HashText(LogitsHashOf(dir, streamed, RecordedIds())), recorded.hash);
}

INSTANTIATE_TEST_SUITE_P(Models, RecordedBitsTest, ::testing::ValuesIn(ReadRecorded()), [](const auto& info) {
  std::string name = info.param.model + "_" + info.param.numerics_id;
  std::ranges::replace(name, '-', '_');
  return name;
});

// Rows of more than one block of K, a prompt of more tokens than one packing of the GEMM takes, KV
// of two whole pieces and a part. In the gate the residual stream is narrow: attention's output and
// the MLP's hidden row are long.
class WideModelBitsTest : public ::testing::Test {
 protected:
  void ExpectSameBitsOf(const std::optional<Quantization>& quantization, const std::vector<std::string>& all_numerics) {
    MakeModelOptions options;
    options.config.num_layers = 1;
    options.config.hidden_size = Soaking() ? 2176 : 192;
    options.config.intermediate_size = 4352;
    options.config.num_heads = 34;
    options.config.head_dim = 64;
    options.config.max_positions = 1024;
    options.config.quantization = quantization;
    TempDir dir;
    ASSERT_TRUE(MakeModel(options, dir.path()).ok());
    const std::vector<int32_t> ids = RandomIds(1, 700, options.config.vocab_size);
    for (const std::string& numerics : all_numerics) {
      const uint64_t expected = ReferenceHash(dir.path(), ids, {.threads = 1, .chunk = 700, .numerics = numerics});
      for (const int64_t chunk : {int64_t{7}, int64_t{64}, int64_t{512}, int64_t{700}}) {
        EXPECT_EQ(LogitsHashOf(dir.path(), {.loader = LoaderKind::kMmap, .chunk = chunk, .numerics = numerics}, ids), expected)
            << "numerics " << numerics << ", chunk " << chunk;
      }
      const std::vector<int32_t> some(ids.begin(), ids.begin() + 40);  // token by token the weights are read as often
      EXPECT_EQ(LogitsHashOf(dir.path(), {.chunk = 1, .numerics = numerics}, some),
                ReferenceHash(dir.path(), some, {.chunk = 40, .numerics = numerics}))
          << "numerics " << numerics << ", chunk 1";
      RunShape batch{.chunk = 100, .companions = {RandomIds(2, 650, 320), RandomIds(3, 40, 320), RandomIds(4, 300, 320)}};
      batch.numerics = numerics;
      EXPECT_EQ(LogitsHashOf(dir.path(), batch, ids), expected) << "numerics " << numerics << ", in a batch of 4";
    }
  }
};

TEST_F(WideModelBitsTest, DenseLogitsAreTheSameWhateverTheRunLooksLike) {
  ExpectSameBitsOf(std::nullopt, AllNumerics());
}

TEST_F(WideModelBitsTest, PackedLogitsAreTheSameWhateverTheRunLooksLike) {
  ExpectSameBitsOf(Quantization{.bits = 4, .group_size = 64}, AllNumerics());
}

}  // namespace
}  // namespace lime
