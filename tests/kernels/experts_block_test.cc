// Blocks with experts on the backend "cpu": every scoring against fp64, and the same bits however
// rows arrive, in any order of the experts, and whichever of them are in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "tests/kernels/experts_model.h"

namespace {
std::atomic<int64_t> g_allocations{0};
}  // namespace

void* operator new(size_t size) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t /*size*/) noexcept {
  std::free(memory);
}

namespace lime {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr BlockId kFirst{BlockKind::kExperts, 0}, kSecond{BlockKind::kExperts, 1};

// ---- Batches

cpu::Array Input(const ExpertsModel& model, int64_t rows, uint32_t seed = 7) {
  return cpu::RandomArray(model.spec().working_dtype, rows * kExpertsHidden, seed, 1.5F);
}

// Begins a batch of rows [begin, end) of `x`.
void Begin(Backend& backend, const cpu::Array& x, int64_t begin, int64_t end) {
  MicroBatch batch;
  for (int64_t row = begin; row < end; ++row) batch.rows.push_back({.position = static_cast<int32_t>(row)});
  const absl::Status status = backend.Begin(batch);
  ASSERT_TRUE(status.ok()) << status;
  const int64_t row_bytes = kExpertsHidden * ElementBytes(x.dtype);
  std::copy_n(x.data.begin() + begin * row_bytes, (end - begin) * row_bytes, backend.Hidden().begin());
}

std::vector<std::byte> Bits(Backend& backend) {
  return {backend.Hidden().begin(), backend.Hidden().end()};
}

std::vector<std::byte> WholeBits(const ExpertsModel& model, const cpu::Array& x, int64_t rows) {
  const auto backend = model.Open();
  Begin(*backend, x, 0, rows);
  const absl::Status status = backend->Compute(kFirst);
  EXPECT_TRUE(status.ok()) << status;
  return Bits(*backend);
}

std::vector<int32_t> Shuffled(int64_t count, uint32_t seed) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < count; ++id) ids.push_back(id);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
  return ids;
}

// The rows of some matrices, one matrix after the other, in parts of random size.
void ComputeInParts(Backend& backend, const ExpertsModel& model, const std::vector<RowsInMemory>& matrices, std::mt19937& random) {
  for (const RowsInMemory& matrix : matrices) {
    for (int64_t begin = 0; begin < matrix.rows.end;) {
      const int64_t end = std::min<int64_t>(matrix.rows.end, begin + 1 + static_cast<int64_t>(random() % 70));
      const absl::Status status =
          backend.ComputeRows(kFirst, model.Rows(model.spec().blocks[0], matrix.rows.role, matrix.rows.expert, begin, end));
      ASSERT_TRUE(status.ok()) << status;
      begin = end;
    }
  }
}

struct NamedModel {
  const char* name;
  RandomExperts options;
};

std::vector<NamedModel> Models() {
  const RouterScoring best = RouterScoring::kSoftmaxOfBest, sigmoid = RouterScoring::kSigmoid;
  return {
      {"softmax", {.experts = {}}},
      {"softmax_normalized", {.experts = {.normalized = true}}},
      {"softmax_of_best", {.experts = {.scoring = best}}},
      {"sigmoid_in_groups_with_shared_expert",
       {.experts = {.shared_intermediate_size = kExpertsSharedInner,
                    .scoring = sigmoid,
                    .normalized = true,
                    .weight_factor = 2.5,
                    .correction = true,
                    .groups = 4,
                    .groups_kept = 2}}},
      {"scaled_shared_expert", {.experts = {.shared_intermediate_size = kExpertsSharedInner, .normalized = true, .shared_scale = true}}},
      {"alternating_with_biases",
       {.experts = {.scoring = best, .router_bias = true, .bias = true, .alternates = true}, .activation = Activation::kClampedSwiglu}},
      {"clamped_with_biases", {.experts = {.scoring = best, .bias = true}, .activation = Activation::kClampedSwiglu}},
      {"norms_apart", {.experts = {.shared_intermediate_size = kExpertsSharedInner, .normalized = true, .norms_apart = true}}},
      {"packed_3_bits", {.experts = {.normalized = true}, .bits = 3}},
      {"packed_8_bits_alternating", {.experts = {.alternates = true}, .activation = Activation::kClampedSwiglu, .bits = 8}},
  };
}

class ExpertsBlockTest : public ::testing::TestWithParam<NamedModel> {
 protected:
  // The model in another dtype.
  static ExpertsModel ModelOf(DType dtype) {
    RandomExperts options = GetParam().options;
    options.dtype = dtype;
    return ExpertsModel(options);
  }
};

TEST_P(ExpertsBlockTest, AgreesWithFp64) {
  ExpertsModel model = ModelOf(DType::kF32);
  model.mutable_spec().config.residual_multiplier = 0.75;
  const cpu::Array x = Input(model, kMostRows);
  for (const int64_t rows : {int64_t{1}, kMostRows}) {
    const auto backend = model.Open(2);
    Begin(*backend, x, 0, rows);
    ASSERT_TRUE(backend->Compute(kFirst).ok());
    const std::span<const std::byte> hidden = backend->Hidden();
    const auto* y = reinterpret_cast<const float*>(hidden.data());
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<double> in;
      for (int64_t i = 0; i < kExpertsHidden; ++i) in.push_back(x[row * kExpertsHidden + i]);
      const std::vector<double> expected = model.Exact(in);
      for (int64_t i = 0; i < kExpertsHidden; ++i)
        ASSERT_NEAR(y[row * kExpertsHidden + i], expected[static_cast<size_t>(i)], 2e-4) << "row " << row << " column " << i;
    }
  }
}

TEST_P(ExpertsBlockTest, ThreadsAndBatchesChangeNoBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const ExpertsModel model = ModelOf(dtype);
    const cpu::Array x = Input(model, kMostRows);
    const std::vector<std::byte> expected = WholeBits(model, x, kMostRows);
    for (const int threads : {1, 2, 3}) {
      const auto backend = model.Open(threads);
      for (const int64_t batch : {1, 5, 16, 48}) {
        std::vector<std::byte> bits;
        for (int64_t begin = 0; begin < kMostRows; begin += batch) {
          Begin(*backend, x, begin, std::min(kMostRows, begin + batch));
          ASSERT_TRUE(backend->Compute(kFirst).ok());
          const std::vector<std::byte> part = Bits(*backend);
          bits.insert(bits.end(), part.begin(), part.end());
        }
        EXPECT_EQ(bits, expected) << threads << " threads, batches of " << batch;
      }
    }
  }
}

TEST_P(ExpertsBlockTest, RowsInPartsAndExpertsInAnyOrderHaveTheSameBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const ExpertsModel model = ModelOf(dtype);
    const BlockSpec& block = model.spec().blocks[0];
    const cpu::Array x = Input(model, kMostRows);
    for (const int64_t rows : {int64_t{1}, int64_t{4}, kMostRows}) {
      const std::vector<std::byte> expected = WholeBits(model, x, rows);
      for (uint32_t seed = 0; seed < 3; ++seed) {
        std::mt19937 random(seed);
        const auto backend = model.Open(1 + static_cast<int>(seed), [](const TensorSpec&) { return false; });
        Begin(*backend, x, 0, rows);
        EXPECT_THAT(backend->ChosenUnits(kFirst), IsEmpty());
        ComputeInParts(*backend, model, model.Matrices(block, -1), random);
        const auto chosen = backend->ChosenUnits(kFirst);
        EXPECT_TRUE(std::ranges::is_sorted(chosen));
        EXPECT_GE(std::ssize(chosen), model.experts().per_token);
        for (const int32_t id : Shuffled(model.experts().count, seed)) {
          const bool needed = std::ranges::binary_search(chosen, id);
          if (needed || random() % 2 == 0) ComputeInParts(*backend, model, model.Matrices(block, id), random);
        }
        EXPECT_EQ(Bits(*backend), expected) << rows << " rows, seed " << seed;
      }
    }
  }
}

TEST_P(ExpertsBlockTest, WhichExpertsAreInMemoryChangesNoBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const ExpertsModel model = ModelOf(dtype);
    const BlockSpec& block = model.spec().blocks[0];
    const cpu::Array x = Input(model, kMostRows);
    for (const int64_t rows : {int64_t{1}, int64_t{6}, kMostRows}) {
      const std::vector<std::byte> expected = WholeBits(model, x, rows), before(x.data.begin(), x.data.begin() + std::ssize(expected));
      for (uint32_t seed = 0; seed < 4; ++seed) {
        std::mt19937 random(seed);
        const int32_t in_memory = static_cast<int32_t>(seed) * 4;  // experts below it
        const auto backend = model.Open(2, [&](const TensorSpec& tensor) { return tensor.expert < in_memory; });
        Begin(*backend, x, 0, rows);
        ASSERT_TRUE(backend->Compute(kFirst).ok());
        std::vector<RowsInMemory> units;
        for (const int32_t id : Shuffled(model.experts().count, seed)) {
          if (id < in_memory) continue;
          const std::vector<RowsInMemory> matrices = model.Matrices(block, id);
          if (random() % 3 > 0 || seed == 1) {
            units.insert(units.end(), matrices.begin(), matrices.end());
          } else {
            ComputeInParts(*backend, model, matrices, random);
          }
        }
        ASSERT_TRUE(backend->ComputeUnits(kFirst, units).ok());
        EXPECT_EQ(Bits(*backend), expected) << rows << " rows, " << in_memory << " in memory";
        EXPECT_NE(Bits(*backend), before);
      }
    }
  }
}

TEST_P(ExpertsBlockTest, AllocatesNothing) {
  const ExpertsModel model = ModelOf(DType::kBF16);
  const BlockSpec& block = model.spec().blocks[0];
  const auto backend = model.Open(2, [](const TensorSpec& tensor) { return tensor.expert < 5; });
  const cpu::Array x = Input(model, kMostRows);
  std::vector<RowsInMemory> units;
  for (int32_t id = 5; id < model.experts().count; ++id) {
    const std::vector<RowsInMemory> matrices = model.Matrices(block, id);
    units.insert(units.end(), matrices.begin(), matrices.end());
  }
  for (const int64_t rows : {int64_t{1}, kMostRows}) {
    Begin(*backend, x, 0, rows);
    const int64_t before = g_allocations.load();
    const bool ok = backend->Compute(kFirst).ok() && backend->ComputeUnits(kFirst, units).ok();
    EXPECT_EQ(g_allocations.load(), before);
    EXPECT_TRUE(ok);
  }
}

TEST_P(ExpertsBlockTest, ItsMemoryIsCountedBeforeItIsMade) {
  const ExpertsModel model = ModelOf(DType::kBF16);
  EXPECT_EQ(model.Open(3)->ActivationBytes(), cpu::CpuActivationBytes(model.spec(), model.Options(3)));
}

INSTANTIATE_TEST_SUITE_P(Models, ExpertsBlockTest, ::testing::ValuesIn(Models()),
                         [](const auto& info) { return std::string(info.param.name); });

// ---- Errors

TEST(ExpertsBlockErrorsTest, ARowWithANaNIsNamedAndNothingIsLost) {
  const ExpertsModel model({});
  cpu::Array x = Input(model, 3);
  x.Set(2 * kExpertsHidden + 5, std::nanf(""));
  const auto backend = model.Open();
  Begin(*backend, x, 0, 3);
  const absl::Status status = backend->Compute(kFirst);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("router of layer 0 gives NaN for row 2"));
  EXPECT_EQ(Bits(*backend), x.data);
  EXPECT_THAT(backend->ChosenUnits(kFirst), IsEmpty());
}

TEST(ExpertsBlockErrorsTest, ExpertsBeforeTheRouterOutOfOrderOrUnknownAreRefused) {
  const ExpertsModel model({});
  const BlockSpec& block = model.spec().blocks[0];
  const cpu::Array x = Input(model, kMostRows);
  const auto backend = model.Open(1, [](const TensorSpec& tensor) { return tensor.expert < 0; });
  Begin(*backend, x, 0, kMostRows);
  const auto refused = [&](const RowsInMemory& rows) { return std::string(backend->ComputeRows(kFirst, rows).message()); };
  EXPECT_THAT(refused(model.Rows(block, TensorRole::kGate, 0, 0, 8)), HasSubstr("layer 0 came before its router"));
  ASSERT_TRUE(backend->Compute(kFirst).ok());
  const int32_t id = backend->ChosenUnits(kFirst)[0];
  EXPECT_THAT(refused(model.Rows(block, TensorRole::kUp, id, 0, 8)),
              HasSubstr("of layer 0 are out of order: 0 are computed, the next begin at 64"));
  ASSERT_TRUE(backend->ComputeRows(kFirst, model.Rows(block, TensorRole::kGate, id, 0, 64)).ok());
  EXPECT_THAT(refused(model.Rows(block, TensorRole::kGate, id, 0, 64)), HasSubstr("out of order"));
  RowsInMemory unknown = model.Rows(block, TensorRole::kGate, id, 0, 8);
  unknown.rows.expert = 12;
  EXPECT_EQ(refused(unknown), "layer 0 has no expert 12");
  EXPECT_EQ(Bits(*backend), x.data);
}

TEST(ExpertsBlockErrorsTest, TheNextBlockIsRefusedUntilAllChosenExpertsAreThere) {
  const ExpertsModel model({});
  const BlockSpec& block = model.spec().blocks[0];
  const cpu::Array x = Input(model, 1);
  const auto backend = model.Open(1, [](const TensorSpec& tensor) { return tensor.expert < 0; });
  Begin(*backend, x, 0, 1);
  ASSERT_TRUE(backend->Compute(kFirst).ok());
  const std::vector<int32_t> chosen(backend->ChosenUnits(kFirst).begin(), backend->ChosenUnits(kFirst).end());
  ASSERT_EQ(chosen.size(), 3U);
  ASSERT_TRUE(backend->ComputeUnits(kFirst, model.Matrices(block, chosen[1])).ok());
  EXPECT_EQ(backend->Compute(kSecond).message(), "experts 1 is to be computed, but layer 0 lacks 2 results of experts");
  EXPECT_EQ(Bits(*backend), x.data);
  ASSERT_TRUE(backend->ComputeUnits(kFirst, model.Matrices(block, chosen[2])).ok());
  ASSERT_TRUE(backend->ComputeUnits(kFirst, model.Matrices(block, chosen[0])).ok());
  EXPECT_EQ(Bits(*backend), WholeBits(model, x, 1));
  EXPECT_THAT(backend->ChosenUnits(kFirst), ElementsAreArray(chosen));
  EXPECT_THAT(backend->ChosenUnits(kSecond), IsEmpty());
  ASSERT_TRUE(backend->Compute(kSecond).ok());
  EXPECT_THAT(backend->ChosenUnits(kFirst), IsEmpty());
  EXPECT_EQ(backend->ChosenUnits(kSecond).size(), 3U);
}

// The router of the first block in the place of the second one's: then the guess is the first one's
// choice.
TEST(ExpertsBlockGuessTest, TheRouterOfTheNextBlockIsAppliedToTheInputOfTheExperts) {
  const ExpertsModel model({});
  const BlockSpec &block = model.spec().blocks[0], &next = model.spec().blocks[1];
  const auto count = static_cast<int32_t>(model.spec().config.experts->count);
  const auto backend = model.Open(1, [](const TensorSpec& tensor) { return tensor.expert < 0; });
  const std::vector<RowsInMemory> same = {model.Rows(block, TensorRole::kRouter, -1, 0, count)};
  const std::vector<RowsInMemory> pieces = {model.Rows(next, TensorRole::kRouter, -1, 0, 5),
                                            model.Rows(next, TensorRole::kRouter, -1, 5, count)};
  for (int64_t rows = 1; rows <= Backend::kMostGuessRows; ++rows) {
    const cpu::Array x = Input(model, rows);
    std::vector<int32_t> units(64), of_pieces(64);
    Begin(*backend, x, 0, rows);
    EXPECT_EQ(backend->GuessUnits(kFirst, kSecond, same, units), 0U) << "nothing is chosen yet";
    ASSERT_TRUE(backend->Compute(kFirst).ok());
    const std::vector<int32_t> chosen(backend->ChosenUnits(kFirst).begin(), backend->ChosenUnits(kFirst).end());
    units.resize(backend->GuessUnits(kFirst, kSecond, same, units));
    EXPECT_THAT(units, ::testing::UnorderedElementsAreArray(chosen));
    of_pieces.resize(backend->GuessUnits(kFirst, kSecond, pieces, of_pieces));
    EXPECT_GE(of_pieces.size(), 3U);
    int32_t first = -1;
    EXPECT_EQ(backend->GuessUnits(kFirst, kSecond, pieces, {&first, 1}), 1U);
    EXPECT_EQ(first, of_pieces[0]) << "the likeliest comes first";
    EXPECT_EQ(backend->GuessUnits(kFirst, kSecond, {pieces.data(), 1}, of_pieces), 0U) << "rows are missing";
    for (const int32_t id : chosen) ASSERT_TRUE(backend->ComputeUnits(kFirst, model.Matrices(block, id)).ok());
    EXPECT_EQ(Bits(*backend), WholeBits(model, x, rows)) << "a guess changes nothing";
  }
  Begin(*backend, Input(model, 5), 0, 5);
  ASSERT_TRUE(backend->Compute(kFirst).ok());
  std::vector<int32_t> units(64);
  EXPECT_EQ(backend->GuessUnits(kFirst, kSecond, same, units), 0U) << "too many rows";
}

TEST(ExpertsBlockErrorsTest, AUnitThatComesTwiceIsRefused) {
  const ExpertsModel model({});
  const auto backend = model.Open(1, [](const TensorSpec& tensor) { return tensor.expert < 0; });
  Begin(*backend, Input(model, 1), 0, 1);
  ASSERT_TRUE(backend->Compute(kFirst).ok());
  std::vector<RowsInMemory> twice = model.Matrices(model.spec().blocks[0], backend->ChosenUnits(kFirst)[0]);
  twice.insert(twice.end(), twice.begin(), twice.begin() + 3);
  EXPECT_THAT(std::string(backend->ComputeUnits(kFirst, twice).message()), HasSubstr("out of order"));
}

TEST(ExpertsBlockErrorsTest, SizesThatTheKernelsDoNotComputeAreRefused) {
  const auto refused = [](const ExpertsConfig& experts) {
    ModelSpec spec = ExpertsSpec({});
    *spec.config.experts = experts;
    return std::string(cpu::OpenCpuBackend(spec, {.max_rows = 1, .max_sequences = 1, .context = 16}).status().message());
  };
  EXPECT_THAT(refused({.count = 2048, .per_token = 2}), HasSubstr("computes at most 64 of 1024"));
  EXPECT_THAT(refused({.count = 128, .per_token = 65}), HasSubstr("65 of 128 experts for each token"));
  EXPECT_THAT(refused({.count = 4, .per_token = 5}), HasSubstr("5 of 4 experts"));
  EXPECT_THAT(refused({.count = 12, .per_token = 4, .groups = 4, .groups_kept = 1}), HasSubstr("1 of 4 groups"));
  EXPECT_THAT(refused({.count = 12, .per_token = 1, .groups = 5, .groups_kept = 1}), HasSubstr("1 of 5 groups"));
}

}  // namespace
}  // namespace lime
