// The implementations behind the registered operators, one namespace for each dispatch key, with the schemas' signatures.
//
// lime::ops::cpu is kernels/cpu behind checks of shapes and dtypes. lime::ops::aten serves every other device and the tests, as an oracle.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace lime::ops {

// Layers of one linear call: four tensors for each in `parameters` (weight, bias, scales, biases; undefined where the layer has none), and
// three numbers in `packing` (bits, group_size; 0 and 0 for a dense weight; the layer's first row that the weight holds).
inline constexpr int64_t kParametersPerLayer = 4;
inline constexpr int64_t kPackingPerLayer = 3;

#define LIME_DECLARE_OPERATORS                                                                                                     \
  void LinearManyOut(const at::Tensor& x, at::TensorList parameters, at::IntArrayRef packing, at::TensorList outs);                \
  void LinearAdd(at::Tensor& y, const at::Tensor& x, at::TensorList parameters, at::IntArrayRef packing);                          \
  void RmsNormOut(const at::Tensor& x, const at::Tensor& weight, double eps, at::Tensor& out);                                     \
  void LayerNormOut(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps, at::Tensor& out);           \
  void HeadRmsNorm(at::Tensor& qk, const at::Tensor& weight, double eps);                                                          \
  void Rope(at::Tensor& qk, const at::Tensor& positions, const at::Tensor& cos, const at::Tensor& sin);                            \
  void KvAppend(const at::Tensor& k, const at::Tensor& v, const at::Tensor& slots, const at::Tensor& positions, at::Tensor& pages, \
                const at::Tensor& page_table, int64_t kv_heads);                                                                   \
  void AttendOut(const at::Tensor& q, const at::Tensor& slots, const at::Tensor& positions, const at::Tensor& pages,               \
                 const at::Tensor& page_table, int64_t kv_heads, int64_t head_dim, int64_t window, at::Tensor& out);               \
  void GatedActivationOut(const at::Tensor& gate, const at::Tensor& up, int64_t activation, at::Tensor& out);                      \
  void ActivationOut(const at::Tensor& x, int64_t activation, at::Tensor& out);                                                    \
  void EmbedOut(const at::Tensor& tokens, at::TensorList parameters, at::IntArrayRef packing, const at::Tensor& positions,         \
                const at::Tensor& position_table, int64_t position_offset, at::Tensor& out);                                       \
  void GatherRowsOut(const at::Tensor& x, const at::Tensor& rows, at::Tensor& out);                                                \
  void TopKOut(const at::Tensor& logits, at::Tensor& values, at::Tensor& ids);

namespace cpu {
LIME_DECLARE_OPERATORS
void AttendPiecesOut(const at::Tensor& q, const at::Tensor& slots, const at::Tensor& positions, const at::Tensor& pages,
                     const at::Tensor& page_table, const c10::optional<at::Tensor>& places, const c10::optional<at::Tensor>& taken,
                     int64_t kv_heads, int64_t head_dim, int64_t window, int64_t begin, int64_t end, at::Tensor& out);
void AttendForOut(const at::Tensor& q, const at::Tensor& positions, const at::Tensor& places, const at::Tensor& pages, int64_t kv_heads,
                  int64_t head_dim, int64_t window, at::Tensor& records);
void TakeRecords(const at::Tensor& records, const at::Tensor& slots, const at::Tensor& positions, const at::Tensor& taken, int64_t head_dim,
                 int64_t window);
}  // namespace cpu
namespace aten {
LIME_DECLARE_OPERATORS
}

}  // namespace lime::ops
