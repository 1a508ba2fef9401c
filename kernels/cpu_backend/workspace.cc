#include "kernels/cpu_backend/workspace.h"

#include <algorithm>

namespace lime::cpu {
namespace {

int64_t WidestInput(const ModelConfig& config) {
  return std::max({config.intermediate_size, config.hidden_size, config.num_heads * config.head_dim});
}

AttentionWorkspace::Options AttentionOptions(const ModelSpec& spec, const BackendOptions& options, bool carries) {
  return {.max_rows = options.max_rows,
          .heads = spec.config.num_heads,
          .head_dim = spec.config.head_dim,
          .max_positions = options.context,
          .carries = carries};
}

// Calls take(array, its bytes) for every array that a backend with these options has.
template <typename OnArray>
void ForEachArray(const ModelSpec& spec, const BackendOptions& options, BatchArrays& arrays, OnArray&& on_array) {
  const ModelConfig& config = spec.config;
  const int64_t rows = options.max_rows, logit_rows = options.max_logit_rows, working = ElementBytes(spec.working_dtype);
  const int64_t q_cols = config.num_heads * config.head_dim, kv_cols = config.num_kv_heads * config.head_dim;
  constexpr int64_t kIndex = sizeof(int32_t), kFloat = sizeof(float);
  on_array(arrays.tokens, rows * kIndex);
  on_array(arrays.slots, rows * kIndex);
  on_array(arrays.positions, rows * kIndex);
  on_array(arrays.x, rows * config.hidden_size * working);
  on_array(arrays.normed, rows * config.hidden_size * working);
  on_array(arrays.q, rows * q_cols * kFloat);
  on_array(arrays.k, rows * kv_cols * kFloat);
  on_array(arrays.v, rows * kv_cols * kFloat);
  on_array(arrays.attended, rows * q_cols * working);
  if (config.gated_mlp()) on_array(arrays.gate, rows * config.intermediate_size * kFloat);
  on_array(arrays.up, rows * config.intermediate_size * kFloat);
  on_array(arrays.mixed, rows * config.intermediate_size * working);
  on_array(arrays.head_rows, logit_rows * kIndex);
  on_array(arrays.head_x, logit_rows * config.hidden_size * working);
  on_array(arrays.logits, logit_rows * config.vocab_size * kFloat);
  if (options.attends_pieces) on_array(arrays.covered, options.max_sequences * kIndex);
}

}  // namespace

Workspace::Workspace(const ModelSpec& spec, const BackendOptions& options, Numerics numerics)
    : dtype(spec.working_dtype),
      hidden(spec.config.hidden_size),
      intermediate(spec.config.intermediate_size),
      vocab(spec.config.vocab_size),
      pool(options.num_threads),
      linear(options.num_threads, options.max_rows, WidestInput(spec.config), numerics),
      attention(AttentionOptions(spec, options, options.attends_pieces)) {
  if (options.attends_for_others) for_others.emplace(AttentionOptions(spec, options, true));
  if (spec.config.rope.type != RopeType::kNone) rope.emplace(spec.config.rope, spec.config.head_dim, options.context);
  ForEachArray(spec, options, *this, [&](auto*& array, Bytes bytes) {
    array_bytes_ += bytes;
    memory_.push_back(MakePrefaulted(bytes));
    array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(memory_.back().get());
  });
}

Bytes Workspace::BytesFor(const ModelSpec& spec, const BackendOptions& options) {
  Bytes bytes = LinearWorkspace::BytesFor(options.num_threads, options.max_rows, WidestInput(spec.config)) +
                AttentionWorkspace::BytesFor(AttentionOptions(spec, options, options.attends_pieces));
  if (options.attends_for_others) bytes += AttentionWorkspace::BytesFor(AttentionOptions(spec, options, true));
  if (spec.config.rope.type != RopeType::kNone) bytes += RopeTable::BytesFor(spec.config.head_dim, options.context);
  BatchArrays none;
  ForEachArray(spec, options, none, [&](const auto* /*array*/, Bytes of_array) { bytes += of_array; });
  return bytes;
}

Bytes Workspace::bytes() const {
  return array_bytes_ + linear.bytes() + attention.bytes() + (for_others ? for_others->bytes() : 0) + (rope ? rope->bytes() : 0);
}

void Workspace::SetRows(int64_t new_rows, int64_t new_logit_rows) {
  rows = new_rows;
  logit_rows = new_logit_rows;
  head_selected = false;
  pieces_attended = -1;
  has_records = false;
}

}  // namespace lime::cpu
