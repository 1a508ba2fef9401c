// Attention and linear attention against the limits of this machine: decode against its read
// bandwidth, prefill against its fp32 peak.
//
//   attention_bench [--threads=2] [--rounds=7] [--only=TEXT]
//
// Each figure is a median over rounds; in every round the limit is measured just before the figure,
// and the ratio is the median of the rounds' ratios.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/profile/limits.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/delta_rule.h"
#include "planner/base/median.h"

namespace lime::bench {
namespace {

struct Options {
  int threads = 2;
  int rounds = 7;
  std::string only;
};

struct Case {
  const char* name;
  DType dtype;
  int64_t heads, kv_heads, head_dim;
  int64_t context;  // positions before the last row, that row included
  int64_t rows;     // 1: decode; more: the last rows of the context as one chunk
};

// Layers of one sequence's cache, enough of them that none is still in the last-level cache when it
// is read again.
class Layers {
 public:
  explicit Layers(const Case& c)
      : case_(c),
        page_bytes_(cpu::KvPageBytes(c.dtype, c.kv_heads, c.head_dim)),
        pages_((c.context + cpu::kPagePositions - 1) / cpu::kPagePositions),
        count_(std::max<int64_t>(1, kBytes / (pages_ * page_bytes_))),
        memory_(count_ * pages_ * page_bytes_),
        table_(count_ * pages_) {
    auto* words = reinterpret_cast<uint16_t*>(memory_.data());
    for (int64_t i = 0; i < memory_.bytes() / 2; ++i) words[i] = static_cast<uint16_t>(0x3a00 + i % 509);  // small numbers in either half
    std::iota(table_.begin(), table_.end(), 0);
  }

  int64_t count() const { return count_; }
  cpu::KvView View(int64_t layer) {
    return {.base = reinterpret_cast<std::byte*>(memory_.data()),
            .page_bytes = page_bytes_,
            .dtype = case_.dtype,
            .kv_heads = case_.kv_heads,
            .head_dim = case_.head_dim,
            .page_table = table_.data() + layer * pages_,
            .table_stride = pages_};
  }
  const HugeMemory& memory() const { return memory_; }

 private:
  static constexpr int64_t kBytes = int64_t{256} << 20;
  Case case_;
  int64_t page_bytes_, pages_, count_;
  HugeMemory memory_;
  std::vector<int32_t> table_;
};

void Measure(const Options& options, const Case& c) {
  cpu::ThreadPool pool(options.threads);
  Layers layers(c);
  cpu::AttentionWorkspace ws({.max_rows = c.rows, .heads = c.heads, .head_dim = c.head_dim, .max_positions = c.context});
  std::vector<int32_t> slots(c.rows, 0), positions(c.rows);
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(c.context - c.rows));
  const int64_t width = c.heads * c.head_dim;
  std::vector<float> q(c.rows * width), out(c.rows * width);  // out: room for any dtype
  std::mt19937 generator(1);
  for (float& x : q) x = std::normal_distribution<float>()(generator);
  const cpu::AttentionRows rows{slots.data(), positions.data(), c.rows};
  const cpu::AttentionShape shape{
      .heads = c.heads, .q_stride = width, .out_stride = width, .scale = 1 / std::sqrt(static_cast<float>(c.head_dim))};
  const int64_t repeats = c.rows == 1 ? layers.count() : 1;
  int64_t seen = 0;
  for (int32_t p : positions) seen += p + 1;
  const double operations = 4.0 * static_cast<double>(seen * width * repeats);
  const double bytes = static_cast<double>(2 * c.context * c.kv_heads * c.head_dim * ElementBytes(c.dtype) * repeats);
  std::vector<double> seconds, ratios;
  for (int round = 0; round < options.rounds; ++round) {
    const int64_t all = layers.memory().bytes();
    const double limit = c.rows == 1 ? bytes / static_cast<double>(all) * ReadSeconds(pool, layers.memory().data(), all)
                                     : operations / MultiplyAddRate(pool);
    const auto start = std::chrono::steady_clock::now();
    for (int64_t layer = 0; layer < repeats; ++layer) cpu::Attend(pool, ws, layers.View(layer), rows, q.data(), shape, out.data());
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    ratios.push_back(limit / seconds.back());
  }
  const double s = Median(seconds);
  std::printf("%-34s %9.1f us/layer %7.1f GB/s %7.1f GFLOP/s %6.2f of %s\n", c.name, s / static_cast<double>(repeats) * 1e6,
              bytes / s / 1e9, operations / s / 1e9, Median(ratios), c.rows == 1 ? "read bandwidth" : "fp32 peak");
}

struct DeltaCase {
  const char* name;
  LinearAttentionConfig config;
  int64_t rows;  // of one sequence
};

// Convolution, delta rule and output of rows of one sequence, without the linear layers. In decode,
// as many layers that no state is still in the last-level cache.
void Measure(const Options& options, const DeltaCase& c) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  const LinearAttentionConfig& config = c.config;
  cpu::ThreadPool pool(options.threads);
  const int64_t floats = cpu::DeltaHeadsFloats(config) + cpu::DeltaInputsFloats(config), state_bytes = floats * 4;
  const int64_t layers = c.rows == 1 ? std::max<int64_t>(1, kBytes / state_bytes) : 1;
  HugeMemory memory(layers * state_bytes);
  std::mt19937 generator(1);
  const auto random = [&](int64_t n) {
    std::vector<float> x(n);
    for (float& value : x) value = std::normal_distribution<float>()(generator);
    return x;
  };
  const std::vector<float> filters = random(config.conv_cols() * config.conv_width), gates = random(config.value_heads),
                           weight = random(config.value_dim), inputs = random(c.rows * config.conv_cols()),
                           z = random(c.rows * config.value_cols()), rates = random(c.rows * config.value_heads);
  std::vector<float> x = inputs, decay = rates, beta = rates, out(z.size());
  const double bytes = 2.0 * static_cast<double>(layers * state_bytes);  // read and written
  const double operations = 7.0 * static_cast<double>(c.rows * layers * cpu::DeltaHeadsFloats(config));
  std::vector<double> seconds, ratios;
  for (int round = 0; round < options.rounds; ++round) {
    const double limit = c.rows == 1 ? 2 * ReadSeconds(pool, memory.data(), memory.bytes()) : operations / MultiplyAddRate(pool);
    double spent = 0;
    for (int64_t layer = 0; layer < layers; ++layer) {
      x = inputs, decay = rates, beta = rates;
      float* const state = reinterpret_cast<float*>(memory.data()) + layer * floats;
      const cpu::SequenceRows run{
          .begin = 0, .end = c.rows, .first = round == 0, .heads = state, .inputs = state + cpu::DeltaHeadsFloats(config)};
      const auto start = std::chrono::steady_clock::now();
      cpu::ConvolveAndNormalise(pool, config, {&run, 1}, {.data = filters.data()}, x.data());
      cpu::DeltaGates(pool, c.rows, config.value_heads, {.data = gates.data()}, {.data = gates.data()}, decay.data(), beta.data());
      cpu::DeltaRule(pool, config, {&run, 1}, decay.data(), beta.data(), x.data());
      cpu::GatedDeltaOutput(pool, config, c.rows, x.data(), z.data(), {.data = weight.data()}, 1e-6f, out.data(), DType::kF32);
      spent += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    seconds.push_back(spent);
    ratios.push_back(limit / spent);
  }
  const double s = Median(seconds);
  std::printf("%-34s %9.1f us/layer %7.1f GB/s %7.1f GFLOP/s %6.2f of %s\n", c.name, s / static_cast<double>(layers) * 1e6, bytes / s / 1e9,
              operations / s / 1e9, Median(ratios), c.rows == 1 ? "read bandwidth" : "fp32 peak");
}

}  // namespace
}  // namespace lime::bench

int main(int argc, char** argv) {
  using lime::DType;
  lime::bench::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg.starts_with("--threads=")) options.threads = std::atoi(argv[i] + 10);
    if (arg.starts_with("--rounds=")) options.rounds = std::atoi(argv[i] + 9);
    if (arg.starts_with("--only=")) options.only = arg.substr(7);
  }
  const lime::bench::Case cases[] = {
      {"decode bf16 32/8x64 4k", DType::kBF16, 32, 8, 64, 4096, 1},
      {"decode bf16 32/8x64 32k", DType::kBF16, 32, 8, 64, 32768, 1},
      {"decode bf16 32/8x128 4k", DType::kBF16, 32, 8, 128, 4096, 1},
      {"decode bf16 28/4x128 4k", DType::kBF16, 28, 4, 128, 4096, 1},
      {"decode bf16 32/32x128 4k", DType::kBF16, 32, 32, 128, 4096, 1},
      {"decode f16 32/8x64 4k", DType::kF16, 32, 8, 64, 4096, 1},
      {"decode f32 32/8x64 4k", DType::kF32, 32, 8, 64, 4096, 1},
      {"prefill bf16 32/8x64 512 of 512", DType::kBF16, 32, 8, 64, 512, 512},
      {"prefill bf16 32/8x64 512 of 4k", DType::kBF16, 32, 8, 64, 4096, 512},
      {"prefill bf16 32/32x128 512 of 4k", DType::kBF16, 32, 32, 128, 4096, 512},
  };
  for (const lime::bench::Case& c : cases) {
    if (std::string_view(c.name).find(options.only) != std::string_view::npos) lime::bench::Measure(options, c);
  }
  // Qwen3.5-9B and 27B.
  const lime::LinearAttentionConfig small{.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .conv_width = 4};
  const lime::LinearAttentionConfig large{.key_heads = 16, .value_heads = 48, .key_dim = 128, .value_dim = 128, .conv_width = 4};
  const lime::bench::DeltaCase delta_cases[] = {
      {"decode delta rule 16/32x128", small, 1},
      {"decode delta rule 16/48x128", large, 1},
      {"prefill delta rule 16/32x128 512", small, 512},
  };
  for (const lime::bench::DeltaCase& c : delta_cases) {
    if (std::string_view(c.name).find(options.only) != std::string_view::npos) lime::bench::Measure(options, c);
  }
}
