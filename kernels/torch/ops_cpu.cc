// The CPU side of the operators: tensors are checked and handed to kernels/cpu as pointers and sizes.
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/embedding.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/topk.h"
#include "kernels/torch/compute_context.h"
#include "kernels/torch/ops_impl.h"

namespace lime::ops::cpu {
namespace {

using lime::cpu::Matrix;

DType WorkingType(const at::Tensor& t, const char* name) {
  switch (t.scalar_type()) {
    case at::kBFloat16:
      return DType::kBF16;
    case at::kHalf:
      return DType::kF16;
    case at::kFloat:
      return DType::kF32;
    default:
      TORCH_CHECK(false, name, " is ", t.scalar_type(), ", need bfloat16, float16 or float32");
  }
}

void CheckDense(const at::Tensor& t, const char* name) {
  TORCH_CHECK(t.defined() && t.is_contiguous() && t.device().is_cpu(), name, " must be a contiguous CPU tensor");
}

void CheckRows(const at::Tensor& t, const char* name, int64_t rows, int64_t cols, at::ScalarType type) {
  CheckDense(t, name);
  TORCH_CHECK(t.dim() == 2 && t.size(0) == rows && t.size(1) == cols, name, " is ", t.sizes(), ", need [", rows, ", ", cols, "]");
  TORCH_CHECK(t.scalar_type() == type, name, " is ", t.scalar_type(), ", need ", type);
}

void CheckVector(const at::Tensor& t, const char* name, int64_t size, at::ScalarType type) {
  CheckDense(t, name);
  TORCH_CHECK(t.dim() == 1 && t.size(0) == size, name, " is ", t.sizes(), ", need [", size, "]");
  TORCH_CHECK(t.scalar_type() == type, name, " is ", t.scalar_type(), ", need ", type);
}

// Every value of an index vector lies in [0, limit).
const int32_t* Indices(const at::Tensor& t, const char* name, int64_t size, int64_t limit) {
  CheckVector(t, name, size, at::kInt);
  const int32_t* values = t.data_ptr<int32_t>();
  for (int64_t i = 0; i < size; ++i)
    TORCH_CHECK(values[i] >= 0 && values[i] < limit, name, "[", i, "] = ", values[i], ", need 0 .. ", limit - 1);
  return values;
}

int64_t Width(const at::Tensor& x, const char* name) {
  CheckDense(x, name);
  TORCH_CHECK(x.dim() == 2, name, " is ", x.sizes(), ", need [rows, width]");
  return x.size(1);
}

// One layer of a parameter list as kernels/cpu sees it.
Matrix ToMatrix(at::TensorList p, at::IntArrayRef packing, int64_t cols, at::ScalarType working) {
  const at::Tensor& weight = p[0];
  CheckDense(weight, "weight");
  TORCH_CHECK(weight.dim() == 2, "weight is ", weight.sizes(), ", need [rows, cols]");
  Matrix m{.rows = weight.size(0), .cols = cols, .data = weight.data_ptr()};
  if (packing[0] == 0) {
    CheckRows(weight, "weight", m.rows, cols, working);
    m.dtype = WorkingType(weight, "weight");
    return m;
  }
  m.dtype = DType::kU32;
  m.bits = static_cast<int>(packing[0]);
  m.group_size = static_cast<int>(packing[1]);
  TORCH_CHECK(m.bits == 3 || m.bits == 4 || m.bits == 6 || m.bits == 8, "bits is ", m.bits, ", need 3, 4, 6 or 8");
  TORCH_CHECK(m.group_size >= 32 && m.group_size % 32 == 0 && cols % m.group_size == 0, "group_size ", m.group_size, " for ", cols,
              " columns");
  CheckRows(weight, "weight", m.rows, cols * m.bits / 32, at::kInt);
  CheckRows(p[2], "scales", m.rows, cols / m.group_size, working);
  CheckRows(p[3], "biases", m.rows, cols / m.group_size, working);
  m.scale_dtype = WorkingType(p[2], "scales");
  m.scales = p[2].data_ptr();
  m.biases = p[3].data_ptr();
  return m;
}

// Where the rows of one layer go: columns [first, first + rows) of an output.
int64_t FirstColumn(at::IntArrayRef packing, int64_t rows, const at::Tensor& out) {
  const int64_t first = packing[2];
  TORCH_CHECK(first >= 0 && first + rows <= out.size(1), "rows ", first, " to ", first + rows, " for an output of ", out.size(1));
  return first;
}

// The part of the bias that belongs to the rows from `first` on; the bias is that of the whole layer.
const void* BiasOf(at::TensorList p, int64_t first, const at::Tensor& out, at::ScalarType working) {
  if (!p[1].defined()) return nullptr;
  CheckVector(p[1], "bias", out.size(1), working);
  return static_cast<const char*>(p[1].data_ptr()) + first * p[1].element_size();
}

lime::cpu::AttentionRows ToRows(const at::Tensor& slots, const at::Tensor& positions, int64_t rows, const at::Tensor& page_table) {
  CheckDense(page_table, "page_table");
  TORCH_CHECK(page_table.dim() == 2 && page_table.scalar_type() == at::kInt, "page_table must be [slots, pages] int32");
  return {.slots = Indices(slots, "slots", rows, page_table.size(0)),
          .positions = Indices(positions, "positions", rows, page_table.size(1) * lime::cpu::kPagePositions),
          .count = rows};
}

// Pages wherever they lie.
lime::cpu::KvView GeometryOf(const at::Tensor& pages, int64_t kv_heads, int64_t head_dim) {
  const DType dtype = WorkingType(pages, "pages");
  const int64_t page_bytes = Width(pages, "pages") * ElementBytes(dtype);
  TORCH_CHECK(page_bytes >= lime::cpu::KvPageBytes(dtype, kv_heads, head_dim), "a page of ", page_bytes, " bytes is too small for ",
              kv_heads, " heads of ", head_dim);
  TORCH_CHECK(head_dim <= lime::cpu::kMaxHeadDim, "head_dim is ", head_dim, ", at most ", lime::cpu::kMaxHeadDim);
  return {.page_bytes = page_bytes, .dtype = dtype, .kv_heads = kv_heads, .head_dim = head_dim};
}

lime::cpu::KvView ToView(const at::Tensor& pages, const at::Tensor& page_table, int64_t kv_heads, int64_t head_dim) {
  lime::cpu::KvView view = GeometryOf(pages, kv_heads, head_dim);
  view.base = static_cast<std::byte*>(pages.data_ptr());
  view.page_table = page_table.data_ptr<int32_t>();
  view.table_stride = page_table.size(1);
  return view;
}

Activation ToActivation(int64_t activation) {
  TORCH_CHECK(activation == static_cast<int64_t>(Activation::kSilu) || activation == static_cast<int64_t>(Activation::kRelu),
              "unknown activation ", activation);
  return static_cast<Activation>(activation);
}

}  // namespace

void LinearManyOut(const at::Tensor& x, at::TensorList parameters, at::IntArrayRef packing, at::TensorList outs) {
  constexpr size_t kMaxTasks = 8;
  std::array<Matrix, kMaxTasks> matrices;
  std::array<lime::cpu::LinearTask, kMaxTasks> tasks;
  const int64_t rows = x.size(0), cols = Width(x, "x");
  TORCH_CHECK(!outs.empty() && outs.size() <= kMaxTasks && parameters.size() == outs.size() * kParametersPerLayer &&
                  packing.size() == outs.size() * kPackingPerLayer,
              "parameters of ", outs.size(), " layers do not match");
  for (size_t i = 0; i < outs.size(); ++i) {
    const at::TensorList p = parameters.slice(i * kParametersPerLayer, kParametersPerLayer);
    const at::IntArrayRef numbers = packing.slice(i * kPackingPerLayer, kPackingPerLayer);
    matrices[i] = ToMatrix(p, numbers, cols, x.scalar_type());
    const int64_t width = Width(outs[i], "out"), first = FirstColumn(numbers, matrices[i].rows, outs[i]);
    CheckRows(outs[i], "out", rows, width, at::kFloat);
    tasks[i] = {.weight = &matrices[i],
                .bias = BiasOf(p, first, outs[i], x.scalar_type()),
                .out = outs[i].data_ptr<float>() + first,
                .out_stride = width};
  }
  ComputeContext::Impl& context = CurrentContext();
  lime::cpu::Linear(context.pool, context.linear, x.data_ptr(), WorkingType(x, "x"), rows, cols, {tasks.data(), outs.size()});
}

void LinearAdd(at::Tensor& y, const at::Tensor& x, at::TensorList parameters, at::IntArrayRef packing) {
  TORCH_CHECK(parameters.size() == kParametersPerLayer && packing.size() == kPackingPerLayer, "need the parameters of one layer");
  const int64_t rows = x.size(0), cols = Width(x, "x");
  const Matrix matrix = ToMatrix(parameters, packing, cols, x.scalar_type());
  const int64_t width = Width(y, "y"), first = FirstColumn(packing, matrix.rows, y);
  CheckRows(y, "y", rows, width, x.scalar_type());
  const lime::cpu::LinearTask task{.weight = &matrix,
                                   .bias = BiasOf(parameters, first, y, x.scalar_type()),
                                   .add_to = static_cast<char*>(y.data_ptr()) + first * y.element_size(),
                                   .out_stride = width};
  ComputeContext::Impl& context = CurrentContext();
  lime::cpu::Linear(context.pool, context.linear, x.data_ptr(), WorkingType(x, "x"), rows, cols, {&task, 1});
}

void RmsNormOut(const at::Tensor& x, const at::Tensor& weight, double eps, at::Tensor& out) {
  const int64_t width = Width(x, "x");
  CheckVector(weight, "weight", width, weight.scalar_type());
  CheckRows(out, "out", x.size(0), width, x.scalar_type());
  lime::cpu::RmsNorm(CurrentContext().pool, {x.size(0), width, width, width, WorkingType(x, "x"), WorkingType(weight, "weight")},
                     x.data_ptr(), weight.data_ptr(), static_cast<float>(eps), out.data_ptr());
}

void LayerNormOut(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps, at::Tensor& out) {
  const int64_t width = Width(x, "x");
  const at::Tensor& typed = weight.defined() ? weight : bias.defined() ? bias : x;  // both have one dtype
  if (weight.defined()) CheckVector(weight, "weight", width, typed.scalar_type());
  if (bias.defined()) CheckVector(bias, "bias", width, typed.scalar_type());
  CheckRows(out, "out", x.size(0), width, x.scalar_type());
  lime::cpu::LayerNorm(CurrentContext().pool, {x.size(0), width, width, width, WorkingType(x, "x"), WorkingType(typed, "weight")},
                       x.data_ptr(), weight.defined() ? weight.data_ptr() : nullptr, bias.defined() ? bias.data_ptr() : nullptr,
                       static_cast<float>(eps), out.data_ptr());
}

void HeadRmsNorm(at::Tensor& qk, const at::Tensor& weight, double eps) {
  const int64_t width = Width(qk, "qk");
  CheckDense(weight, "weight");
  const int64_t head_dim = weight.numel();
  TORCH_CHECK(head_dim > 0 && width % head_dim == 0, "qk of width ", width, " is no whole number of heads of ", head_dim);
  CheckRows(qk, "qk", qk.size(0), width, at::kFloat);
  lime::cpu::HeadRmsNorm(CurrentContext().pool, qk.data_ptr<float>(), qk.size(0), width / head_dim, head_dim, width, weight.data_ptr(),
                         WorkingType(weight, "weight"), static_cast<float>(eps));
}

void Rope(at::Tensor& qk, const at::Tensor& positions, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t width = Width(qk, "qk"), half = Width(cos, "cos");
  TORCH_CHECK(half > 0 && width % (2 * half) == 0, "qk of width ", width, " is no whole number of heads of ", 2 * half);
  CheckRows(qk, "qk", qk.size(0), width, at::kFloat);
  CheckRows(cos, "cos", cos.size(0), half, at::kFloat);
  CheckRows(sin, "sin", cos.size(0), half, at::kFloat);
  lime::cpu::ApplyRope(CurrentContext().pool, qk.data_ptr<float>(), qk.size(0), width / (2 * half), width, cos.data_ptr<float>(),
                       sin.data_ptr<float>(), half, Indices(positions, "positions", qk.size(0), cos.size(0)));
}

void KvAppend(const at::Tensor& k, const at::Tensor& v, const at::Tensor& slots, const at::Tensor& positions, at::Tensor& pages,
              const at::Tensor& page_table, int64_t kv_heads) {
  const int64_t rows = k.size(0), width = Width(k, "k");
  TORCH_CHECK(kv_heads > 0 && width % kv_heads == 0, "k of width ", width, " for ", kv_heads, " heads");
  CheckRows(k, "k", rows, width, at::kFloat);
  CheckRows(v, "v", rows, width, at::kFloat);
  const lime::cpu::AttentionRows batch = ToRows(slots, positions, rows, page_table);
  const lime::cpu::KvView view = ToView(pages, page_table, kv_heads, width / kv_heads);
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t page = view.page_table[batch.slots[row] * view.table_stride + batch.positions[row] / lime::cpu::kPagePositions];
    TORCH_CHECK(page >= 0 && page < pages.size(0), "row ", row, " has page ", page, " of ", pages.size(0));
  }
  lime::cpu::KvAppend(CurrentContext().pool, view, batch, k.data_ptr<float>(), v.data_ptr<float>(), width);
}

namespace {

lime::cpu::AttentionShape ShapeOf(int64_t width, int64_t head_dim, int64_t window) {
  return {.heads = width / head_dim,
          .q_stride = width,
          .out_stride = width,
          .window = window,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim))};
}

lime::cpu::AttentionShape ShapeOf(const at::Tensor& q, int64_t kv_heads, int64_t head_dim, int64_t window) {
  const int64_t width = Width(q, "q");
  TORCH_CHECK(kv_heads > 0 && head_dim > 0 && width % (kv_heads * head_dim) == 0, "q of width ", width, " for ", kv_heads, " kv heads of ",
              head_dim);
  CheckRows(q, "q", q.size(0), width, at::kFloat);
  return ShapeOf(width, head_dim, window);
}

void Attend(const at::Tensor& q, const at::Tensor& slots, const at::Tensor& positions, const at::Tensor& pages,
            const at::Tensor& page_table, int64_t kv_heads, int64_t head_dim, int64_t window, at::Tensor& out,
            const lime::cpu::AttentionPieces& pieces) {
  const int64_t rows = q.size(0);
  const lime::cpu::AttentionShape shape = ShapeOf(q, kv_heads, head_dim, window);
  CheckRows(out, "out", rows, q.size(1), pages.scalar_type());
  ComputeContext::Impl& context = CurrentContext();
  lime::cpu::Attend(context.pool, context.attention, ToView(pages, page_table, kv_heads, head_dim),
                    ToRows(slots, positions, rows, page_table), q.data_ptr<float>(), shape, out.data_ptr(), pieces);
}

const std::byte* const* Pointers(const at::Tensor& places) {
  static_assert(sizeof(int64_t) == sizeof(const std::byte*));
  return reinterpret_cast<const std::byte* const*>(places.data_ptr<int64_t>());
}

// A row that is not behind the pieces that were attended to elsewhere would be finished there.
void CheckBehind(const lime::cpu::AttentionRows& rows, int64_t row, int64_t pieces) {
  TORCH_CHECK(pieces >= 0 && pieces <= rows.positions[row] / lime::cpu::kPiecePositions, "row ", row, " at position ", rows.positions[row],
              " is not behind ", pieces, " pieces");
}

}  // namespace

void AttendOut(const at::Tensor& q, const at::Tensor& slots, const at::Tensor& positions, const at::Tensor& pages,
               const at::Tensor& page_table, int64_t kv_heads, int64_t head_dim, int64_t window, at::Tensor& out) {
  Attend(q, slots, positions, pages, page_table, kv_heads, head_dim, window, out, {});
}

void AttendPiecesOut(const at::Tensor& q, const at::Tensor& slots, const at::Tensor& positions, const at::Tensor& pages,
                     const at::Tensor& page_table, const c10::optional<at::Tensor>& places, const c10::optional<at::Tensor>& taken,
                     int64_t kv_heads, int64_t head_dim, int64_t window, int64_t begin, int64_t end, at::Tensor& out) {
  lime::cpu::AttentionPieces pieces{.begin = begin, .end = end};
  TORCH_CHECK(begin >= 0 && begin < end, "pieces ", begin, " to ", end);
  if (places.has_value() && places->defined()) {
    CheckRows(*places, "places", page_table.size(0), end - begin, at::kLong);
    pieces.places = Pointers(*places);
  }
  if (taken.has_value() && taken->defined()) {
    CheckVector(*taken, "taken", page_table.size(0), at::kInt);
    pieces.taken = taken->data_ptr<int32_t>();
  }
  Attend(q, slots, positions, pages, page_table, kv_heads, head_dim, window, out, pieces);
}

void AttendForOut(const at::Tensor& q, const at::Tensor& positions, const at::Tensor& places, const at::Tensor& pages, int64_t kv_heads,
                  int64_t head_dim, int64_t window, at::Tensor& records) {
  const lime::cpu::AttentionShape shape = ShapeOf(q, kv_heads, head_dim, window);
  const int64_t count = places.size(1);
  CheckRows(places, "places", 1, count, at::kLong);
  CheckRows(records, "records", q.size(0), lime::cpu::PackedRecordFloats(shape.heads, head_dim), at::kFloat);
  const lime::cpu::AttentionRows rows{.positions = Indices(positions, "positions", q.size(0), INT32_MAX), .count = q.size(0)};
  for (int64_t row = 0; row < rows.count; ++row) CheckBehind(rows, row, count);
  ComputeContext::Impl& context = CurrentContext();
  TORCH_CHECK(context.for_others.has_value(), "the context was made without room for others' rows");
  const lime::cpu::AttentionPieces pieces{.end = count, .places = Pointers(places)};
  lime::cpu::Attend(context.pool, *context.for_others, GeometryOf(pages, kv_heads, head_dim), rows, q.data_ptr<float>(), shape, nullptr,
                    pieces);
  lime::cpu::GetCarried(*context.for_others, rows, shape, head_dim, count, records.data_ptr<float>());
}

void TakeRecords(const at::Tensor& records, const at::Tensor& slots, const at::Tensor& positions, const at::Tensor& taken, int64_t head_dim,
                 int64_t window) {
  const int64_t width = Width(records, "records"), count = records.size(0);
  TORCH_CHECK(head_dim > 0 && width % (2 + head_dim) == 0, "records of ", width, " floats for heads of ", head_dim);
  CheckRows(records, "records", count, width, at::kFloat);
  CheckVector(taken, "taken", taken.numel(), at::kInt);
  const int32_t* const pieces = taken.data_ptr<int32_t>();
  const lime::cpu::AttentionRows rows{.slots = Indices(slots, "slots", count, taken.numel()),
                                      .positions = Indices(positions, "positions", count, INT32_MAX),
                                      .count = count};
  for (int64_t row = 0; row < count; ++row) CheckBehind(rows, row, pieces[rows.slots[row]]);
  const lime::cpu::AttentionShape shape = ShapeOf(width / (2 + head_dim) * head_dim, head_dim, window);
  lime::cpu::SetCarried(CurrentContext().attention, rows, shape, head_dim, pieces, records.data_ptr<float>());
}

void GatedActivationOut(const at::Tensor& gate, const at::Tensor& up, int64_t activation, at::Tensor& out) {
  const int64_t rows = gate.size(0), width = Width(gate, "gate");
  CheckRows(gate, "gate", rows, width, at::kFloat);
  CheckRows(up, "up", rows, width, at::kFloat);
  CheckRows(out, "out", rows, width, out.scalar_type());
  lime::cpu::GatedActivation(CurrentContext().pool, ToActivation(activation), gate.data_ptr<float>(), up.data_ptr<float>(), rows, width,
                             width, out.data_ptr(), WorkingType(out, "out"), width);
}

void ActivationOut(const at::Tensor& x, int64_t activation, at::Tensor& out) {
  const int64_t rows = x.size(0), width = Width(x, "x");
  CheckRows(x, "x", rows, width, at::kFloat);
  CheckRows(out, "out", rows, width, out.scalar_type());
  lime::cpu::PlainActivation(CurrentContext().pool, ToActivation(activation), x.data_ptr<float>(), rows, width, width, out.data_ptr(),
                             WorkingType(out, "out"), width);
}

void EmbedOut(const at::Tensor& tokens, at::TensorList parameters, at::IntArrayRef packing, const at::Tensor& positions,
              const at::Tensor& position_table, int64_t position_offset, at::Tensor& out) {
  TORCH_CHECK(parameters.size() == kParametersPerLayer && packing.size() == kPackingPerLayer, "need the parameters of one table");
  const int64_t rows = out.size(0), cols = Width(out, "out");
  const Matrix table = ToMatrix(parameters, packing, cols, out.scalar_type());
  lime::cpu::LearnedPositions learned;
  if (position_table.defined()) {
    CheckRows(position_table, "position_table", position_table.size(0), cols, out.scalar_type());
    learned = {.table = position_table.data_ptr(),
               .offset = position_offset,
               .positions = Indices(positions, "positions", rows, position_table.size(0) - position_offset)};
  }
  lime::cpu::EmbedTokens(CurrentContext().pool, table, Indices(tokens, "tokens", rows, table.rows), rows, learned, out.data_ptr(),
                         WorkingType(out, "out"), cols);
}

void GatherRowsOut(const at::Tensor& x, const at::Tensor& rows, at::Tensor& out) {
  const int64_t width = Width(x, "x"), count = out.size(0), row_bytes = width * static_cast<int64_t>(x.element_size());
  CheckRows(out, "out", count, width, x.scalar_type());
  const int32_t* from = Indices(rows, "rows", count, x.size(0));
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(static_cast<char*>(out.data_ptr()) + i * row_bytes, static_cast<const char*>(x.data_ptr()) + from[i] * row_bytes,
                row_bytes);
}

void TopKOut(const at::Tensor& logits, at::Tensor& values, at::Tensor& ids) {
  const int64_t vocab = Width(logits, "logits"), rows = logits.size(0), k = Width(values, "values");
  CheckRows(logits, "logits", rows, vocab, at::kFloat);
  CheckRows(values, "values", rows, k, at::kFloat);
  CheckRows(ids, "ids", rows, k, at::kInt);
  TORCH_CHECK(k <= vocab, k, " of ", vocab, " logits cannot be kept");
  std::vector<lime::cpu::TopEntry> top(static_cast<size_t>(k));
  for (int64_t row = 0; row < rows; ++row) {
    TORCH_CHECK(lime::cpu::TopK(logits.data_ptr<float>() + row * vocab, vocab, k, top.data()) >= 0, "a logit of row ", row, " is NaN");
    for (int64_t i = 0; i < k; ++i) {
      values.data_ptr<float>()[row * k + i] = top[static_cast<size_t>(i)].value;
      ids.data_ptr<int32_t>()[row * k + i] = top[static_cast<size_t>(i)].id;
    }
  }
}

}  // namespace lime::ops::cpu
