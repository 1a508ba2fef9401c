// The down projection of a sparse MLP from its active columns, against the whole matrix.
//
//   columns_bench [--threads=2] [--hidden=4096] [--ffn=16384] [--rounds=7] [--numerics=auto|portable|bf16-dot|emulated]
//
// Active columns are drawn at random for every call. The whole matrix and the columns lie in memory
// of their own and are larger than a cache. In every round, one call of each follows the other;
// figures are medians over the rounds, and a ratio is the median of the rounds' ratios.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "bench/linear_inputs.h"
#include "daemon/profile/limits.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/linear_columns.h"
#include "planner/base/float_bits.h"
#include "planner/base/median.h"

namespace lime::bench {
namespace {

struct Options {
  int threads = 2;
  int64_t hidden = 4096, ffn = 16384;
  int rounds = 7;
  cpu::Numerics numerics = cpu::Numerics::kAuto;
};

constexpr int64_t kMostTokens = 8;

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        pool_(options.threads),
        ws_(options.threads, kMostTokens, std::max(options.hidden, options.ffn), options.numerics),
        strips_({.num_threads = options.threads,
                 .max_tokens = kMostTokens,
                 .max_row_cols = options.hidden,
                 .max_rows = options.hidden,
                 .max_columns = options.ffn,
                 .numerics = options.numerics}),
        whole_(options.hidden * options.ffn * 2),
        columns_(options.hidden * options.ffn * 2),
        y_(static_cast<size_t>(kMostTokens * options.hidden)) {
    FillWithWeights(whole_);
    FillWithWeights(columns_);
    matrix_ = {.rows = options.hidden, .cols = options.ffn, .dtype = DType::kBF16, .data = whole_.data()};
    task_ = {.weight = &matrix_, .out = y_.data(), .out_stride = options.hidden};
  }

  void Compare(double share, int64_t tokens) {
    std::vector<double> dense, sparse, ratios;
    size_t active = 0;
    for (int round = -1; round < options_.rounds; ++round) {
      Draw(share, tokens);
      active = strips_of_call_.size();
      const double of_dense = Seconds([&] { cpu::Linear(pool_, ws_, x_.data(), DType::kBF16, tokens, options_.ffn, {&task_, 1}); });
      const double of_sparse = Seconds([&] {
        cpu::BeginColumns(strips_, matrix_, DType::kBF16, tokens);
        cpu::AddColumns(pool_, strips_, strips_of_call_, active_x_.data(), options_.ffn, -1);
        cpu::FinishColumns(pool_, strips_, task_);
      });
      if (round < 0) continue;
      dense.push_back(1e3 * of_dense), sparse.push_back(1e3 * of_sparse), ratios.push_back(of_dense / of_sparse);
    }
    const double bytes = static_cast<double>(active) * static_cast<double>(options_.hidden) * 2;
    std::printf("M=%lld, %4.0f %% of each row %6zu columns %8.2f ms %8.2f ms %7.2f GB/s %6.1f x\n", static_cast<long long>(tokens),
                100 * share, active, Median(dense), Median(sparse), bytes / Median(sparse) * 1e-6, Median(ratios));
    std::fflush(stdout);
  }

 private:
  // x of the whole matrix, and the active columns with theirs.
  void Draw(double share, int64_t tokens) {
    std::bernoulli_distribution is_active(share);
    x_.assign(static_cast<size_t>(tokens * options_.ffn), 0);
    for (uint16_t& x : x_) x = is_active(random_) ? 0x3c12 : 0;
    active_x_.assign(x_.size(), 0);
    strips_of_call_.clear();
    for (int64_t k = 0; k < options_.ffn; ++k) {
      bool any = false;
      for (int64_t t = 0; t < tokens; ++t) any = any || x_[static_cast<size_t>(t * options_.ffn + k)] != 0;
      if (!any) continue;
      for (int64_t t = 0; t < tokens; ++t)
        active_x_[static_cast<size_t>(t * options_.ffn) + strips_of_call_.size()] = x_[static_cast<size_t>(t * options_.ffn + k)];
      strips_of_call_.push_back({.index = static_cast<int32_t>(k), .data = columns_.data() + k * options_.hidden * 2});
    }
  }

  Options options_;
  cpu::ThreadPool pool_;
  cpu::LinearWorkspace ws_;
  cpu::StripWorkspace strips_;
  HugeMemory whole_, columns_;
  std::vector<uint16_t> x_, active_x_;
  std::vector<float> y_;
  std::vector<cpu::Strip> strips_of_call_;
  cpu::Matrix matrix_;
  cpu::LinearTask task_;
  std::mt19937 random_{7};
};

int Main(int argc, char** argv) {
  Options options;
  const auto set = [&](std::string_view flag, const std::string& value) {
    if (flag == "--threads") {
      options.threads = std::atoi(value.c_str());
    } else if (flag == "--hidden") {
      options.hidden = std::atoll(value.c_str());
    } else if (flag == "--ffn") {
      options.ffn = std::atoll(value.c_str());
    } else if (flag == "--rounds") {
      options.rounds = std::atoi(value.c_str());
    } else if (flag == "--numerics") {
      options.numerics = NumericsOf(value);
    } else {
      return false;
    }
    return true;
  };
  if (!ReadFlags(argc, argv,
                 "columns_bench [--threads=2] [--hidden=4096] [--ffn=16384] [--rounds=7] [--numerics=auto|portable|bf16-dot|emulated]",
                 set))
    return 2;
  Bench bench(options);
  std::printf("%s, %s, %d threads, [%lld, %lld] of bf16\n", cpu::InstructionSet(), cpu::NumericsId(options.numerics), options.threads,
              static_cast<long long>(options.hidden), static_cast<long long>(options.ffn));
  std::printf("%45s %11s %11s %12s %8s\n", "", "whole", "active", "", "ratio");
  for (const int64_t tokens : {1, 4}) {
    for (const double share : {0.03, 0.1, 0.3}) bench.Compare(share, tokens);
  }
  return 0;
}

}  // namespace
}  // namespace lime::bench

int main(int argc, char** argv) {
  return lime::bench::Main(argc, argv);
}
