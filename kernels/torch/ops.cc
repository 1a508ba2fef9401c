#include "kernels/torch/ops.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <array>

#include "kernels/cpu/rope.h"
#include "kernels/torch/compute_context.h"
#include "kernels/torch/ops_impl.h"

namespace lime::ops {

// ---- Registration

#define LIME_REGISTER(m, ns)                               \
  m.impl("linear_many_out", &ns::LinearManyOut);           \
  m.impl("linear_add_", &ns::LinearAdd);                   \
  m.impl("rms_norm_out", &ns::RmsNormOut);                 \
  m.impl("layer_norm_out", &ns::LayerNormOut);             \
  m.impl("head_rms_norm_", &ns::HeadRmsNorm);              \
  m.impl("rope_", &ns::Rope);                              \
  m.impl("kv_append", &ns::KvAppend);                      \
  m.impl("attend_out", &ns::AttendOut);                    \
  m.impl("gated_activation_out", &ns::GatedActivationOut); \
  m.impl("activation_out", &ns::ActivationOut);            \
  m.impl("embed_out", &ns::EmbedOut);                      \
  m.impl("gather_rows_out", &ns::GatherRowsOut);           \
  m.impl("top_k_out", &ns::TopKOut)

TORCH_LIBRARY(lime, m) {
  m.def("linear_many_out(Tensor x, Tensor[] parameters, int[] packing, Tensor(a!)[] outs) -> ()");
  m.def("linear_add_(Tensor(a!) y, Tensor x, Tensor[] parameters, int[] packing) -> ()");
  m.def("rms_norm_out(Tensor x, Tensor weight, float eps, Tensor(a!) out) -> ()");
  m.def("layer_norm_out(Tensor x, Tensor weight, Tensor bias, float eps, Tensor(a!) out) -> ()");
  m.def("head_rms_norm_(Tensor(a!) qk, Tensor weight, float eps) -> ()");
  m.def("rope_(Tensor(a!) qk, Tensor positions, Tensor cos, Tensor sin) -> ()");
  m.def("kv_append(Tensor k, Tensor v, Tensor slots, Tensor positions, Tensor(a!) pages, Tensor page_table, int kv_heads) -> ()");
  m.def(
      "attend_out(Tensor q, Tensor slots, Tensor positions, Tensor pages, Tensor page_table, int kv_heads, int head_dim, int window, "
      "Tensor(a!) out) -> ()");
  m.def(
      "attend_pieces_out(Tensor q, Tensor slots, Tensor positions, Tensor pages, Tensor page_table, Tensor? places, Tensor? taken, "
      "int kv_heads, int head_dim, int window, int begin, int end, Tensor(a!) out) -> ()");
  m.def(
      "attend_for_out(Tensor q, Tensor positions, Tensor places, Tensor pages, int kv_heads, int head_dim, int window, "
      "Tensor(a!) records) -> ()");
  m.def("take_records(Tensor records, Tensor slots, Tensor positions, Tensor taken, int head_dim, int window) -> ()");
  m.def("gated_activation_out(Tensor gate, Tensor up, int activation, Tensor(a!) out) -> ()");
  m.def("activation_out(Tensor x, int activation, Tensor(a!) out) -> ()");
  m.def(
      "embed_out(Tensor tokens, Tensor[] parameters, int[] packing, Tensor positions, Tensor position_table, int position_offset, "
      "Tensor(a!) out) -> ()");
  m.def("gather_rows_out(Tensor x, Tensor rows, Tensor(a!) out) -> ()");
  m.def("top_k_out(Tensor logits, Tensor(a!) values, Tensor(b!) ids) -> ()");
}

TORCH_LIBRARY_IMPL(lime, CPU, m) {
  LIME_REGISTER(m, cpu);
  // No other device has memory that the CPU's pointers mean anything to.
  m.impl("attend_pieces_out", &cpu::AttendPiecesOut);
  m.impl("attend_for_out", &cpu::AttendForOut);
  m.impl("take_records", &cpu::TakeRecords);
}

// Serves every device that has no implementation of its own.
TORCH_LIBRARY_IMPL(lime, CompositeExplicitAutograd, m) {
  LIME_REGISTER(m, aten);
}

namespace {

// The operator `name` with the signature of `implementation`, looked up once.
template <typename... Args>
c10::TypedOperatorHandle<void(Args...)> Find(const char* name, void (* /*implementation*/)(Args...)) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<void(Args...)>();
}

// The tensors of up to three layers, held on the stack.
class LayerList {
 public:
  void Add(const LinearWeight& w) {
    TORCH_CHECK(layers_ < kMaxLayers, "at most ", kMaxLayers, " linear layers share a call");
    at::Tensor* slot = &tensors_[layers_ * kParametersPerLayer];
    slot[0] = w.weight, slot[1] = w.bias, slot[2] = w.scales, slot[3] = w.biases;
    packing_[layers_ * kPackingPerLayer] = w.bits;
    packing_[layers_ * kPackingPerLayer + 1] = w.group_size;
    packing_[layers_ * kPackingPerLayer + 2] = w.row_begin;
    ++layers_;
  }
  at::TensorList tensors() const { return {tensors_.data(), layers_ * kParametersPerLayer}; }
  at::IntArrayRef packing() const { return {packing_.data(), layers_ * kPackingPerLayer}; }

 private:
  static constexpr size_t kMaxLayers = 3;
  size_t layers_ = 0;
  std::array<at::Tensor, kMaxLayers * kParametersPerLayer> tensors_;
  std::array<int64_t, kMaxLayers * kPackingPerLayer> packing_;
};

thread_local ComputeContext* current_context = nullptr;

}  // namespace

// ---- Context

ComputeContext::ComputeContext(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
ComputeContext::~ComputeContext() = default;
Bytes ComputeContext::bytes() const {
  return impl_->linear.bytes() + impl_->attention.bytes() + (impl_->for_others ? impl_->for_others->bytes() : 0);
}

Bytes ComputeContext::BytesFor(const Options& options) {
  return lime::cpu::LinearWorkspace::BytesFor(options.num_threads, options.max_rows, options.max_cols) +
         lime::cpu::AttentionWorkspace::BytesFor(Impl::AttentionOptions(options, options.carries)) +
         (options.attends_for_others ? lime::cpu::AttentionWorkspace::BytesFor(Impl::AttentionOptions(options, true)) : 0);
}

ContextScope::ContextScope(ComputeContext& context) : previous_(current_context) {
  current_context = &context;
}
ContextScope::~ContextScope() {
  current_context = previous_;
}

ComputeContext::Impl& CurrentContext() {
  TORCH_CHECK(current_context != nullptr, "a CPU operator was called outside a ContextScope");
  return current_context->impl();
}

RopeTables::RopeTables(const RopeConfig& rope, int64_t head_dim, int64_t positions) : head_dim(head_dim) {
  const lime::cpu::RopeTable table(rope, head_dim, positions);
  const auto copy = [&](const float* data) {
    return at::from_blob(const_cast<float*>(data), {positions, head_dim / 2}, at::kFloat).clone();
  };
  cos = copy(table.cos());
  sin = copy(table.sin());
}

Bytes RopeTables::BytesFor(const RopeConfig& rope, int64_t head_dim, int64_t positions) {
  return rope.type == RopeType::kNone ? 0 : 2 * positions * (head_dim / 2) * static_cast<Bytes>(sizeof(float));
}

Bytes RopeTables::bytes() const {
  return static_cast<Bytes>(cos.nbytes() + sin.nbytes());
}

// ---- Calls

void LinearOut(const at::Tensor& x, const LinearWeight& w, at::Tensor& out) {
  LinearManyOut(x, {&w}, {&out});
}

void LinearManyOut(const at::Tensor& x, std::initializer_list<const LinearWeight*> weights, std::initializer_list<at::Tensor*> outs) {
  static const auto op = Find("lime::linear_many_out", &cpu::LinearManyOut);
  LayerList layers;
  for (const LinearWeight* w : weights) layers.Add(*w);
  std::array<at::Tensor, 3> out_list;
  TORCH_CHECK(outs.size() == weights.size() && outs.size() <= out_list.size(), weights.size(), " layers, ", outs.size(), " outputs");
  size_t count = 0;
  for (const at::Tensor* out : outs) out_list[count++] = *out;
  op.call(x, layers.tensors(), layers.packing(), at::TensorList(out_list.data(), count));
}

void LinearAddTo(const at::Tensor& x, const LinearWeight& w, at::Tensor& y) {
  static const auto op = Find("lime::linear_add_", &cpu::LinearAdd);
  LayerList layers;
  layers.Add(w);
  op.call(y, x, layers.tensors(), layers.packing());
}

void RmsNormOut(const at::Tensor& x, const at::Tensor& weight, double eps, at::Tensor& out) {
  static const auto op = Find("lime::rms_norm_out", &cpu::RmsNormOut);
  op.call(x, weight, eps, out);
}

void LayerNormOut(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps, at::Tensor& out) {
  static const auto op = Find("lime::layer_norm_out", &cpu::LayerNormOut);
  op.call(x, weight, bias, eps, out);
}

void HeadRmsNormInPlace(at::Tensor& qk, const at::Tensor& weight, double eps) {
  static const auto op = Find("lime::head_rms_norm_", &cpu::HeadRmsNorm);
  op.call(qk, weight, eps);
}

void RopeInPlace(at::Tensor& qk, const at::Tensor& positions, const RopeTables& rope) {
  static const auto op = Find("lime::rope_", &cpu::Rope);
  op.call(qk, positions, rope.cos, rope.sin);
}

void KvAppend(const at::Tensor& k, const at::Tensor& v, const at::Tensor& slots, const at::Tensor& positions, const KvLayer& kv) {
  static const auto op = Find("lime::kv_append", &cpu::KvAppend);
  op.call(k, v, slots, positions, const_cast<at::Tensor&>(kv.pages), kv.page_table, kv.kv_heads);
}

void AttendOut(const at::Tensor& q, const at::Tensor& slots, const at::Tensor& positions, const KvLayer& kv, int64_t window,
               at::Tensor& out) {
  static const auto op = Find("lime::attend_out", &cpu::AttendOut);
  op.call(q, slots, positions, kv.pages, kv.page_table, kv.kv_heads, kv.head_dim, window, out);
}

void AttendPiecesOut(const at::Tensor& q, const at::Tensor& slots, const at::Tensor& positions, const KvLayer& kv, const KvPieces& pieces,
                     int64_t window, at::Tensor& out) {
  static const auto op = Find("lime::attend_pieces_out", &cpu::AttendPiecesOut);
  op.call(q, slots, positions, kv.pages, kv.page_table, pieces.places, pieces.taken, kv.kv_heads, kv.head_dim, window, pieces.begin,
          pieces.end, out);
}

void AttendForOut(const at::Tensor& q, const at::Tensor& positions, const at::Tensor& places, const KvLayer& kv, int64_t window,
                  at::Tensor& records) {
  static const auto op = Find("lime::attend_for_out", &cpu::AttendForOut);
  op.call(q, positions, places, kv.pages, kv.kv_heads, kv.head_dim, window, records);
}

void TakeRecords(const at::Tensor& records, const at::Tensor& slots, const at::Tensor& positions, const at::Tensor& taken, int64_t head_dim,
                 int64_t window) {
  static const auto op = Find("lime::take_records", &cpu::TakeRecords);
  op.call(records, slots, positions, taken, head_dim, window);
}

void GatedActivationOut(const at::Tensor& gate, const at::Tensor& up, Activation activation, at::Tensor& out) {
  static const auto op = Find("lime::gated_activation_out", &cpu::GatedActivationOut);
  op.call(gate, up, static_cast<int64_t>(activation), out);
}

void ActivationOut(const at::Tensor& x, Activation activation, at::Tensor& out) {
  static const auto op = Find("lime::activation_out", &cpu::ActivationOut);
  op.call(x, static_cast<int64_t>(activation), out);
}

void EmbedOut(const at::Tensor& tokens, const LinearWeight& table, const at::Tensor& positions, const at::Tensor& position_table,
              int64_t position_offset, at::Tensor& out) {
  static const auto op = Find("lime::embed_out", &cpu::EmbedOut);
  LayerList layers;
  layers.Add(table);
  op.call(tokens, layers.tensors(), layers.packing(), positions, position_table, position_offset, out);
}

void GatherRowsOut(const at::Tensor& x, const at::Tensor& rows, at::Tensor& out) {
  static const auto op = Find("lime::gather_rows_out", &cpu::GatherRowsOut);
  op.call(x, rows, out);
}

void TopKOut(const at::Tensor& logits, at::Tensor& values, at::Tensor& ids) {
  static const auto op = Find("lime::top_k_out", &cpu::TopKOut);
  op.call(logits, values, ids);
}

}  // namespace lime::ops
