// MLP blocks with ReLU on the backend "cpu": active neurons alone give the bits of whole matrices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/proven_zeros/decider_copy.h"
#include "kernels/cpu_backend/cpu_backend.h"
#include "planner/plan/model/described_model.h"
#include "planner/plan/model/neuron_predictor.h"
#include "tests/kernels/random_experts.h"
#include "tests/kernels/random_model.h"
#include "tests/kernels/strips.h"

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

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr BlockId kMlp{BlockKind::kMlp, 0}, kNext{BlockKind::kAttention, 1};
constexpr int64_t kHidden = 96, kMostRows = 8;

struct NamedModel {
  const char* name;
  const char* family;
  const char* dtype;
  int64_t neurons = 160;
  int bits = 0;
};

std::string ConfigOf(const NamedModel& model) {
  const std::string sizes = R"("hidden_size": 96, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 300, "dtype": ")" +
                            std::string(model.dtype) + R"(", "max_position_embeddings": 64, )" +
                            (model.bits > 0 ? R"("quantization": {"group_size": 32, "bits": )" + std::to_string(model.bits) + "}, " : "");
  const std::string neurons = std::to_string(model.neurons), family = model.family;
  if (family == "opt")
    return "{" + sizes + R"("architectures": ["OPTForCausalLM"], "model_type": "opt", "word_embed_proj_dim": 96,
      "activation_function": "relu", "do_layer_norm_before": true, "ffn_dim": )" +
           neurons + "}";
  if (family == "falcon")
    return "{" + sizes + R"("architectures": ["FalconForCausalLM"], "model_type": "falcon", "activation": "relu", "bias": true,
      "ffn_hidden_size": )" +
           neurons + "}";
  if (family == "fatrelu" || family == "drelu")
    return "{" + sizes +
           (family == "drelu" ? R"("model_type": "bamboo", "hidden_act": "relu",)"
                              : R"("model_type": "sparsellama", "hidden_act": "fatrelu", "hidden_act_param": 0.25,)") +
           R"("num_key_value_heads": 2, "rms_norm_eps": 1e-5, "intermediate_size": )" + neurons + "}";
  return "{" + sizes + R"("architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "hidden_act": ")" +
         (family == "silu" ? "silu" : "relu") + R"(", "intermediate_size": )" + neurons + "}";
}

class SparseModel {
 public:
  explicit SparseModel(const NamedModel& model) : spec_(DescribeModel(ConfigOf(model), model.name).value()) {
    for (const BlockSpec& block : spec_.blocks)
      tensors_.push_back(RandomTensors(block, model.bits, 100 * static_cast<uint32_t>(1 + tensors_.size())));
  }

  ModelSpec& spec() { return spec_; }
  const BlockSpec& mlp() const { return spec_.block(kMlp); }
  bool gated() const { return spec_.config.gated_mlp; }
  TensorRole decider() const { return gated() ? TensorRole::kGate : TensorRole::kUp; }

  // The tensor of the MLP block, or null.
  std::vector<std::byte>* Tensor(TensorRole role, TensorPart part = TensorPart::kWeight) {
    const std::optional<size_t> i = mlp().Find(role, part);
    return i ? &OfMlp()[*i] : nullptr;
  }

  // Moves the pre-activations of an OPT's MLP.
  void SetBias(float bias) {
    std::vector<std::byte>& tensor = *Tensor(TensorRole::kUp, TensorPart::kBias);
    cpu::Array values(spec_.working_dtype, std::ssize(tensor) / ElementBytes(spec_.working_dtype));
    for (int64_t i = 0; i < values.size(); ++i) values.Set(i, bias);
    tensor = values.data;
  }

  struct Opening {
    std::string numerics = "portable";
    int threads = 1;
    bool whole = false;  // all matrices are bound
    bool decider_streams = false;
    int64_t sparse_rows = kMostRows;
    int copy_bits = 0;       // of a copy of the decider; 0: none is bound
    int predictor_rank = 0;  // 0: none is bound
    float limit = 0;         // of the predictor

    bool has_no_decider() const { return copy_bits > 0 || predictor_rank > 0; }
  };

  std::unique_ptr<Backend> Open(const Opening& opening) {
    auto backend = cpu::OpenCpuBackend(spec_, OptionsOf(opening)).value();
    for (size_t block = 0; block < spec_.blocks.size(); ++block) {
      BlockWeights weights;
      for (size_t i = 0; i < tensors_[block].size(); ++i) {
        const TensorSpec& tensor = spec_.blocks[block].tensors[i];
        // Scales of a decider that streams come with its rows; those of bundles stay in memory.
        const bool is_weight = tensor.part == TensorPart::kWeight;
        const bool is_bundled = spec_.blocks[block].id == kMlp && !IsPinned(tensor) &&
                                (tensor.role == decider() ? opening.decider_streams || (opening.has_no_decider() && is_weight) : is_weight);
        weights.tensors.push_back(is_bundled && !opening.whole ? nullptr : tensors_[block][i].data());
      }
      EXPECT_TRUE(backend->BindBlock(spec_.blocks[block], weights).ok());
    }
    for (int64_t layer = 0; layer < 2; ++layer) backend->SetPages(0, layer, std::vector<int32_t>{0});
    if (opening.copy_bits > 0) {
      const auto copy = std::make_shared<DeciderCopy>(CopyOfDecider(opening.copy_bits));
      const absl::Status bound = backend->BindCopy(kMlp, copy->view(), copy);
      EXPECT_TRUE(bound.ok()) << bound;
    }
    if (opening.predictor_rank > 0) {
      const auto predictor = std::make_shared<Predictor>(PredictorOf(opening.predictor_rank));
      const absl::Status bound = backend->BindPredictor(kMlp, predictor->view(opening.limit), predictor);
      EXPECT_TRUE(bound.ok()) << bound;
    }
    return backend;
  }

  // With random numbers. Its biases lie around zero, so that the limit decides how many are predicted.
  struct Predictor {
    cpu::Array a, b, c;
    int64_t rank;

    PredictorView view(float limit) const {
      return {
          .neurons = c.size(), .cols = kHidden, .rank = rank, .a = a.data.data(), .b = b.data.data(), .c = c.data.data(), .limit = limit};
    }
  };
  Predictor PredictorOf(int64_t rank) const {
    const DType dtype = spec_.working_dtype;
    const int64_t n = spec_.config.layer(0).intermediate_size;
    return {.a = cpu::RandomArray(dtype, rank * kHidden, 11, 0.1F),
            .b = cpu::RandomArray(dtype, n * rank, 12, 0.4F),
            .c = cpu::RandomArray(dtype, n, 13, 0.1F),
            .rank = rank};
  }

  static constexpr int64_t kDirections = 6;
  DeciderCopy CopyOfDecider(int bits) {
    const std::vector<std::byte>& tensor = *Tensor(decider());
    cpu::Array values(spec_.working_dtype, std::ssize(tensor) / ElementBytes(spec_.working_dtype));
    values.data = tensor;
    std::vector<float> weights;
    for (int64_t i = 0; i < values.size(); ++i) weights.push_back(values[i]);
    return DeciderCopy::Create(
               {.rows = values.size() / kHidden, .cols = kHidden, .weights = weights, .bits = bits},
               {.mean = cpu::RandomFloats(kHidden, 1, 0.1F), .directions = cpu::RandomFloats(kDirections * kHidden, 2, 0.1F)})
        .value();
  }

  static BackendOptions OptionsOf(const Opening& opening) {
    return {.num_threads = opening.threads,
            .max_rows = 2 * kMostRows,
            .max_logit_rows = 1,
            .max_sequences = 1,
            .context = 64,
            .num_kv_pages = 8,
            .sparse_rows = opening.sparse_rows,
            .copied_directions = opening.copy_bits > 0 ? kDirections : -1,
            .predictor_rank = opening.predictor_rank,
            .numerics = opening.numerics};
  }

  // A neuron's memory of its own, for one call.
  struct Bundle {
    std::vector<std::byte> decider, up;
    std::vector<uint32_t> down;
  };

  Bundle BundleOf(int32_t neuron) {
    const auto row_bytes = [&](TensorRole role) {
      const TensorInfo& info = mlp().tensors[*mlp().Find(role, TensorPart::kWeight)].info;
      return info.bytes / info.shape[0];
    };
    Bundle bundle;
    const std::byte* const row = Tensor(decider())->data() + neuron * row_bytes(decider());
    bundle.decider.assign(row, row + row_bytes(decider()));
    if (gated()) {
      const std::byte* const up = Tensor(TensorRole::kUp)->data() + neuron * row_bytes(TensorRole::kUp);
      bundle.up.assign(up, up + row_bytes(TensorRole::kUp));
    }
    const int64_t down_row = row_bytes(TensorRole::kDown), bits = 8 * down_row / spec_.config.layer(0).intermediate_size;
    bundle.down = cpu::ColumnOf(Tensor(TensorRole::kDown)->data(), kHidden, down_row, bits, neuron);
    return bundle;
  }

  RowsInMemory Rows(TensorRole role, int64_t begin, int64_t end) {
    const auto at = [&](TensorPart part) -> const std::byte* {
      const std::optional<size_t> i = mlp().Find(role, part);
      return i ? OfMlp()[*i].data() + begin * (mlp().tensors[*i].info.bytes / mlp().tensors[*i].info.shape[0]) : nullptr;
    };
    return {.rows = {role, begin, end},
            .weight = at(TensorPart::kWeight),
            .scales = at(TensorPart::kScales),
            .biases = at(TensorPart::kGroupBiases)};
  }

 private:
  std::vector<std::vector<std::byte>>& OfMlp() {
    return tensors_[static_cast<size_t>(std::ranges::find(spec_.blocks, kMlp, &BlockSpec::id) - spec_.blocks.begin())];
  }

  ModelSpec spec_;
  std::vector<std::vector<std::vector<std::byte>>> tensors_;
};

// Begins a batch with a random residual stream.
void Begin(Backend& backend, DType dtype, int64_t rows, uint32_t seed) {
  MicroBatch batch;
  for (int64_t row = 0; row < rows; ++row) batch.rows.push_back({.position = static_cast<int32_t>(row)});
  const absl::Status status = backend.Begin(batch);
  ASSERT_TRUE(status.ok()) << status;
  const cpu::Array x = cpu::RandomArray(dtype, std::ssize(backend.Hidden()) / ElementBytes(dtype), seed, 1.5F);
  std::ranges::copy(x.data, backend.Hidden().begin());
}

std::vector<std::byte> Bits(Backend& backend) {
  return {backend.Hidden().begin(), backend.Hidden().end()};
}

std::vector<std::byte> WholeBits(SparseModel& model, const std::string& numerics, int64_t rows, uint32_t seed) {
  const auto backend = model.Open({.numerics = numerics, .whole = true});
  Begin(*backend, model.spec().working_dtype, rows, seed);
  EXPECT_TRUE(backend->Compute(kMlp).ok());
  return Bits(*backend);
}

absl::Status ComputeSome(Backend& backend, SparseModel& model, std::span<const int32_t> ids) {
  std::vector<SparseModel::Bundle> bundles;
  std::vector<NeuronInMemory> neurons;
  for (const int32_t id : ids) bundles.push_back(model.BundleOf(id));
  for (size_t i = 0; i < ids.size(); ++i) {
    neurons.push_back({.neuron = ids[i],
                       .decider = bundles[i].decider.data(),
                       .up = model.gated() ? bundles[i].up.data() : nullptr,
                       .down = reinterpret_cast<const std::byte*>(bundles[i].down.data())});
  }
  return backend.ComputeNeurons(kMlp, neurons);
}

// All decided neurons, in calls of at most `most`.
void ComputeAll(Backend& backend, SparseModel& model, std::span<const int32_t> decided, size_t most) {
  const std::vector<int32_t> ids(decided.begin(), decided.end());
  size_t begin = 0;
  do {
    const size_t count = std::min(most, ids.size() - begin);
    const absl::Status status = ComputeSome(backend, model, std::span(ids).subspan(begin, count));
    ASSERT_TRUE(status.ok()) << status;
    begin += count;
  } while (begin < ids.size());
}

class NeuronsTest : public ::testing::TestWithParam<NamedModel> {};

TEST_P(NeuronsTest, GiveTheBitsOfWholeMatrices) {
  SparseModel model(GetParam());
  const DType dtype = model.spec().working_dtype;
  for (const std::string numerics : {"portable", "emulated-bf16"}) {
    for (const int64_t rows : {int64_t{1}, int64_t{3}, kMostRows}) {
      const std::vector<std::byte> whole = WholeBits(model, numerics, rows, 7);
      for (const size_t most : {size_t{1}, size_t{7}, size_t{100000}}) {
        SCOPED_TRACE(numerics + ", " + std::to_string(rows) + " rows, calls of " + std::to_string(most));
        if (most == 1 && GetParam().neurons > 1000) continue;
        const auto backend = model.Open({.numerics = numerics, .threads = rows == 3 ? 2 : 1});
        Begin(*backend, dtype, rows, 7);
        const auto active = backend->DecideNeurons(kMlp);
        ASSERT_TRUE(active.ok()) << active.status();
        EXPECT_FALSE(active->empty());
        EXPECT_TRUE(rows > 1 || active->size() < static_cast<size_t>(GetParam().neurons));
        ComputeAll(*backend, model, *active, most);
        ASSERT_EQ(Bits(*backend), whole);
      }
    }
  }
}

TEST_P(NeuronsTest, ACopyOfTheDeciderGivesTheSameBits) {
  SparseModel model(GetParam());
  const DType dtype = model.spec().working_dtype;
  if (GetParam().bits > 0) {
    const auto backend = model.Open({.copy_bits = 0});
    EXPECT_THAT(std::string(backend->BindCopy(kMlp, {.rows = 160, .cols = kHidden}, nullptr).message()), HasSubstr("no memory for a copy"));
    return;
  }
  for (const std::string numerics : {"portable", "emulated-bf16"}) {
    for (const int64_t rows : {int64_t{1}, int64_t{3}, kMostRows}) {
      const std::vector<std::byte> whole = WholeBits(model, numerics, rows, 7);
      const auto dense = model.Open({.numerics = numerics});
      Begin(*dense, dtype, rows, 7);
      const std::vector<int32_t> active(dense->DecideNeurons(kMlp)->begin(), dense->DecideNeurons(kMlp)->end());
      size_t fewest = static_cast<size_t>(GetParam().neurons) + 1;
      for (const int bits : {4, 5, 6, 8}) {
        for (const size_t most : {size_t{1}, size_t{7}, size_t{100000}}) {
          SCOPED_TRACE(numerics + ", " + std::to_string(rows) + " rows, " + std::to_string(bits) + " bits, calls of " +
                       std::to_string(most));
          if (most == 1 && GetParam().neurons > 1000) continue;
          const auto backend = model.Open({.numerics = numerics, .threads = rows == 3 ? 2 : 1, .copy_bits = bits});
          Begin(*backend, dtype, rows, 7);
          const auto found = backend->DecideNeurons(kMlp);
          ASSERT_TRUE(found.ok()) << found.status();
          const std::vector<int32_t> unproven(found->begin(), found->end());
          EXPECT_TRUE(std::ranges::includes(unproven, active)) << "an active neuron was proven to be zero";
          EXPECT_LE(unproven.size(), fewest) << "more bits prove more";
          if (most == 100000) fewest = unproven.size() + unproven.size() / 10;
          ComputeAll(*backend, model, unproven, most);
          ASSERT_EQ(Bits(*backend), whole);
        }
      }
      EXPECT_TRUE(rows > 1 || fewest < static_cast<size_t>(GetParam().neurons)) << "nothing was proven";
    }
  }
}

// Whole matrices, pieces of them, and neurons in calls of any size give one result of a row, alone or among
// others, on any number of threads.
TEST_P(NeuronsTest, PredictedOnesGiveOneResultInAllCalls) {
  SparseModel model(GetParam());
  const DType dtype = model.spec().working_dtype;
  const int64_t n = GetParam().neurons;
  if (GetParam().bits > 0) {
    const auto backend = model.Open({.copy_bits = 0});
    EXPECT_FALSE(backend->BindPredictor(kMlp, model.PredictorOf(4).view(0), nullptr).ok());
    return;
  }
  for (const std::string numerics : {"portable", "emulated-bf16"}) {
    for (const int rank : {5, 24}) {
      SCOPED_TRACE(numerics + ", rank " + std::to_string(rank));
      const SparseModel::Opening opening{.numerics = numerics, .predictor_rank = rank};
      SparseModel::Opening whole = opening;
      whole.whole = true;
      const auto backend = model.Open(whole);
      Begin(*backend, dtype, kMostRows, 7);
      const std::vector<std::byte> before = Bits(*backend);
      ASSERT_TRUE(backend->Compute(kMlp).ok());
      const std::vector<std::byte> all = Bits(*backend);
      EXPECT_NE(all, WholeBits(model, numerics, kMostRows, 7)) << "the predictor misses some";

      const auto pieces = model.Open(opening);
      Begin(*pieces, dtype, kMostRows, 7);
      std::vector<std::vector<int32_t>> of_rows;
      for (int64_t row = 0; row < kMostRows; ++row) {
        const auto predicted = pieces->ActiveNeurons(kMlp, row);
        ASSERT_TRUE(predicted.ok()) << predicted.status();
        of_rows.emplace_back(predicted->begin(), predicted->end());
        EXPECT_TRUE(!of_rows.back().empty() && std::ssize(of_rows.back()) < n);
      }
      for (const TensorRole role : {TensorRole::kGate, TensorRole::kUp, TensorRole::kDown}) {
        if (model.Tensor(role) == nullptr) continue;
        const int64_t rows = role == TensorRole::kDown ? kHidden : n;
        for (const auto& [begin, end] : {std::pair<int64_t, int64_t>(0, 64), {64, rows}})
          ASSERT_TRUE(pieces->ComputeRows(kMlp, model.Rows(role, begin, end)).ok());
      }
      EXPECT_EQ(Bits(*pieces), all);

      // The first rows of a stream, or of each of its two planes.
      const auto first = [planes = size_t{model.spec().config.parallel_halves ? 2U : 1U}](const std::vector<std::byte>& stream,
                                                                                          int64_t rows) {
        const size_t plane = stream.size() / planes, taken = plane / kMostRows * static_cast<size_t>(rows);
        std::vector<std::byte> out;
        for (size_t begin = 0; begin < stream.size(); begin += plane)
          out.insert(out.end(), stream.begin() + static_cast<int64_t>(begin), stream.begin() + static_cast<int64_t>(begin + taken));
        return out;
      };
      for (const int64_t rows : {int64_t{1}, int64_t{3}, kMostRows}) {
        for (const size_t most : {size_t{7}, size_t{100000}}) {
          SparseModel::Opening few = opening;
          few.threads = rows == 3 ? 2 : 1;
          const auto neurons = model.Open(few);
          Begin(*neurons, dtype, rows, 7);
          std::ranges::copy(first(before, rows), neurons->Hidden().begin());
          const auto predicted = neurons->DecideNeurons(kMlp);
          ASSERT_TRUE(predicted.ok()) << predicted.status();
          std::set<int32_t> any;
          for (int64_t row = 0; row < rows; ++row)
            any.insert(of_rows[static_cast<size_t>(row)].begin(), of_rows[static_cast<size_t>(row)].end());
          EXPECT_TRUE(std::ranges::equal(*predicted, any));
          ComputeAll(*neurons, model, *predicted, most);
          ASSERT_EQ(Bits(*neurons), first(all, rows));
        }
      }
    }
  }
}

TEST_P(NeuronsTest, APredictorOfAllGivesTheBitsOfWholeMatrices) {
  SparseModel model(GetParam());
  if (GetParam().bits > 0) return;
  const auto backend = model.Open({.predictor_rank = 3, .limit = -1e30F});
  Begin(*backend, model.spec().working_dtype, 2, 3);
  const std::vector<int32_t> all(backend->DecideNeurons(kMlp)->begin(), backend->DecideNeurons(kMlp)->end());
  EXPECT_THAT(all, SizeIs(GetParam().neurons));
  ComputeAll(*backend, model, all, 50);
  EXPECT_EQ(Bits(*backend), WholeBits(model, "portable", 2, 3));
}

TEST_P(NeuronsTest, ADeciderThatStreamsGivesTheSameBits) {
  SparseModel model(GetParam());
  const int64_t n = GetParam().neurons;
  const auto backend = model.Open({.decider_streams = true});
  Begin(*backend, model.spec().working_dtype, 2, 3);
  EXPECT_THAT(std::string(backend->DecideNeurons(kMlp).status().message()), HasSubstr("rows of their decider are missing"));
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>(0, 64), {64, 65}, {65, n}}) {
    EXPECT_FALSE(backend->DecideNeurons(kMlp).ok());
    ASSERT_TRUE(backend->ComputeRows(kMlp, model.Rows(model.decider(), begin, end)).ok());
  }
  const auto active = backend->DecideNeurons(kMlp);
  ASSERT_TRUE(active.ok()) << active.status();
  ComputeAll(*backend, model, *active, 50);
  EXPECT_EQ(Bits(*backend), WholeBits(model, "portable", 2, 3));
}

TEST_P(NeuronsTest, TheOtherMatricesMayStreamInstead) {
  SparseModel model(GetParam());
  const int64_t n = GetParam().neurons;
  const auto backend = model.Open({});
  Begin(*backend, model.spec().working_dtype, 2, 3);
  ASSERT_TRUE(backend->DecideNeurons(kMlp).ok());
  if (model.gated()) ASSERT_TRUE(backend->ComputeRows(kMlp, model.Rows(TensorRole::kUp, 0, n)).ok());
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>(0, 64), {64, kHidden}})
    ASSERT_TRUE(backend->ComputeRows(kMlp, model.Rows(TensorRole::kDown, begin, end)).ok());
  EXPECT_EQ(Bits(*backend), WholeBits(model, "portable", 2, 3));
  EXPECT_THAT(std::string(backend->ComputeNeurons(kMlp, {}).message()), HasSubstr("they are not decided"));
  // And neurons again in the next batch.
  Begin(*backend, model.spec().working_dtype, 2, 3);
  ComputeAll(*backend, model, backend->DecideNeurons(kMlp).value(), 40);
  EXPECT_EQ(Bits(*backend), WholeBits(model, "portable", 2, 3));
}

INSTANTIATE_TEST_SUITE_P(
    Models, NeuronsTest,
    ::testing::Values(NamedModel{"opt_f32", "opt", "float32"}, NamedModel{"opt_f16", "opt", "float16"},
                      NamedModel{"opt_bf16", "opt", "bfloat16"}, NamedModel{"opt_folds", "opt", "bfloat16", 4500},
                      NamedModel{"llama_bf16", "llama", "bfloat16"}, NamedModel{"llama_f16_folds", "llama", "float16", 2112},
                      NamedModel{"fatrelu_bf16", "fatrelu", "bfloat16"}, NamedModel{"drelu_f32", "drelu", "float32"},
                      NamedModel{"falcon_bf16", "falcon", "bfloat16"}, NamedModel{"falcon_f32", "falcon", "float32"},
                      NamedModel{"opt_q4", "opt", "bfloat16", 160, 4}, NamedModel{"llama_q3", "llama", "float16", 160, 3},
                      NamedModel{"llama_q6", "llama", "bfloat16", 160, 6}, NamedModel{"llama_q8", "llama", "float32", 160, 8}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(NeuronsTest, OfSingleRowsAreThoseOfTheBatch) {
  SparseModel model(GetParam());
  const int64_t n = GetParam().neurons, most = 2 * kMostRows;  // more than may be decided
  const auto backend = model.Open({.decider_streams = true});
  const auto of_rows = [&](int64_t rows) {
    Begin(*backend, model.spec().working_dtype, rows, 5);
    EXPECT_TRUE(backend->ComputeRows(kMlp, model.Rows(model.decider(), 0, n)).ok());
    std::vector<std::vector<int32_t>> of;
    for (int64_t row = 0; row < rows; ++row) {
      const auto active = backend->ActiveNeurons(kMlp, row);
      EXPECT_TRUE(active.ok()) << active.status();
      of.emplace_back(active->begin(), active->end());
    }
    return of;
  };
  std::set<int32_t> any;
  const std::vector<std::vector<int32_t>> rows = of_rows(3);
  for (const std::vector<int32_t>& row : rows) any.insert(row.begin(), row.end());
  EXPECT_NE(rows[0], rows[1]);
  EXPECT_TRUE(std::ranges::equal(backend->DecideNeurons(kMlp).value(), any));
  of_rows(most);
  EXPECT_FALSE(backend->ActiveNeurons(kMlp, most).ok());
  // The rest is computed as if nobody had asked.
  if (model.gated()) ASSERT_TRUE(backend->ComputeRows(kMlp, model.Rows(TensorRole::kUp, 0, n)).ok());
  ASSERT_TRUE(backend->ComputeRows(kMlp, model.Rows(TensorRole::kDown, 0, kHidden)).ok());
  EXPECT_EQ(Bits(*backend), WholeBits(model, "portable", most, 5));
  EXPECT_THAT(std::string(backend->ActiveNeurons(kMlp, 0).status().message()), HasSubstr("its decider has not streamed"));
}

constexpr NamedModel kOpt{"opt", "opt", "bfloat16"}, kLlama{"llama", "llama", "bfloat16"};

TEST(NeuronsOfOptTest, NoneAndAllMayBeActive) {
  for (const float bias : {-1000.0F, 1000.0F}) {
    SparseModel model(kOpt);
    model.SetBias(bias);
    const auto backend = model.Open({});
    Begin(*backend, DType::kBF16, 2, 3);
    const std::vector<std::byte> before = Bits(*backend);
    const auto active = backend->DecideNeurons(kMlp);
    ASSERT_TRUE(active.ok());
    EXPECT_THAT(*active, SizeIs(bias > 0 ? 160 : 0));
    ComputeAll(*backend, model, *active, 1000);
    EXPECT_NE(Bits(*backend), before) << "the bias of down is added";
    EXPECT_EQ(Bits(*backend), WholeBits(model, "portable", 2, 3));
    EXPECT_THAT(std::string(backend->ComputeNeurons(kMlp, {}).message()), HasSubstr("already added"));
  }
}

TEST(NeuronsOfLlamaTest, NoneMayBeActive) {
  SparseModel model(kLlama);
  std::ranges::fill(*model.Tensor(TensorRole::kGate), std::byte{0});
  const auto backend = model.Open({});
  Begin(*backend, DType::kBF16, 1, 3);
  const std::vector<std::byte> before = Bits(*backend);
  EXPECT_THAT(backend->DecideNeurons(kMlp).value(), IsEmpty());
  ASSERT_TRUE(backend->ComputeNeurons(kMlp, {}).ok());
  EXPECT_EQ(Bits(*backend), before);
}

TEST(NeuronsOfAllTest, NanIsActive) {
  for (const NamedModel& named : {kOpt, kLlama}) {
    SparseModel model(named);
    const auto backend = model.Open({});
    Begin(*backend, DType::kBF16, 2, 3);
    const BF16 nan = FromFloat<BF16>(std::numeric_limits<float>::quiet_NaN());
    std::memcpy(backend->Hidden().data() + (kHidden + 5) * 2, &nan, 2);
    const auto active = backend->DecideNeurons(kMlp);
    EXPECT_THAT(*active, SizeIs(160));
    ComputeAll(*backend, model, *active, 30);
    const std::vector<std::byte> bits = Bits(*backend);
    for (int64_t i = 0; i < 2 * kHidden; ++i) {
      const float value = ToFloat(reinterpret_cast<const BF16*>(bits.data())[i]);
      EXPECT_EQ(std::isnan(value), i >= kHidden) << i;
    }
  }
}

TEST(NeuronsOfAllTest, NanIsUnproven) {
  for (const NamedModel& named : {kOpt, kLlama}) {
    SparseModel model(named);
    const auto backend = model.Open({.copy_bits = 8});
    Begin(*backend, DType::kBF16, 2, 3);
    const BF16 nan = FromFloat<BF16>(std::numeric_limits<float>::quiet_NaN());
    std::memcpy(backend->Hidden().data() + (kHidden + 5) * 2, &nan, 2);
    const std::vector<std::byte> before = Bits(*backend);
    const std::vector<int32_t> unproven(backend->DecideNeurons(kMlp)->begin(), backend->DecideNeurons(kMlp)->end());
    EXPECT_THAT(unproven, SizeIs(160));
    ComputeAll(*backend, model, unproven, 30);
    const auto whole = model.Open({.whole = true});
    Begin(*whole, DType::kBF16, 2, 3);
    std::ranges::copy(before, whole->Hidden().begin());
    ASSERT_TRUE(whole->Compute(kMlp).ok());
    EXPECT_EQ(std::memcmp(Bits(*backend).data(), Bits(*whole).data(), static_cast<size_t>(kHidden * 2)), 0) << "the other row";
  }
}

TEST(NeuronsOfAllTest, CopiesThatDoNotFitAreRefused) {
  SparseModel model(kOpt);
  const auto backend = model.Open({.copy_bits = 5});
  const auto refusal = [&](const DeciderView& copy) { return std::string(backend->BindCopy(kMlp, copy, nullptr).message()); };
  const DeciderCopy copy = model.CopyOfDecider(5);
  DeciderView view = copy.view();
  view.rows = 159;
  EXPECT_THAT(refusal(view), HasSubstr("layer 0 has 159 rows of 96 columns, need 160 of 96"));
  view = copy.view();
  view.directions = 7;
  EXPECT_THAT(refusal(view), HasSubstr("no memory for a copy of its decider with 7 directions"));
  EXPECT_THAT(std::string(backend->BindCopy(kNext, copy.view(), nullptr).message()), HasSubstr("has no sparse form"));
  Begin(*backend, DType::kBF16, 1, 3);
  const std::vector<int32_t> unproven(backend->DecideNeurons(kMlp)->begin(), backend->DecideNeurons(kMlp)->end());
  ASSERT_FALSE(unproven.empty());
  SparseModel::Bundle bundle = model.BundleOf(unproven[0]);
  const NeuronInMemory without{.neuron = unproven[0], .down = reinterpret_cast<const std::byte*>(bundle.down.data())};
  EXPECT_THAT(std::string(backend->ComputeNeurons(kMlp, {&without, 1}).message()), HasSubstr("came without its weights"));
}

TEST(NeuronsOfAllTest, PredictorsThatDoNotFitAreRefused) {
  SparseModel model(kOpt);
  const auto backend = model.Open({.predictor_rank = 8});
  const SparseModel::Predictor predictor = model.PredictorOf(8);
  const auto refusal = [&](const PredictorView& view, BlockId block = kMlp) {
    return std::string(backend->BindPredictor(block, view, nullptr).message());
  };
  PredictorView view = predictor.view(0);
  view.neurons = 159;
  EXPECT_THAT(refusal(view), HasSubstr("layer 0 has 159 neurons, 96 columns and rank 8, need 160 neurons and 96 columns"));
  view = predictor.view(0), view.cols = 95;
  EXPECT_THAT(refusal(view), HasSubstr("95 columns"));
  view = predictor.view(0), view.rank = 0;
  EXPECT_THAT(refusal(view), HasSubstr("rank 0"));
  view = predictor.view(0), view.rank = 9;
  EXPECT_THAT(refusal(view), HasSubstr("no memory for a predictor of rank 9"));
  EXPECT_THAT(refusal(predictor.view(0), kNext), HasSubstr("has no sparse form"));
  EXPECT_THAT(std::string(model.Open({.copy_bits = 5})->BindPredictor(kMlp, predictor.view(0), nullptr).message()),
              HasSubstr("no memory for a predictor"));
  SparseModel silu({"silu", "silu", "bfloat16"});
  const auto without = cpu::OpenCpuBackend(silu.spec(), SparseModel::OptionsOf({.predictor_rank = 8})).value();
  EXPECT_FALSE(without->BindPredictor(kMlp, silu.PredictorOf(8).view(0), nullptr).ok());
}

TEST(NeuronsOfAllTest, TheWholeBlockMayBeComputedInstead) {
  SparseModel model(kLlama);
  const auto backend = model.Open({.whole = true});
  Begin(*backend, DType::kBF16, 2, 3);
  const std::vector<int32_t> active(backend->DecideNeurons(kMlp)->begin(), backend->DecideNeurons(kMlp)->end());
  ASSERT_TRUE(ComputeSome(*backend, model, std::span(active).first(10)).ok());
  ASSERT_TRUE(backend->Compute(kMlp).ok());
  EXPECT_EQ(Bits(*backend), WholeBits(model, "portable", 2, 3));
}

TEST(NeuronsOfAllTest, CallsOutOfOrderFailAndChangeNothing) {
  SparseModel model(kLlama);
  const auto backend = model.Open({});
  Begin(*backend, DType::kBF16, 1, 3);
  EXPECT_THAT(std::string(backend->ComputeNeurons(kMlp, {}).message()), HasSubstr("they are not decided"));
  const std::vector<int32_t> active(backend->DecideNeurons(kMlp)->begin(), backend->DecideNeurons(kMlp)->end());
  EXPECT_THAT(std::string(ComputeSome(*backend, model, std::vector<int32_t>{active[1]}).message()),
              HasSubstr("neuron " + std::to_string(active[1]) + " of layer 0 came, but neuron " + std::to_string(active[0]) + " is next"));
  std::vector<int32_t> more = active;
  more.push_back(159);
  EXPECT_THAT(std::string(ComputeSome(*backend, model, more).message()), HasSubstr("but it lacks " + std::to_string(active.size())));
  EXPECT_THAT(std::string(backend->ComputeNeurons(kMlp, std::vector<NeuronInMemory>{{.neuron = active[0]}}).message()),
              HasSubstr("came without its weights"));
  ASSERT_TRUE(ComputeSome(*backend, model, std::span(active).first(4)).ok());
  EXPECT_THAT(std::string(backend->Compute(kNext).message()),
              HasSubstr("layer 0 lacks " + std::to_string(active.size() - 4) + " active neurons"));
  ComputeAll(*backend, model, std::span(active).subspan(4), 1000);
  EXPECT_EQ(Bits(*backend), WholeBits(model, "portable", 1, 3));
}

TEST(NeuronsOfAllTest, WhatHasNoSparseFormIsRefused) {
  const auto refusal = [](const NamedModel& named, int64_t rows, const SparseModel::Opening& opening) {
    SparseModel model(named);
    const auto backend = model.Open(opening);
    Begin(*backend, model.spec().working_dtype, rows, 3);
    const absl::Status status = backend->DecideNeurons(kMlp).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({"silu", "silu", "bfloat16"}, 1, {}), HasSubstr("the MLP of layer 0: it has no ReLU"));
  EXPECT_THAT(refusal(kOpt, kMostRows + 1, {}), HasSubstr("a batch of 9 rows, but sparse MLPs have memory for 8"));
  EXPECT_THAT(refusal(kOpt, 1, {.sparse_rows = 0}), HasSubstr("memory for 0"));
  SparseModel model(kOpt);
  const auto backend = model.Open({});
  EXPECT_THAT(std::string(backend->DecideNeurons(kNext).status().message()), HasSubstr("has no sparse form"));
}

TEST(NeuronsOfAllTest, NothingIsAllocated) {
  for (const NamedModel& named : {kOpt, kLlama}) {
    SparseModel model(named);
    const auto backend = model.Open({.threads = 2});
    Begin(*backend, DType::kBF16, 2, 3);
    const std::vector<int32_t> active(backend->DecideNeurons(kMlp)->begin(), backend->DecideNeurons(kMlp)->end());
    std::vector<SparseModel::Bundle> bundles;
    std::vector<NeuronInMemory> neurons;
    for (const int32_t id : active) {
      bundles.push_back(model.BundleOf(id));
      neurons.push_back(
          {.neuron = id, .up = bundles.back().up.data(), .down = reinterpret_cast<const std::byte*>(bundles.back().down.data())});
    }
    const int64_t before = g_allocations;
    EXPECT_TRUE(backend->DecideNeurons(kMlp).ok() && backend->ComputeNeurons(kMlp, std::span(neurons).first(9)).ok() &&
                backend->ComputeNeurons(kMlp, std::span(neurons).subspan(9)).ok());
    EXPECT_EQ(g_allocations - before, 0);
    const auto proving = model.Open({.threads = 2, .copy_bits = 6});
    Begin(*proving, DType::kBF16, 2, 3);
    const int64_t before_proofs = g_allocations;
    EXPECT_TRUE(proving->DecideNeurons(kMlp).ok());
    EXPECT_EQ(g_allocations - before_proofs, 0);
    EXPECT_EQ(proving->ActivationBytes(), cpu::CpuActivationBytes(model.spec(), SparseModel::OptionsOf({.threads = 2, .copy_bits = 6})));
    const auto predicting = model.Open({.threads = 2, .predictor_rank = 8});
    Begin(*predicting, DType::kBF16, 2, 3);
    const int64_t before_predictions = g_allocations;
    EXPECT_TRUE(predicting->DecideNeurons(kMlp).ok());
    EXPECT_EQ(g_allocations - before_predictions, 0);
    EXPECT_EQ(predicting->ActivationBytes(),
              cpu::CpuActivationBytes(model.spec(), SparseModel::OptionsOf({.threads = 2, .predictor_rank = 8})));
    const SparseModel::Opening opening{.threads = 2};
    EXPECT_EQ(backend->ActivationBytes(), cpu::CpuActivationBytes(model.spec(), SparseModel::OptionsOf(opening)));
    EXPECT_GT(backend->ActivationBytes(), cpu::CpuActivationBytes(model.spec(), SparseModel::OptionsOf({.threads = 2, .sparse_rows = 0})));
  }
}

}  // namespace
}  // namespace lime
