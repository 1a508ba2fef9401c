#include "kernels/cpu/linear/linear.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/linear/linear_bf16.h"
#include "kernels/cpu/linear/linear_columns.h"
#include "kernels/cpu/linear/linear_columns_kernels.h"
#include "kernels/cpu/linear/linear_kernels.h"
#include "planner/base/check.h"

namespace lime::cpu {
namespace {

// Both use ThreadScratch::lanes.
static_assert(kPreparedRows * kMaxGemvTokens <= kMaxPanelRows * kMaxTileTokens);
// Tokens that the GEMM packs at a time. With more tokens, converting weights to fp32 costs less per
// token. With few enough, x stays in a shared cache, and so do the accumulators if rows have
// several blocks.
constexpr int64_t kOneBlockTokens = 516, kManyBlockTokens = 258;
static_assert(kOneBlockTokens % kMaxTileTokens == 0 && kManyBlockTokens % kMaxTileTokens == 0);
// Bytes of weights of one GEMV slice.
constexpr int64_t kMaxSliceBytes = 128 << 10, kMinSliceBytes = 8 << 10;
constexpr int64_t kSlicesPerThread = 8;

int64_t Ceil(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
// Whether the chunks of one row fit into one block.
bool OneBlock(int64_t chunks) {
  return chunks <= kPanelChunks;
}
int64_t GemmTokens(int64_t chunks) {
  return OneBlock(chunks) ? kOneBlockTokens : kManyBlockTokens;
}

// Rounds up, so that the data behind it begins on a cache line.
int64_t Lines(int64_t floats) {
  return Ceil(floats, 16) * 16;
}

// The kernels that multiply weights of bf16, and packed ones that are exact in it, by x of bf16; null: the
// portable ones.
struct Bf16Choice {
  const Bf16Kernels* dense = nullptr;
  const Bf16Kernels* packed = nullptr;
};

// Lane order of weights for `tokens` tokens of x. A single token's x is small enough in fp32.
LaneOrder LaneOrderOf(const Matrix& m, DType x_dtype, int64_t tokens, const Bf16Choice& bf16) {
  if (m.dtype == DType::kBF16) {
    const bool words = x_dtype == DType::kBF16 && tokens > 1 && tokens <= kMaxGemvTokens;
    return bf16.dense != nullptr ? LaneOrder::kPairs : words ? LaneOrder::kWords : LaneOrder::kEvenOdd;
  }
  const bool exact = m.dtype == DType::kU32 ? m.scale_dtype == DType::kBF16 : m.IsPacked();
  if (bf16.packed != nullptr && exact) return m.bits <= 4 ? LaneOrder::kPiecesOf8 : LaneOrder::kPiecesOf4;
  return m.IsPacked() && m.bits == 4 ? LaneOrder::kEvenOdd : LaneOrder::kNatural;
}

LinearKernels KernelsOf(LaneOrder order, const Bf16Choice& bf16) {
  if (order == LaneOrder::kPairs) return bf16.dense->linear;
  if (order == LaneOrder::kPiecesOf4 || order == LaneOrder::kPiecesOf8) return bf16.packed->packed;
  return {.chunk_elements = kChunk,
          .chunk_floats = kChunk,
          .tile_tokens = static_cast<int>(TileTokens()),
          .gemv_rows = 1,
          .gemm_rows = 4,
          .pack_rows = PackRows,
          .dot_rows = order == LaneOrder::kWords ? DotWords : DotRows,
          .pack_tile = PackTile,
          .multiply_panel = MultiplyPanel};
}

// Rows of one task of one call.
struct Slice {
  size_t call;
  const LinearTask* task;
  RowRange rows;
};

// The rows of all tasks with one lane order, cut into slices; each slice belongs to one task.
class Slices {
 public:
  Slices(std::span<const LinearCall> calls, LaneOrder order, DType x_dtype, const Bf16Choice& bf16)
      : calls_(calls), order_(order), x_dtype_(x_dtype), bf16_(bf16) {
    for (const LinearCall& call : calls) {
      for (const LinearTask& task : call.tasks) {
        if (!Has(call, task)) continue;
        total_rows_ += task.weight->rows;
        total_bytes_ += task.weight->TotalBytes();
      }
    }
  }
  std::span<const LinearCall> calls() const { return calls_; }
  LaneOrder order() const { return order_; }
  int64_t total_rows() const { return total_rows_; }
  int64_t total_bytes() const { return total_bytes_; }

  bool UsesX(const LinearCall& call) const {
    return std::ranges::any_of(call.tasks, [&](const LinearTask& task) { return Has(call, task); });
  }

  void Cut(int64_t rows_per_slice) {
    rows_ = rows_per_slice;
    count_ = 0;
    for (const LinearCall& call : calls_)
      for (const LinearTask& task : call.tasks) count_ += CountOf(call, task);
  }
  int64_t count() const { return count_; }

  Slice Find(int64_t slice) const {
    for (size_t call = 0;; ++call) {
      LIME_CHECK_LT(call, calls_.size());
      for (const LinearTask& task : calls_[call].tasks) {
        const int64_t count = CountOf(calls_[call], task);
        if (slice < count) return {call, &task, {task.weight, slice * rows_, std::min(rows_, task.weight->rows - slice * rows_)}};
        slice -= count;
      }
    }
  }

 private:
  bool Has(const LinearCall& call, const LinearTask& task) const {
    return LaneOrderOf(*task.weight, x_dtype_, call.tokens, bf16_) == order_;
  }
  int64_t CountOf(const LinearCall& call, const LinearTask& task) const { return Has(call, task) ? Ceil(task.weight->rows, rows_) : 0; }

  std::span<const LinearCall> calls_;
  LaneOrder order_;
  DType x_dtype_;
  Bf16Choice bf16_;
  int64_t total_rows_ = 0;
  int64_t total_bytes_ = 0;
  int64_t rows_ = 1;
  int64_t count_ = 0;
};

}  // namespace

struct LinearWorkspace::Impl {
  int64_t max_tokens = 0;
  int64_t max_cols = 0;
  Bytes bytes = 0;
  Bf16Choice bf16;  // for x of bf16
  float* memory = nullptr;
  float* packed = nullptr;
  int64_t packed_floats = 0;
  std::vector<ThreadScratch> scratch;
};

namespace {

constexpr int64_t kHugePage = 2 << 20;

// How the scratch memory is divided, counted in floats.
struct ScratchSizes {
  int64_t packed = 0;                      // x, for all threads
  int64_t panel = 0, lanes = 0, rows = 0;  // of one thread, besides kMaxOutputs
  int64_t per_thread() const { return panel + lanes + kMaxOutputs + rows; }
};

// Sized for the portable kernels. Those of bf16 need about half of it.
ScratchSizes SizesFor(int64_t max_tokens, int64_t max_cols) {
  const bool gemm = max_tokens > kMaxGemvTokens;
  const int64_t chunks = Ceil(max_cols, kChunk), padded = chunks * kChunk;
  const int64_t lane_tokens =
      OneBlock(chunks) ? kMaxTileTokens : std::min(Ceil(max_tokens, kMaxTileTokens) * kMaxTileTokens, kManyBlockTokens);
  // A call with fewer columns and more tokens at a time needs at most the memory of one block.
  const int64_t full_batch = std::max(kOneBlockTokens * std::min(padded, kPanelChunks * kChunk), GemmTokens(chunks) * padded);
  return {.packed = std::min(Ceil(max_tokens, kMaxTileTokens) * kMaxTileTokens * padded, full_batch),
          .panel = gemm ? kMaxPanelRows * kPanelChunks * kChunk : 0,
          .lanes = (gemm ? kMaxPanelRows * lane_tokens : kPreparedRows * kMaxGemvTokens) * kChunk,
          .rows = Lines(kPreparedRows * 2 * chunks)};
}

int64_t AlignmentOf(Bytes bytes) {
  return bytes >= kHugePage ? kHugePage : 64;
}

}  // namespace

Bytes LinearWorkspace::BytesFor(int num_threads, int64_t max_tokens, int64_t max_cols) {
  const ScratchSizes sizes = SizesFor(max_tokens, max_cols);
  const Bytes bytes = (sizes.packed + num_threads * sizes.per_thread()) * static_cast<Bytes>(sizeof(float));
  return RoundUp(bytes, AlignmentOf(bytes));
}

Bytes LinearWorkspace::bytes() const {
  return impl_->bytes;
}

LinearWorkspace::LinearWorkspace(int num_threads, int64_t max_tokens, int64_t max_cols, Numerics numerics) : impl_(new Impl) {
  const auto [packed, panel, lanes, rows] = SizesFor(max_tokens, max_cols);
  const int64_t per_thread = panel + lanes + kMaxOutputs + rows;
  const Bytes bytes = BytesFor(num_threads, max_tokens, max_cols);
  const int64_t alignment = AlignmentOf(bytes);
  impl_->max_tokens = max_tokens;
  impl_->max_cols = max_cols;
  impl_->bytes = bytes;
  impl_->bf16 = {.dense = ChooseBf16(numerics), .packed = ChoosePackedBf16(numerics)};
  impl_->memory = static_cast<float*>(std::aligned_alloc(alignment, bytes));
  LIME_CHECK(impl_->memory != nullptr) << "scratch memory of linear layers, " << bytes << " bytes";
#if defined(__linux__)
  if (alignment == kHugePage) madvise(impl_->memory, bytes, MADV_HUGEPAGE);
#endif
  std::fill_n(impl_->memory, bytes / sizeof(float), 0.0f);
  impl_->packed = impl_->memory;
  impl_->packed_floats = packed;
  for (int thread = 0; thread < num_threads; ++thread) {
    float* p = impl_->memory + packed + thread * per_thread;
    impl_->scratch.push_back({.panel = p, .lanes = p + panel, .y = p + panel + lanes, .rows = p + panel + lanes + kMaxOutputs});
  }
}

LinearWorkspace::~LinearWorkspace() {
  std::free(impl_->memory);
  delete impl_;
}

int64_t Matrix::TotalBytes() const {
  if (!IsPacked()) return rows * RowBytes();
  const int64_t scale_bytes = ElementBytes(scale_dtype);
  if (dtype == DType::kF8E4M3) return rows * RowBytes() + (rows - 1 + scale_rows) / scale_rows * scale_cols * scale_bytes;
  return rows * RowBytes() + (dtype == DType::kU32 ? 2 : 1) * rows * Groups() * scale_bytes;
}

namespace {

void CheckPacked(const Matrix& w) {
  if (w.dtype == DType::kU8) {
    LIME_CHECK(w.bits == 4 && w.group_size == 32 && w.scale_dtype == DType::kU8) << w.bits << " bits in groups of " << w.group_size;
    LIME_CHECK_EQ(w.cols % w.group_size, 0);
    return;
  }
  LIME_CHECK(IsWorkingDType(w.scale_dtype));
  if (w.dtype == DType::kF8E4M3) {
    LIME_CHECK(w.bits == 8 && w.group_size == 128 && w.cols % kChunk == 0) << w.cols << " columns of fp8";
    LIME_CHECK(w.scale_cols == 1 || w.scale_cols == w.Groups()) << w.scale_cols << " scales";
    return;
  }
  LIME_CHECK(w.dtype == DType::kU32) << "weights of dtype " << DTypeName(w.dtype);
  LIME_CHECK(w.bits == 3 || w.bits == 4 || w.bits == 6 || w.bits == 8) << w.bits << " bits";
  LIME_CHECK(w.group_size == 32 || w.group_size == 64 || w.group_size == 128) << "groups of " << w.group_size;
  LIME_CHECK_EQ(w.cols % w.group_size, 0);
}

void CheckTasks(const Activations& x, const LinearWorkspace::Impl& ws, int num_threads, std::span<const LinearTask> tasks) {
  LIME_CHECK_LE(x.tokens, ws.max_tokens);
  LIME_CHECK_LE(x.cols, ws.max_cols);
  LIME_CHECK_LE(num_threads, static_cast<int>(ws.scratch.size()));
  LIME_CHECK(IsWorkingDType(x.dtype));
  for (const LinearTask& task : tasks) {
    const Matrix& w = *task.weight;
    LIME_CHECK_EQ(w.cols, x.cols);
    LIME_CHECK_GE(task.out_stride, w.rows);
    LIME_CHECK((task.out != nullptr) != (task.add_to != nullptr));
    if (w.IsPacked()) CheckPacked(w);
  }
}

// Calls of few tokens in one parallel region, at most.
constexpr size_t kCallsAtOnce = 64;

Activations ActivationsOf(const LinearCall& call, DType dtype, LaneOrder order) {
  return {
      .data = call.x, .dtype = dtype, .tokens = call.tokens, .stride = call.x_stride, .cols = call.tasks[0].weight->cols, .order = order};
}

// Floats of packed x for GEMV.
int64_t PackedFloats(const LinearKernels& kernels, const Activations& x) {
  return Lines(x.tokens * Ceil(x.cols, kernels.chunk_elements) * kernels.chunk_floats);
}

bool SameX(const Activations& a, const Activations& b) {
  return a.data == b.data && a.tokens == b.tokens && a.stride == b.stride && a.cols == b.cols;
}

// Packs x of every call. Returns where each begins.
std::array<const float*, kCallsAtOnce> PackCalls(LinearWorkspace::Impl& ws, const LinearKernels& kernels, DType x_dtype,
                                                 const Slices& slices) {
  std::array<const float*, kCallsAtOnce> packed{};
  float* next = ws.packed;
  Activations last;
  last.data = nullptr;
  for (size_t i = 0; i < slices.calls().size(); ++i) {
    if (!slices.UsesX(slices.calls()[i])) continue;
    const Activations x = ActivationsOf(slices.calls()[i], x_dtype, slices.order());
    if (last.data == nullptr || !SameX(x, last)) {
      packed[i] = next;
      kernels.pack_rows(x, next);
      next += PackedFloats(kernels, x);
    } else {
      packed[i] = next - PackedFloats(kernels, x);
    }
    last = x;
  }
  return packed;
}

// Calls of few tokens: slices are rows in the order of memory.
void Gemv(ThreadPool& pool, LinearWorkspace::Impl& ws, const LinearKernels& kernels, DType x_dtype, Slices& slices) {
  const std::array<const float*, kCallsAtOnce> packed = PackCalls(ws, kernels, x_dtype, slices);
  const int64_t most_tokens = std::ranges::max(slices.calls(), {}, &LinearCall::tokens).tokens;
  const int64_t slice_bytes = std::clamp(slices.total_bytes() / (pool.num_threads() * kSlicesPerThread), kMinSliceBytes, kMaxSliceBytes);
  const int64_t multiple = kernels.gemv_rows, rows = slice_bytes * slices.total_rows() / slices.total_bytes() / multiple * multiple;
  slices.Cut(std::clamp<int64_t>(rows, multiple, kMaxOutputs / most_tokens));
  pool.ParallelFor(slices.count(), [&](int64_t i, int thread) {
    const ThreadScratch& scratch = ws.scratch[thread];
    const Slice slice = slices.Find(i);
    const int64_t tokens = slices.calls()[slice.call].tokens;
    kernels.dot_rows(slice.rows, packed[slice.call], tokens, scratch);
    for (int64_t t = 0; t < tokens; ++t)
      FinishRows(*slice.task, x_dtype, t, slice.rows.begin, slice.rows.count, scratch.y + t * slice.rows.count);
  });
}

// Tokens of one call, at most GemmTokens(chunks): slices are panels of rows. first_token: the index
// of x's first token in the tasks' outputs.
void Gemm(ThreadPool& pool, LinearWorkspace::Impl& ws, const LinearKernels& kernels, const Activations& x, int64_t first_token,
          Slices& slices) {
  const int64_t tile_floats = kernels.tile_tokens * Ceil(x.cols, kernels.chunk_elements) * kernels.chunk_floats;
  pool.ParallelFor(Ceil(x.tokens, kernels.tile_tokens),
                   [&](int64_t tile, int) { kernels.pack_tile(x, tile, ws.packed + tile * tile_floats); });
  const int64_t multiple = kernels.gemm_rows;
  const int64_t even_share = Ceil(slices.total_rows(), pool.num_threads() * kSlicesPerThread * multiple) * multiple;
  slices.Cut(std::min<int64_t>(kMaxPanelRows, even_share));
  pool.ParallelFor(slices.count(), [&](int64_t i, int thread) {
    const Slice slice = slices.Find(i);
    const auto finish = [&](const TileResult& result) {
      for (int64_t t = 0; t < result.count; ++t) {
        FinishRows(*slice.task, x.dtype, first_token + result.token + t, slice.rows.begin, slice.rows.count, result.y + t * result.stride);
      }
    };
    kernels.multiply_panel(
        slice.rows, ws.packed, x.tokens, ws.scratch[thread],
        [](void* context, const TileResult& result) { (*static_cast<decltype(finish)*>(context))(result); },
        const_cast<void*>(static_cast<const void*>(&finish)));
  });
}

// All tokens of one call that has more than a GEMV takes.
void GemmCall(ThreadPool& pool, LinearWorkspace::Impl& ws, const LinearKernels& kernels, DType x_dtype, Slices& slices) {
  const Activations all = ActivationsOf(slices.calls()[0], x_dtype, slices.order());
  const int64_t batches = Ceil(all.tokens, GemmTokens(Ceil(all.cols, kernels.chunk_elements)));
  const int64_t tile_tokens = std::max(kMaxTileTokens, kernels.tile_tokens);
  const int64_t batch = Ceil(Ceil(all.tokens, batches), tile_tokens) * tile_tokens;
  for (int64_t first = 0; first < all.tokens; first += batch) {
    Activations part = all;
    part.data = static_cast<const char*>(all.data) + first * all.stride * ElementBytes(x_dtype);
    part.tokens = std::min(batch, all.tokens - first);
    Gemm(pool, ws, kernels, part, first, slices);
  }
}

// How many of the next calls share a region: those of few tokens whose x fit the scratch memory
// together, or a call of many tokens alone.
size_t CallsOfRegion(const LinearWorkspace::Impl& ws, const LinearKernels& kernels, DType x_dtype, std::span<const LinearCall> calls) {
  int64_t floats = 0;
  for (size_t n = 0; n < std::min(calls.size(), kCallsAtOnce); ++n) {
    if (calls[n].tokens > kMaxGemvTokens) return std::max<size_t>(1, n);
    floats += PackedFloats(kernels, ActivationsOf(calls[n], x_dtype, LaneOrder::kNatural));
    if (n > 0 && floats > ws.packed_floats) return n;
  }
  return std::min(calls.size(), kCallsAtOnce);
}

}  // namespace

void Linear(ThreadPool& pool, LinearWorkspace& ws, DType x_dtype, std::span<const LinearCall> calls) {
  for (const LinearCall& call : calls)
    CheckTasks(ActivationsOf(call, x_dtype, LaneOrder::kNatural), ws.impl(), pool.num_threads(), call.tasks);
  const Bf16Choice bf16 = x_dtype == DType::kBF16 ? ws.impl().bf16 : Bf16Choice();
  for (const LaneOrder order : kLaneOrders) {
    if (Slices(calls, order, x_dtype, bf16).total_rows() == 0) continue;
    const LinearKernels kernels = KernelsOf(order, bf16);
    for (std::span<const LinearCall> rest = calls; !rest.empty();) {
      const size_t count = CallsOfRegion(ws.impl(), kernels, x_dtype, rest);
      Slices slices(rest.first(count), order, x_dtype, bf16);
      rest = rest.subspan(count);
      if (slices.total_rows() == 0) continue;
      slices.calls()[0].tokens <= kMaxGemvTokens ? Gemv(pool, ws.impl(), kernels, x_dtype, slices)
                                                 : GemmCall(pool, ws.impl(), kernels, x_dtype, slices);
    }
  }
}

void Linear(ThreadPool& pool, LinearWorkspace& ws, const void* x, DType x_dtype, int64_t tokens, int64_t x_stride,
            std::span<const LinearTask> tasks) {
  if (tokens == 0 || tasks.empty()) return;
  const LinearCall call{.x = x, .tokens = tokens, .x_stride = x_stride, .tasks = tasks};
  Linear(pool, ws, x_dtype, {&call, 1});
}

namespace {

// Copies rows that lie apart side by side, with their scales and biases. Returns them as a matrix.
Matrix GatherRows(const Matrix& matrix, std::span<const Strip> rows, std::byte* to) {
  Matrix out = matrix;
  out.rows = std::ssize(rows);
  const auto gather = [&](int64_t bytes, auto&& row_at) -> const void* {
    std::byte* const begin = to;
    for (const Strip& row : rows) {
      std::memcpy(to, row_at(row), static_cast<size_t>(bytes));
      to += bytes;
    }
    to = begin + RoundUp(to - begin, 4);
    return begin;
  };
  out.data = gather(matrix.RowBytes(), [](const Strip& row) { return row.data; });
  if (!matrix.IsPacked()) return out;
  const int64_t bytes = matrix.Groups() * ElementBytes(matrix.scale_dtype);
  out.scales = gather(bytes, [&](const Strip& row) { return static_cast<const std::byte*>(matrix.scales) + row.index * bytes; });
  out.biases = gather(bytes, [&](const Strip& row) { return static_cast<const std::byte*>(matrix.biases) + row.index * bytes; });
  return out;
}

float BiasAt(const void* bias, DType dtype, int64_t row) {
  float value = 0;
  WithWorkingType(dtype, [&](auto type) { value = ToFloat(static_cast<const decltype(type)*>(bias)[row]); });
  return value;
}

}  // namespace

void LinearRows(ThreadPool& pool, LinearWorkspace& workspace, StripWorkspace& strips, const void* x, DType x_dtype, int64_t tokens,
                const Matrix& matrix, const void* bias, std::span<const Strip> rows, float* out, int64_t out_stride) {
  LinearWorkspace::Impl& ws = workspace.impl();
  StripWorkspace::Impl& memory = strips.impl();
  LIME_CHECK(matrix.dtype == DType::kU32 || !matrix.IsPacked()) << DTypeName(matrix.dtype);
  LIME_CHECK_LE(matrix.cols, std::min(ws.max_cols, memory.options.max_row_cols));
  LIME_CHECK_LE(pool.num_threads(), memory.options.num_threads);
  const Bf16Choice bf16 = x_dtype == DType::kBF16 ? ws.bf16 : Bf16Choice();
  for (int64_t token = 0; token < tokens; token += kMaxGemvTokens) {
    const int64_t count = std::min<int64_t>(kMaxGemvTokens, tokens - token);
    const LaneOrder order = LaneOrderOf(matrix, x_dtype, count, bf16);
    const LinearKernels kernels = KernelsOf(order, bf16);
    const Activations of_x{.data = static_cast<const std::byte*>(x) + token * matrix.cols * ElementBytes(x_dtype),
                           .dtype = x_dtype,
                           .tokens = count,
                           .stride = matrix.cols,
                           .cols = matrix.cols,
                           .order = order};
    kernels.pack_rows(of_x, ws.packed);
    pool.ParallelFor(Ceil(std::ssize(rows), kPreparedRows), [&](int64_t set, int thread) {
      const int64_t first = set * kPreparedRows, n = std::min<int64_t>(kPreparedRows, std::ssize(rows) - first);
      const std::span<const Strip> some = rows.subspan(static_cast<size_t>(first), static_cast<size_t>(n));
      const ThreadScratch& scratch = ws.scratch[static_cast<size_t>(thread)];
      const Matrix gathered = GatherRows(matrix, some, memory.gather + thread * memory.gather_bytes);
      kernels.dot_rows({&gathered, 0, n}, ws.packed, count, scratch);
      for (int64_t t = 0; t < count; ++t) {
        for (int64_t i = 0; i < n; ++i) {
          const float sum = scratch.y[t * n + i] + 0.0f;
          out[(token + t) * out_stride + first + i] =
              bias == nullptr ? sum : sum + BiasAt(bias, x_dtype, some[static_cast<size_t>(i)].index);
        }
      }
    });
  }
}

const char* NumericsId(Numerics numerics, bool packed) {
  static const std::string ids[] = {HardwareBf16() == nullptr ? "" : Bf16NumericsId(*HardwareBf16()),
                                    HardwareBf16() == nullptr ? "" : Bf16NumericsId(*HardwareBf16(), true)};
  if (ChooseBf16(numerics) == nullptr) return "portable-f32-1";
  packed = packed && ChoosePackedBf16(numerics) != nullptr;
  if (numerics == Numerics::kEmulatedBf16) return packed ? "emulated-avx512bf16-packed-1" : "emulated-avx512bf16-1";
  return ids[packed ? 1 : 0].c_str();
}

const char* InstructionSet() {
  const std::string_view name = TargetName();
  if (name == "AVX3" || name == "AVX3_DL") return HardwareBf16() == nullptr ? "AVX-512" : "AVX-512 with BF16";
  if (name == "EMU128" || name == "SCALAR") return "no SIMD with fused multiply-add";
  return TargetName();
}

}  // namespace lime::cpu
