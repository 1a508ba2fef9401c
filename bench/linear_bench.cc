// The linear layers against the limits of this machine: decode and batched decode against its read
// bandwidth, prefill against the peak of what multiplies it: fp32, or the bf16 dot product.
//
//   linear_bench [--threads=2] [--gib=1] [--rounds=7] [--only=TEXT] [--numerics=auto|portable|bf16-dot|emulated]
//
// Each figure is a median over rounds; in every round the limit is measured just before the figure,
// and the ratio is the median of the rounds' ratios.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/linear_inputs.h"
#include "daemon/profile/limits.h"
#include "kernels/cpu/linear/linear.h"
#include "planner/base/median.h"

namespace lime::bench {
namespace {

using cpu::Linear;
using cpu::LinearTask;
using cpu::LinearWorkspace;
using cpu::Matrix;
using cpu::ThreadPool;

struct Options {
  int threads = 2;
  double gib = 1;
  int rounds = 7;
  std::string only;
  cpu::Numerics numerics = cpu::Numerics::kAuto;
};

// One layer's geometry; the layers of a 1.2 B Llama are 2048 wide, 8192 in the MLP, with 512 for K
// and V.
struct Shape {
  int64_t rows;
  int64_t cols;
};

struct Format {
  const char* name;
  int bits;  // 0: bf16
  int group_size;
};

// Matrices of one format laid out one after another in `memory` until it is full.
std::vector<Matrix> Layers(const HugeMemory& memory, const Format& format, const std::vector<Shape>& shapes) {
  std::vector<Matrix> layers;
  char* p = memory.data();
  for (size_t i = 0;; ++i) {
    const Shape shape = shapes[i % shapes.size()];
    Matrix m{.rows = shape.rows,
             .cols = shape.cols,
             .dtype = format.bits == 0 ? DType::kBF16 : DType::kU32,
             .bits = format.bits,
             .group_size = format.group_size};
    if (p + m.TotalBytes() > memory.data() + memory.bytes()) return layers;
    m.data = p;
    if (format.bits != 0) {
      const int64_t group_bytes = m.rows * (m.cols / m.group_size) * 2;
      m.scales = p + m.rows * m.RowBytes();
      m.biases = p + m.rows * m.RowBytes() + group_bytes;
    }
    p += m.TotalBytes();
    layers.push_back(m);
  }
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        pool_(options.threads),
        ws_(options.threads, 512, 8192, options.numerics),
        memory_(static_cast<int64_t>(options.gib * (1 << 30))),
        x_(512 * 8192),
        y_(512 * 16384) {
    FillWithWeights(memory_);
    std::fill(x_.begin(), x_.end(), uint16_t{0x3c12});
  }

  void Decode(const Format& format, int64_t tokens) {
    const std::string name = std::string("decode ") + format.name + " M=" + std::to_string(tokens);
    const std::vector<Matrix> layers = Layers(memory_, format, {{2048, 2048}, {16384, 2048}, {2048, 8192}, {3072, 2048}});
    int64_t bytes = 0;
    for (const Matrix& layer : layers) bytes += layer.TotalBytes();
    Report(
        name, "GB/s", 1e-9, [&] { return bytes / ReadSeconds(pool_, memory_.data(), bytes); },
        [&] {
          return bytes / Seconds([&] {
                   for (const Matrix& layer : layers) Apply(layer, tokens);
                 });
        });
  }

  void Prefill(const Format& format, Shape shape, int64_t tokens) {
    const std::string name = std::string("prefill ") + format.name + " M=" + std::to_string(tokens) + " N=" + std::to_string(shape.rows) +
                             " K=" + std::to_string(shape.cols);
    const Matrix layer = Layers(memory_, format, {shape})[0];
    Report(
        name, "GFLOP/s", 1e-9, [&] { return Bf16Rate(pool_, options_.numerics, layer.IsPacked()); },
        [&] { return 2.0 * tokens * shape.rows * shape.cols / Seconds([&] { Apply(layer, tokens); }); });
  }

  void Region() {
    Report(
        "empty parallel regions", "1/s", 1, [] { return 1e6; },
        [&] {
          return 1000 / Seconds([&] {
                   for (int i = 0; i < 1000; ++i) pool_.ParallelFor(options_.threads, [](int64_t, int) {});
                 });
        });
  }

 private:
  void Apply(const Matrix& layer, int64_t tokens) {
    const LinearTask task{.weight = &layer, .out = y_.data(), .out_stride = layer.rows};
    Linear(pool_, ws_, x_.data(), DType::kBF16, tokens, layer.cols, {&task, 1});
  }

  void Report(const std::string& name, const char* unit, double scale, const std::function<double()>& limit,
              const std::function<double()>& figure) {
    if (name.find(options_.only) == std::string::npos) return;
    std::vector<double> limits, figures, ratios;
    figure();
    for (int round = 0; round < options_.rounds; ++round) {
      limits.push_back(limit());
      figures.push_back(figure());
      ratios.push_back(figures.back() / limits.back());
    }
    std::printf("%-42s %9.2f %9.2f %-8s %5.2f\n", name.c_str(), Median(figures) * scale, Median(limits) * scale, unit, Median(ratios));
    std::fflush(stdout);
  }

  Options options_;
  ThreadPool pool_;
  LinearWorkspace ws_;
  HugeMemory memory_;
  std::vector<uint16_t> x_;
  std::vector<float> y_;
};

int Main(int argc, char** argv) {
  Options options;
  const auto set = [&](std::string_view flag, const std::string& value) {
    if (flag == "--threads") {
      options.threads = std::atoi(value.c_str());
    } else if (flag == "--gib") {
      options.gib = std::atof(value.c_str());
    } else if (flag == "--rounds") {
      options.rounds = std::atoi(value.c_str());
    } else if (flag == "--only") {
      options.only = value;
    } else if (flag == "--numerics") {
      options.numerics = NumericsOf(value);
    } else {
      return false;
    }
    return true;
  };
  if (!ReadFlags(argc, argv, "linear_bench [--threads=2] [--gib=1] [--rounds=7] [--only=TEXT] [--numerics=auto|portable|bf16-dot|emulated]",
                 set))
    return 2;
  Bench bench(options);
  std::printf("%s, %s, %d threads, %.2g GiB of weights\n", cpu::InstructionSet(), cpu::NumericsId(options.numerics, true), options.threads,
              options.gib);
  std::printf("%-42s %9s %9s %-8s %5s\n", "", "figure", "limit", "", "ratio");
  const Format bf16{"bf16", 0, 0}, q8{"q8 g64", 8, 64}, q6{"q6 g64", 6, 64}, q4{"q4 g64", 4, 64}, q3{"q3 g64", 3, 64};
  const Format formats[] = {bf16, q8, q6, q4, {"q4 g32", 4, 32}, q3};
  for (const Format& format : formats) bench.Decode(format, 1);
  for (int64_t tokens : {2, 4, 8, 16}) bench.Decode(bf16, tokens);
  for (int64_t tokens : {2, 4, 8, 16}) bench.Decode(q8, tokens), bench.Decode(q4, tokens);
  for (const Format& format : {bf16, q8, q4}) {
    for (const Shape shape : {Shape{3072, 2048}, {2048, 2048}, {16384, 2048}, {2048, 8192}, {512, 2048}}) bench.Prefill(format, shape, 512);
  }
  for (const Format& format : {q6, q3, Format{"q4 g32", 4, 32}, Format{"q4 g128", 4, 128}}) bench.Prefill(format, {16384, 2048}, 512);
  for (int64_t tokens : {32, 64, 128}) bench.Prefill(bf16, {2048, 2048}, tokens), bench.Prefill(q4, {2048, 2048}, tokens);
  bench.Region();
  return 0;
}

}  // namespace
}  // namespace lime::bench

int main(int argc, char** argv) {
  return lime::bench::Main(argc, argv);
}
