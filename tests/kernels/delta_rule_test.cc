// Linear attention against fp64 token by token, and the same bits whatever shares the batch, the
// chunk, the threads or the CPU.
#include "kernels/cpu/delta_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "kernels/cpu/base/lanes-inl.h"
#include "tests/cases.h"
#include "tests/kernels/cpu_test_util.h"

namespace lime::cpu {
namespace {

constexpr int64_t kSlots = 3;

// Rows [begin, end) of the sequence in a slot.
struct Run {
  int32_t slot;
  int64_t begin, end;
};
using Steps = std::vector<std::vector<Run>>;
using Place = std::pair<int32_t, int64_t>;  // slot and position

// A layer with random parameters, and what its projections give for every position of every slot.
struct Layer {
  Layer(const LinearAttentionConfig& sizes, DType dtype, int64_t positions)
      : config(sizes),
        dtype(dtype),
        positions(positions),
        filters(RandomArray(dtype, sizes.conv_cols() * sizes.conv_width, 1, 0.6f)),
        decay_log(RandomArray(dtype, sizes.value_heads, 2, 1.0f)),
        decay_bias(RandomArray(dtype, sizes.value_heads, 3, 1.0f)),
        weight(RandomArray(dtype, sizes.value_dim, 4)),
        qkv(RandomFloats(kSlots * positions * sizes.conv_cols(), 5)),
        z(RandomFloats(kSlots * positions * sizes.value_cols(), 6)),
        a(RandomFloats(kSlots * positions * sizes.value_heads, 7)),
        b(RandomFloats(kSlots * positions * sizes.value_heads, 8, 2.0f)) {}

  int64_t Row(int32_t slot, int64_t position) const { return slot * positions + position; }
  int64_t StateFloats() const { return DeltaHeadsFloats(config) + DeltaInputsFloats(config); }
  static Values Of(const Array& array) { return {.data = array.ptr(), .dtype = array.dtype}; }

  LinearAttentionConfig config;
  DType dtype;
  int64_t positions;
  Array filters, decay_log, decay_bias, weight;
  std::vector<float> qkv, z, a, b;
};

// What the operators make of a row: o of all heads, and the output.
struct Result {
  std::vector<float> o;
  std::vector<std::byte> out;
};

// Computes a layer step by step. A state begins full of NaN.
class Machine {
 public:
  Machine(const Layer& layer, int threads)
      : layer_(layer), pool_(threads), states_(kSlots, std::vector<float>(layer.StateFloats(), std::numeric_limits<float>::quiet_NaN())) {}

  void Step(const std::vector<Run>& runs) {
    const LinearAttentionConfig& config = layer_.config;
    std::vector<float> x, z, decay, beta;
    std::vector<SequenceRows> rows;
    int64_t count = 0;
    for (const Run& run : runs) {
      const int64_t first = layer_.Row(run.slot, run.begin), n = run.end - run.begin;
      const auto take = [&](const std::vector<float>& from, int64_t width, std::vector<float>& into) {
        into.insert(into.end(), from.begin() + first * width, from.begin() + (first + n) * width);
      };
      take(layer_.qkv, config.conv_cols(), x);
      take(layer_.z, config.value_cols(), z);
      take(layer_.a, config.value_heads, decay);
      take(layer_.b, config.value_heads, beta);
      float* const state = states_[run.slot].data();
      rows.push_back(
          {.begin = count, .end = count + n, .first = run.begin == 0, .heads = state, .inputs = state + DeltaHeadsFloats(config)});
      count += n;
    }
    Array out(layer_.dtype, count * config.value_cols());
    ConvolveAndNormalise(pool_, config, rows, Layer::Of(layer_.filters), x.data());
    DeltaGates(pool_, count, config.value_heads, Layer::Of(layer_.decay_log), Layer::Of(layer_.decay_bias), decay.data(), beta.data());
    DeltaRule(pool_, config, rows, decay.data(), beta.data(), x.data());
    GatedDeltaOutput(pool_, config, count, x.data(), z.data(), Layer::Of(layer_.weight), 1e-6f, out.ptr(), layer_.dtype);
    for (size_t i = 0; i < runs.size(); ++i) {
      for (int64_t row = rows[i].begin; row < rows[i].end; ++row) {
        Result& result = results_[{runs[i].slot, runs[i].begin + row - rows[i].begin}];
        const auto o = x.begin() + row * config.conv_cols() + 2 * config.key_cols();
        result.o.assign(o, o + config.value_cols());
        const int64_t bytes = config.value_cols() * ElementBytes(layer_.dtype);
        result.out.assign(out.data.begin() + row * bytes, out.data.begin() + (row + 1) * bytes);
      }
    }
  }

  void StepAll(const Steps& steps) {
    for (const std::vector<Run>& runs : steps) Step(runs);
  }
  std::vector<float>& state(int32_t slot) { return states_[slot]; }
  const std::map<Place, Result>& results() const { return results_; }

  // The bits of one slot's results and of its state.
  std::vector<std::byte> BitsOf(int32_t slot) const {
    std::vector<std::byte> bits = Bits(states_[slot]);
    for (const auto& [place, result] : results_) {
      if (place.first != slot) continue;
      const std::vector<std::byte> o = Bits(result.o);
      bits.insert(bits.end(), o.begin(), o.end());
      bits.insert(bits.end(), result.out.begin(), result.out.end());
    }
    return bits;
  }

 private:
  const Layer& layer_;
  ThreadPool pool_;
  std::vector<std::vector<float>> states_;
  std::map<Place, Result> results_;
};

double Sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// q, k and v of one position in fp64: convolution, silu, unit vectors.
std::vector<double> Convolved(const Layer& layer, int32_t slot, int64_t position) {
  const LinearAttentionConfig& config = layer.config;
  std::vector<double> x(config.conv_cols());
  for (int64_t c = 0; c < config.conv_cols(); ++c) {
    for (int64_t j = 0; j < config.conv_width; ++j) {
      const int64_t at = position - (config.conv_width - 1) + j;
      if (at >= 0)
        x[c] += static_cast<double>(layer.filters[c * config.conv_width + j]) * layer.qkv[layer.Row(slot, at) * config.conv_cols() + c];
    }
    x[c] *= Sigmoid(x[c]);
  }
  for (int64_t head = 0; head < 2 * config.key_heads; ++head) {
    double* const of = x.data() + head * config.key_dim;
    double squares = 1e-6;
    for (int64_t d = 0; d < config.key_dim; ++d) squares += of[d] * of[d];
    const double scale = head < config.key_heads ? 1 / std::sqrt(static_cast<double>(config.key_dim)) : 1;
    for (int64_t d = 0; d < config.key_dim; ++d) of[d] *= scale / std::sqrt(squares);
  }
  return x;
}

// o of all positions [0, end) of a slot, [end][value_cols]: equation 10 with S as [key_dim,
// value_dim], written for one matrix after another.
std::vector<double> Oracle(const Layer& layer, int32_t slot, int64_t end) {
  const LinearAttentionConfig& config = layer.config;
  const int64_t dk = config.key_dim, dv = config.value_dim;
  std::vector<double> o(end * config.value_cols());
  std::vector<std::vector<double>> states(config.value_heads, std::vector<double>(dk * dv));
  for (int64_t position = 0; position < end; ++position) {
    const std::vector<double> x = Convolved(layer, slot, position);
    for (int64_t head = 0; head < config.value_heads; ++head) {
      const int64_t key_head = head * config.key_heads / config.value_heads, gate = layer.Row(slot, position) * config.value_heads + head;
      const double *q = x.data() + key_head * dk, *k = q + config.key_cols(), *v = x.data() + 2 * config.key_cols() + head * dv;
      const double time = std::log1p(std::exp(static_cast<double>(layer.a[gate]) + layer.decay_bias[head]));
      const double decay = std::exp(-std::exp(static_cast<double>(layer.decay_log[head])) * time), beta = Sigmoid(layer.b[gate]);
      std::vector<double>& s = states[head];
      for (double& element : s) element *= decay;
      for (int64_t c = 0; c < dv; ++c) {
        double p = 0, result = 0;
        for (int64_t d = 0; d < dk; ++d) p += s[d * dv + c] * k[d];
        for (int64_t d = 0; d < dk; ++d) s[d * dv + c] += k[d] * beta * (v[c] - p);
        for (int64_t d = 0; d < dk; ++d) result += s[d * dv + c] * q[d];
        o[(position * config.value_heads + head) * dv + c] = result;
      }
    }
  }
  return o;
}

// ---- The same in fp32, one operation after another in the stated order

float ScalarSilu(float x) {
  return x / (1.0f + HWY_NAMESPACE::ExpOne(-x));
}

float ScalarSoftplus(float x) {
  float lanes[16];
  HWY_NAMESPACE::Store(HWY_NAMESPACE::Softplus(HWY_NAMESPACE::Set(x)), lanes);
  return lanes[0];
}

float ScalarSumOfSquares(const float* x, int64_t n) {
  float lanes[32] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i % 32] = std::fma(x[i], x[i], lanes[i % 32]);
  for (int half = 16; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

class InStatedOrder {
 public:
  explicit InStatedOrder(const Layer& layer)
      : layer_(layer), states_(layer.config.value_heads, std::vector<float>(layer.config.key_dim * layer.config.value_dim)) {}

  // The next position of the slot.
  Result Row(int32_t slot, int64_t position) {
    const LinearAttentionConfig& config = layer_.config;
    const std::vector<float> x = Prepared(slot, position);
    Result result;
    Array out(layer_.dtype, config.value_cols());
    for (int64_t head = 0; head < config.value_heads; ++head) {
      const std::vector<float> o = Head(x, layer_.Row(slot, position) * config.value_heads + head, head);
      const float mean = ScalarSumOfSquares(o.data(), config.value_dim) / static_cast<float>(config.value_dim);
      const float scale = 1.0f / std::sqrt(mean + 1e-6f);
      for (int64_t c = 0; c < config.value_dim; ++c) {
        const int64_t at = head * config.value_dim + c;
        const float normed = o[c] * scale * layer_.weight[c];
        out.Set(at, normed * ScalarSilu(layer_.z[layer_.Row(slot, position) * config.value_cols() + at]));
      }
      result.o.insert(result.o.end(), o.begin(), o.end());
    }
    result.out = out.data;
    return result;
  }

 private:
  // q, k and v.
  std::vector<float> Prepared(int32_t slot, int64_t position) const {
    const LinearAttentionConfig& config = layer_.config;
    std::vector<float> x(config.conv_cols());
    for (int64_t c = 0; c < config.conv_cols(); ++c) {
      for (int64_t j = 0; j < config.conv_width; ++j) {
        const int64_t at = position - (config.conv_width - 1) + j;
        const float input = at < 0 ? 0.0f : layer_.qkv[layer_.Row(slot, at) * config.conv_cols() + c];
        x[c] = std::fma(layer_.filters[c * config.conv_width + j], input, x[c]);
      }
      x[c] = ScalarSilu(x[c]);
    }
    for (int64_t head = 0; head < 2 * config.key_heads; ++head) {
      float* const of = x.data() + head * config.key_dim;
      const float scale = head < config.key_heads ? 1.0f / std::sqrt(static_cast<float>(config.key_dim)) : 1.0f;
      const float factor = 1.0f / std::sqrt(ScalarSumOfSquares(of, config.key_dim) + 1e-6f) * scale;
      for (int64_t d = 0; d < config.key_dim; ++d) of[d] *= factor;
    }
    return x;
  }

  // o of one value head; `gate`: the index of its a and b.
  std::vector<float> Head(const std::vector<float>& x, int64_t gate, int64_t head) {
    const LinearAttentionConfig& config = layer_.config;
    const int64_t dk = config.key_dim, dv = config.value_dim, key_head = head / (config.value_heads / config.key_heads);
    const float *q = x.data() + key_head * dk, *k = q + config.key_cols(), *v = x.data() + 2 * config.key_cols() + head * dv;
    const float time = ScalarSoftplus(layer_.a[gate] + layer_.decay_bias[head]);
    const float decay = HWY_NAMESPACE::ExpOne(-(HWY_NAMESPACE::ExpOne(layer_.decay_log[head]) * time));
    const float beta = 1.0f / (1.0f + HWY_NAMESPACE::ExpOne(-layer_.b[gate]));
    std::vector<float>& s = states_[head];
    std::vector<float> o(dv);
    for (int64_t c = 0; c < dv; ++c) {
      float p = 0;
      for (int64_t d = 0; d < dk; ++d) p = std::fma(k[d], s[d * dv + c] *= decay, p);
      const float u = beta * (v[c] - p);
      for (int64_t d = 0; d < dk; ++d) {
        s[d * dv + c] = std::fma(k[d], u, s[d * dv + c]);
        o[c] = std::fma(q[d], s[d * dv + c], o[c]);
      }
    }
    return o;
  }

  const Layer& layer_;
  std::vector<std::vector<float>> states_;  // by value head [key_dim, value_dim]
};

// ----

// Three sequences, whole, one after another.
Steps Whole(int64_t positions) {
  return {{{0, 0, positions}}, {{1, 0, positions}}, {{2, 0, positions}}};
}

// The same rows in steps of many shapes: chunks of prompts beside single rows.
Steps Mixed(int64_t positions) {
  Steps steps;
  int64_t done[kSlots] = {};
  for (int64_t i = 0; done[0] < positions || done[1] < positions || done[2] < positions; ++i) {
    steps.emplace_back();
    for (int32_t slot = kSlots - 1; slot >= 0; --slot) {
      const int64_t rows = std::min(positions - done[slot], slot == i % kSlots ? 5 + i % 7 : (i + slot) % 3);
      if (rows > 0) steps.back().push_back({slot, done[slot], done[slot] + rows});
      done[slot] += rows;
    }
    if (steps.back().empty()) steps.pop_back();
  }
  return steps;
}

std::vector<LinearAttentionConfig> Sizes() {
  return {{.key_heads = 2, .value_heads = 4, .key_dim = 16, .value_dim = 16, .conv_width = 4},
          {.key_heads = 1, .value_heads = 3, .key_dim = 24, .value_dim = 40, .conv_width = 3},
          {.key_heads = 2, .value_heads = 2, .key_dim = 8, .value_dim = 20, .conv_width = 2},
          {.key_heads = 1, .value_heads = 2, .key_dim = 128, .value_dim = 128, .conv_width = 4},
          {.key_heads = 1, .value_heads = 1, .key_dim = 10, .value_dim = 6, .conv_width = 1},
          {.key_heads = 1, .value_heads = 2, .key_dim = 16, .value_dim = 48, .conv_width = 8}};
}

TEST(DeltaRuleTest, MatchesFp64TokenByToken) {
  constexpr int64_t kPositions = 70;
  for (const LinearAttentionConfig& config : Sizes()) {
    for (const DType dtype : kWorkingDTypes) {
      if (dtype != DType::kF32 && config.key_dim == 128 && !ManyCases()) continue;
      const Layer layer(config, dtype, kPositions);
      Machine machine(layer, 2);
      machine.StepAll(Whole(kPositions));
      for (const int32_t slot : {0, 2}) {
        const std::vector<double> expected = Oracle(layer, slot, kPositions);
        for (int64_t position = 0; position < kPositions; ++position) {
          const std::vector<float>& o = machine.results().at({slot, position}).o;
          for (int64_t i = 0; i < config.value_cols(); ++i)
            ASSERT_NEAR(o[i], expected[position * config.value_cols() + i], 2e-5) << "position " << position << " element " << i;
        }
      }
    }
  }
}

TEST(DeltaRuleTest, FollowsTheStatedOrderBitForBit) {
  constexpr int64_t kPositions = 30;
  for (const LinearAttentionConfig& config : Sizes()) {
    for (const DType dtype : kWorkingDTypes) {
      const Layer layer(config, dtype, kPositions);
      Machine machine(layer, 2);
      machine.Step({{1, 0, kPositions}});
      InStatedOrder expected(layer);
      for (int64_t position = 0; position < kPositions; ++position) {
        const Result row = expected.Row(1, position);
        const Result& got = machine.results().at({1, position});
        ASSERT_EQ(Bits(got.o), Bits(row.o)) << DTypeName(dtype) << " position " << position;
        ASSERT_EQ(got.out, row.out) << DTypeName(dtype) << " position " << position;
      }
    }
  }
}

TEST(DeltaRuleTest, OutputMatchesFp64) {
  constexpr int64_t kPositions = 5;
  for (const LinearAttentionConfig& config : Sizes()) {
    for (const DType dtype : kWorkingDTypes) {
      const Layer layer(config, dtype, kPositions);
      Machine machine(layer, 1);
      machine.StepAll(Whole(kPositions));
      for (const auto& [place, result] : machine.results()) {
        Array out(dtype, config.value_cols());
        out.data = result.out;
        for (int64_t head = 0; head < config.value_heads; ++head) {
          const float* const o = result.o.data() + head * config.value_dim;
          double squares = 0;
          for (int64_t i = 0; i < config.value_dim; ++i) squares += static_cast<double>(o[i]) * o[i];
          const double scale = 1 / std::sqrt(squares / static_cast<double>(config.value_dim) + 1e-6);
          for (int64_t i = 0; i < config.value_dim; ++i) {
            const double z = layer.z[layer.Row(place.first, place.second) * config.value_cols() + head * config.value_dim + i];
            const double expected = o[i] * scale * layer.weight[i] * z * Sigmoid(z);
            EXPECT_NEAR(out[head * config.value_dim + i], expected, Tolerance(dtype, expected)) << DTypeName(dtype);
          }
        }
      }
    }
  }
}

TEST(DeltaRuleTest, ChunksBatchesThreadsAndInstructionSetsChangeNoBit) {
  constexpr int64_t kPositions = 70;
  for (const LinearAttentionConfig& config : Sizes()) {
    const Layer layer(config, DType::kBF16, kPositions);
    std::vector<std::vector<std::byte>> expected;
    ForEachTarget([&](const std::string& target) {
      for (const int threads : {1, 2, 3, 4}) {
        for (const Steps& steps : {Whole(kPositions), Mixed(kPositions)}) {
          Machine machine(layer, threads);
          machine.StepAll(steps);
          for (int32_t slot = 0; slot < kSlots; ++slot) {
            if (std::ssize(expected) == slot) expected.push_back(machine.BitsOf(slot));
            EXPECT_EQ(machine.BitsOf(slot), expected[slot]) << target << ", " << threads << " threads, slot " << slot;
          }
        }
      }
    });
  }
}

TEST(DeltaRuleTest, RowByRowHasTheBitsOfOneChunk) {
  constexpr int64_t kPositions = 40;
  for (const LinearAttentionConfig& config : Sizes()) {
    const Layer layer(config, DType::kF32, kPositions);
    Machine whole(layer, 1), single(layer, 2);
    whole.Step({{1, 0, kPositions}});
    for (int64_t position = 0; position < kPositions; ++position) single.Step({{1, position, position + 1}});
    EXPECT_EQ(single.BitsOf(1), whole.BitsOf(1));
  }
}

TEST(DeltaRuleTest, ACopiedStateGoesOnWithTheSameBits) {
  constexpr int64_t kPositions = 40;
  for (const LinearAttentionConfig& config : Sizes()) {
    const Layer layer(config, DType::kF32, kPositions);
    Machine whole(layer, 1), before(layer, 1), after(layer, 3);
    whole.Step({{0, 0, kPositions}});
    before.Step({{0, 0, 17}});
    after.state(0) = before.state(0);
    after.Step({{0, 17, kPositions}});
    EXPECT_EQ(Bits(after.state(0)), Bits(whole.state(0)));
    for (int64_t position = 17; position < kPositions; ++position)
      EXPECT_EQ(Bits(after.results().at({0, position}).o), Bits(whole.results().at({0, position}).o)) << position;
  }
}

TEST(DeltaRuleTest, TheFirstPositionForgetsWhatTheSlotHeld) {
  const Layer layer(Sizes()[0], DType::kF32, 20);
  Machine used(layer, 1), fresh(layer, 1);
  used.Step({{0, 0, 20}});
  used.Step({{0, 0, 20}});
  fresh.Step({{0, 0, 20}});
  EXPECT_EQ(used.BitsOf(0), fresh.BitsOf(0));
}

TEST(DeltaRuleTest, NotANumberStaysInItsSequence) {
  Layer layer(Sizes()[0], DType::kF32, 20);
  Machine clean(layer, 2);
  clean.StepAll(Mixed(20));
  layer.qkv[layer.Row(1, 3) * layer.config.conv_cols() + 5] = std::numeric_limits<float>::quiet_NaN();
  Machine spoilt(layer, 2);
  spoilt.StepAll(Mixed(20));
  EXPECT_EQ(spoilt.BitsOf(0), clean.BitsOf(0));
  EXPECT_EQ(spoilt.BitsOf(2), clean.BitsOf(2));
  EXPECT_NE(spoilt.BitsOf(1), clean.BitsOf(1));
}

}  // namespace
}  // namespace lime::cpu
