// Blocks with experts on the backend "cpu": every scoring against fp64, and the same bits however
// rows arrive, in any order of the experts, and whichever of them are in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>

#include "kernels/cpu_backend/cpu_backend.h"
#include "tests/kernels/random_experts.h"

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

constexpr int64_t kMostRows = 48;
constexpr BlockId kFirst{BlockKind::kExperts, 0}, kSecond{BlockKind::kExperts, 1};

using Matrix64 = std::vector<std::vector<double>>;

class Model {
 public:
  explicit Model(const RandomExperts& options) : spec_(ExpertsSpec(options)), bits_(options.bits) {
    for (const BlockSpec& block : spec_.blocks)
      tensors_.push_back(RandomTensors(block, 100 + 5000 * static_cast<uint32_t>(block.id.layer)));
  }

  const ModelSpec& spec() const { return spec_; }
  const ExpertsConfig& experts() const { return *spec_.config.experts; }

  BackendOptions Options(int threads) const {
    return {.num_threads = threads,
            .max_rows = kMostRows,
            .max_logit_rows = 1,
            .max_sequences = 1,
            .context = 64,
            .num_kv_pages = 8,
            .numerics = "emulated-bf16"};
  }

  // `in_memory(tensor)`: the tensor is bound. Small tensors always are.
  template <typename InMemory>
  std::unique_ptr<Backend> Open(int threads, const InMemory& in_memory) const {
    auto backend = cpu::OpenCpuBackend(spec_, Options(threads)).value();
    for (size_t block = 0; block < spec_.blocks.size(); ++block) {
      BlockWeights weights;
      for (size_t i = 0; i < tensors_[block].size(); ++i) {
        const TensorSpec& tensor = spec_.blocks[block].tensors[i];
        weights.tensors.push_back(IsPinned(tensor) || in_memory(tensor) ? tensors_[block][i].data() : nullptr);
      }
      EXPECT_TRUE(backend->BindBlock(spec_.blocks[block], weights).ok());
    }
    for (int64_t layer = 0; layer < 2; ++layer) backend->SetPages(0, layer, std::vector<int32_t>{0, 1, 2, 3});
    return backend;
  }
  std::unique_ptr<Backend> Open(int threads = 1) const {
    return Open(threads, [](const TensorSpec&) { return true; });
  }

  // Rows [begin, end) of a matrix of a block.
  RowsInMemory Rows(const BlockSpec& block, TensorRole role, int32_t expert, int64_t begin, int64_t end) const {
    const auto at = [&](TensorPart part) -> const std::byte* {
      const std::optional<size_t> i = block.Find(role, part, expert);
      if (!i) return nullptr;
      const TensorInfo& info = block.tensors[*i].info;
      return tensors_[static_cast<size_t>(block.id.layer)][*i].data() + begin * (info.bytes / info.shape[0]);
    };
    return {.rows = {role, begin, end, expert},
            .weight = at(TensorPart::kWeight),
            .scales = at(TensorPart::kScales),
            .biases = at(TensorPart::kGroupBiases)};
  }

  // Whole matrices of one expert, or of none, in order of use.
  std::vector<RowsInMemory> Matrices(const BlockSpec& block, int32_t expert) const {
    std::vector<RowsInMemory> matrices;
    for (const TensorSpec& tensor : block.tensors) {
      if (tensor.expert != expert || IsPinned(tensor) || tensor.part != TensorPart::kWeight) continue;
      matrices.push_back(Rows(block, tensor.role, expert, 0, tensor.info.shape[0]));
    }
    return matrices;
  }

  // ---- fp64

  // [rows][cols]; a vector has one column.
  Matrix64 Values(TensorRole role, int32_t expert = -1, TensorPart part = TensorPart::kWeight) const {
    const BlockSpec& block = spec_.blocks[0];
    const std::optional<size_t> i = block.Find(role, part, expert);
    if (!i) return {};
    const TensorInfo& info = block.tensors[*i].info;
    const int64_t rows = info.shape[0], per_row = info.bytes / ElementBytes(info.dtype) / rows;
    Matrix64 values(static_cast<size_t>(rows));
    if (info.dtype == DType::kU32) {
      const Matrix64 scales = Values(role, expert, TensorPart::kScales), biases = Values(role, expert, TensorPart::kGroupBiases);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t k = 0; k < per_row * 32 / bits_; ++k) {
          uint32_t q = 0;
          for (int b = 0; b < bits_; ++b) {
            const int64_t bit = k * bits_ + b;
            q |= (static_cast<uint32_t>(tensors_[0][*i][static_cast<size_t>(r * per_row * 4 + bit / 8)]) >> (bit % 8) & 1U) << b;
          }
          const size_t row = static_cast<size_t>(r), group = static_cast<size_t>(k / 32);
          values[row].push_back(scales[row][group] * q + biases[row][group]);
        }
      }
      return values;
    }
    cpu::Array array(info.dtype, rows * per_row);
    array.data = tensors_[0][*i];
    for (int64_t k = 0; k < rows * per_row; ++k) values[static_cast<size_t>(k / per_row)].push_back(array[k]);
    return values;
  }

  std::vector<double> Multiply(TensorRole role, int32_t expert, const std::vector<double>& x) const {
    const Matrix64 w = Values(role, expert), bias = Values(role, expert, TensorPart::kBias);
    std::vector<double> y;
    for (size_t r = 0; r < w.size(); ++r) {
      y.push_back(bias.empty() ? 0 : bias[r][0]);
      for (size_t k = 0; k < x.size(); ++k) y.back() += w[r][k] * x[k];
    }
    return y;
  }

  double Act(double gate, double up) const {
    const double limit = spec_.config.activation_limit;
    if (spec_.config.activation == Activation::kSilu) return gate / (1 + std::exp(-gate)) * up;
    gate = std::min(gate, limit), up = std::clamp(up, -limit, limit);
    return (up + 1) * gate / (1 + std::exp(-1.702 * gate));
  }

  std::vector<double> Mlp(std::vector<double> gate, std::vector<double> up, TensorRole down, int32_t expert) const {
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = Act(gate[i], up[i]);
    return Multiply(down, expert, gate);
  }

  std::vector<double> Expert(int32_t id, const std::vector<double>& x) const {
    if (!experts().alternates) return Mlp(Multiply(TensorRole::kGate, id, x), Multiply(TensorRole::kUp, id, x), TensorRole::kDown, id);
    std::vector<double> gate, up;
    const std::vector<double> both = Multiply(TensorRole::kGateUp, id, x);
    for (size_t i = 0; i < both.size(); i += 2) gate.push_back(both[i]), up.push_back(both[i + 1]);
    return Mlp(gate, up, TensorRole::kDown, id);
  }

  // Weights of the chosen experts, by id; the others are 0.
  std::vector<double> Route(std::vector<double> scores) const {
    const ExpertsConfig& e = experts();
    const size_t count = scores.size();
    double all = 0;
    for (double& s : scores) {
      if (e.scoring == RouterScoring::kSigmoid) s = 1 / (1 + std::exp(-s));
      if (e.scoring == RouterScoring::kSoftmax) all += s = std::exp(s);
    }
    if (e.scoring == RouterScoring::kSoftmax)
      for (double& s : scores) s /= all;
    std::vector<double> by = scores;
    const Matrix64 correction = Values(TensorRole::kRouterCorrection);
    for (size_t i = 0; i < count && !correction.empty(); ++i) by[i] += correction[i][0];
    const size_t size = count / static_cast<size_t>(e.groups);
    std::vector<std::pair<double, size_t>> groups, ids;
    for (size_t g = 0; g < static_cast<size_t>(e.groups); ++g) {
      std::vector<double> sorted(by.begin() + static_cast<ptrdiff_t>(g * size), by.begin() + static_cast<ptrdiff_t>((g + 1) * size));
      std::ranges::sort(sorted, std::greater<>());
      groups.emplace_back(-(sorted[0] + (size > 1 ? sorted[1] : 0)), g);
    }
    std::ranges::sort(groups);
    for (size_t g = 0; g < static_cast<size_t>(e.groups_kept); ++g)
      for (size_t i = groups[g].second * size; i < (groups[g].second + 1) * size; ++i) ids.emplace_back(-by[i], i);
    std::ranges::sort(ids);
    std::vector<double> weights(count);
    double sum = 0;
    for (size_t s = 0; s < static_cast<size_t>(e.per_token); ++s) {
      const size_t id = ids[s].second;
      sum += weights[id] = e.scoring == RouterScoring::kSoftmaxOfBest ? std::exp(scores[id]) : scores[id];
    }
    for (double& w : weights) w *= (e.normalized || e.scoring == RouterScoring::kSoftmaxOfBest ? 1 / sum : 1) * e.weight_factor;
    return weights;
  }

  // One row after the first block.
  std::vector<double> Exact(const std::vector<double>& x) const {
    double squares = 0;
    for (const double v : x) squares += v * v;
    const Matrix64 norm = Values(TensorRole::kNorm);
    std::vector<double> h = x, y = x;
    for (size_t i = 0; i < h.size(); ++i) h[i] *= norm[i][0] / std::sqrt(squares / static_cast<double>(x.size()) + spec_.config.norm_eps);
    const std::vector<double> weights = Route(Multiply(TensorRole::kRouter, -1, h));
    const auto add = [&](double weight, const std::vector<double>& out) {
      for (size_t i = 0; i < y.size(); ++i) y[i] += spec_.config.residual_multiplier * weight * out[i];
    };
    for (size_t id = 0; id < weights.size(); ++id)
      if (weights[id] != 0) add(weights[id], Expert(static_cast<int32_t>(id), h));
    if (experts().shared_intermediate_size > 0) {
      const double scale = experts().shared_scale ? 1 / (1 + std::exp(-Multiply(TensorRole::kSharedScale, -1, h)[0])) : 1;
      add(scale, Mlp(Multiply(TensorRole::kSharedGate, -1, h), Multiply(TensorRole::kSharedUp, -1, h), TensorRole::kSharedDown, -1));
    }
    return y;
  }

  ModelSpec& mutable_spec() { return spec_; }

 private:
  ModelSpec spec_;
  int bits_;
  std::vector<std::vector<std::vector<std::byte>>> tensors_;  // [block][tensor]
};

// ---- Batches

cpu::Array Input(const Model& model, int64_t rows, uint32_t seed = 7) {
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

std::vector<std::byte> WholeBits(const Model& model, const cpu::Array& x, int64_t rows) {
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
void ComputeInParts(Backend& backend, const Model& model, const std::vector<RowsInMemory>& matrices, std::mt19937& random) {
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
      {"packed_3_bits", {.experts = {.normalized = true}, .bits = 3}},
      {"packed_8_bits_alternating", {.experts = {.alternates = true}, .activation = Activation::kClampedSwiglu, .bits = 8}},
  };
}

class ExpertsBlockTest : public ::testing::TestWithParam<NamedModel> {
 protected:
  // The model in another dtype.
  static Model ModelOf(DType dtype) {
    RandomExperts options = GetParam().options;
    options.dtype = dtype;
    return Model(options);
  }
};

TEST_P(ExpertsBlockTest, AgreesWithFp64) {
  Model model = ModelOf(DType::kF32);
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
    const Model model = ModelOf(dtype);
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
    const Model model = ModelOf(dtype);
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
    const Model model = ModelOf(dtype);
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
  const Model model = ModelOf(DType::kBF16);
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
    const int64_t before = g_allocations;
    const bool ok = backend->Compute(kFirst).ok() && backend->ComputeUnits(kFirst, units).ok();
    EXPECT_EQ(g_allocations, before);
    EXPECT_TRUE(ok);
  }
}

TEST_P(ExpertsBlockTest, ItsMemoryIsCountedBeforeItIsMade) {
  const Model model = ModelOf(DType::kBF16);
  EXPECT_EQ(model.Open(3)->ActivationBytes(), cpu::CpuActivationBytes(model.spec(), model.Options(3)));
}

INSTANTIATE_TEST_SUITE_P(Models, ExpertsBlockTest, ::testing::ValuesIn(Models()),
                         [](const auto& info) { return std::string(info.param.name); });

// ---- Errors

TEST(ExpertsBlockErrorsTest, ARowWithANaNIsNamedAndNothingIsLost) {
  const Model model({});
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
  const Model model({});
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
  const Model model({});
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

TEST(ExpertsBlockErrorsTest, AUnitThatComesTwiceIsRefused) {
  const Model model({});
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
