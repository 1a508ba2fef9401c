#include "kernels/cpu/latent.h"

#include <algorithm>

#include "kernels/cpu/base/hwy_targets.h"
#include "planner/base/float_bits.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/latent.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "kernels/cpu/row_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {
namespace {

// out = W_k^T q of one head.   keys: [plain, rank].
template <typename W>
HWY_INLINE void AbsorbHead(const LatentAttentionConfig& sizes, const W* keys, const float* q, float* out) {
  for (int64_t i = 0; i < sizes.rank; i += kLanes) {
    F32x16 sum = Zero();
    for (int64_t n = 0; n < sizes.plain; ++n) sum = MulAdd(Set(q[n]), LoadGroup(keys + n * sizes.rank, i, sizes.rank), sum);
    StoreGroup(sum, out, i, sizes.rank);
  }
}

// Heads [begin, end) of all rows: the matrix of head h is at h * rows_of_head rows.
void AbsorbHeads(const LatentCall& call, const float* q, float* out, int64_t begin, int64_t end) {
  const LatentAttentionConfig& sizes = call.sizes;
  WithWorkingType(call.dtype, [&](auto type) HWY_ATTR {
    const auto* const up = static_cast<const decltype(type)*>(call.up);
    for (int64_t i = begin; i < end; ++i)
      AbsorbHead(sizes, up + i % call.heads * (sizes.plain + sizes.value_dim) * sizes.rank, q + i * (sizes.plain + sizes.rotated),
                 out + i * sizes.kv_cols() + sizes.rotated);
  });
}

// out = W_v x of one head.   values: [value_dim, rank].
template <typename W, typename T>
HWY_INLINE void ExpandHead(const LatentAttentionConfig& sizes, const W* values, const T* x, T* out) {
  for (int64_t n = 0; n < sizes.value_dim; ++n) {
    F32x16 sum = Zero();
    for (int64_t i = 0; i < sizes.rank; i += kLanes)
      sum = MulAdd(LoadGroup(values + n * sizes.rank, i, sizes.rank), LoadGroup(x, i, sizes.rank), sum);
    out[n] = FromFloat<T>(ReduceAdd(sum));
  }
}

void ExpandHeads(const LatentCall& call, const void* sums, DType dtype, void* out, int64_t begin, int64_t end) {
  const LatentAttentionConfig& sizes = call.sizes;
  WithWorkingType(call.dtype, [&](auto weight_type) HWY_ATTR {
    const auto* const up = static_cast<const decltype(weight_type)*>(call.up);
    WithWorkingType(dtype, [&](auto type) HWY_ATTR {
      using T = decltype(type);
      for (int64_t i = begin; i < end; ++i)
        ExpandHead(sizes, up + (i % call.heads * (sizes.plain + sizes.value_dim) + sizes.plain) * sizes.rank,
                   static_cast<const T*>(sums) + i * sizes.rank, static_cast<T*>(out) + i * sizes.value_dim);
    });
  });
}

}  // namespace
}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lime::cpu {

HWY_EXPORT(AbsorbHeads);
HWY_EXPORT(ExpandHeads);

namespace {

// a, b, a, b -> a, a, b, b.
void TakeNeighboursApart(const float* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n / 2; ++i) to[i] = from[2 * i], to[n / 2 + i] = from[2 * i + 1];
}

}  // namespace

void AbsorbKeys(ThreadPool& pool, const LatentCall& call, const float* q, float* out) {
  const LatentAttentionConfig& sizes = call.sizes;
  ParallelRows(pool, call.rows * call.heads, sizes.plain * sizes.rank, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      TakeNeighboursApart(q + i * (sizes.plain + sizes.rotated) + sizes.plain, sizes.rotated, out + i * sizes.kv_cols());
    HWY_DYNAMIC_DISPATCH(AbsorbHeads)(call, q, out, begin, end);
  });
}

void OrderLatents(ThreadPool& pool, const LatentAttentionConfig& sizes, int64_t rows, const float* kv, float* out) {
  ParallelRows(pool, rows, sizes.kv_cols(), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const from = kv + row * sizes.kv_cols();
      TakeNeighboursApart(from + sizes.rank, sizes.rotated, out + row * sizes.kv_cols());
      std::copy_n(from, sizes.rank, out + row * sizes.kv_cols() + sizes.rotated);
    }
  });
}

void ExpandValues(ThreadPool& pool, const LatentCall& call, const void* sums, DType dtype, void* out) {
  ParallelRows(pool, call.rows * call.heads, call.sizes.value_dim * call.sizes.rank, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(ExpandHeads)(call, sums, dtype, out, begin, end);
  });
}

}  // namespace lime::cpu
#endif  // HWY_ONCE
