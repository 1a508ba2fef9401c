#include "kernels/cpu_backend/workspace.h"

#include <algorithm>

namespace lime::cpu {
namespace {

int64_t QCols(const ModelConfig& config) {
  return config.num_heads * config.MostHeadDim();
}

// Columns of the largest attended row.
int64_t AttendedCols(const ModelConfig& config) {
  return std::max(QCols(config), config.linear_attention ? config.linear_attention->value_cols() : 0);
}

// Of dense MLPs, shared experts and the inputs of layers.
int64_t IntermediateCols(const ModelConfig& config) {
  return std::max({config.MostIntermediate(), config.experts ? config.experts->shared_intermediate_size : 0, config.layer_inputs});
}

int64_t NarrowCols(const ModelConfig& config) {
  return config.experts ? std::max(config.hidden_size, config.experts->intermediate_size) : 0;
}

int64_t WideCols(const ModelConfig& config) {
  return config.experts ? std::max(config.hidden_size, 2 * config.experts->intermediate_size) : 0;
}

int64_t LatentInput(const ModelConfig& config) {
  if (!config.latent_attention) return 0;
  return std::max(config.latent_attention->query_rank, config.num_heads * config.latent_attention->value_dim);
}

int64_t WidestInput(const ModelConfig& config) {
  return std::max({LatentInput(config), IntermediateCols(config), config.hidden_size, AttendedCols(config), NarrowCols(config)});
}

AttentionWorkspace::Options AttentionOptions(const ModelSpec& spec, const BackendOptions& options, bool carries) {
  return {.max_rows = options.max_rows,
          .heads = spec.config.num_heads,
          .head_dim = spec.config.MostHeadDim(),
          .max_positions = options.context,
          .carries = carries};
}

StripWorkspace::Options StripOptions(const ModelSpec& spec, const BackendOptions& options, Numerics numerics = Numerics::kAuto) {
  return {.num_threads = options.num_threads,
          .max_tokens = options.sparse_rows,
          .max_row_cols = spec.config.hidden_size,
          .max_rows = spec.config.hidden_size,
          .max_columns = spec.config.MostIntermediate(),
          .numerics = numerics};
}

// Of copies of deciders; nothing without them.
std::optional<ProverWorkspace::Options> ProverOptions(const ModelSpec& spec, const BackendOptions& options) {
  if (options.sparse_rows == 0 || options.copied_directions < 0) return std::nullopt;
  return ProverWorkspace::Options{.max_tokens = options.sparse_rows,
                                  .max_rows = spec.config.MostIntermediate(),
                                  .max_cols = spec.config.hidden_size,
                                  .max_directions = options.copied_directions};
}

const RopeConfig* LongRope(const ModelConfig& config) {
  const auto found = std::ranges::find(config.ropes, RopeType::kLongRope, &RopeConfig::type);
  return found == config.ropes.end() ? nullptr : &*found;
}

template <typename OnArray>
void ForEachExpertArray(const ModelSpec& spec, const BackendOptions& options, BatchArrays& arrays, OnArray&& on_array) {
  const int64_t rows = options.max_rows;
  const ModelConfig& config = spec.config;
  const ExpertsConfig& experts = *config.experts;
  const int64_t places = rows * experts.per_token;
  constexpr int64_t kIndex = sizeof(int32_t), kFloat = sizeof(float);
  on_array(arrays.router, rows * experts.count * kFloat);
  on_array(arrays.chosen, places * kIndex);
  on_array(arrays.chosen_weights, places * kFloat);
  on_array(arrays.places, places * kIndex);
  on_array(arrays.first_place, (experts.count + 1) * kIndex);
  on_array(arrays.units, experts.count * kIndex);
  on_array(arrays.expert_rows, experts.count * kIndex);
  on_array(arrays.narrow, places * NarrowCols(config) * ElementBytes(spec.working_dtype));
  on_array(arrays.wide, places * WideCols(config) * kFloat);
  if (options.computes_for_others) {
    on_array(arrays.narrow_for_others, MostRowsFor(spec, options) * NarrowCols(config) * ElementBytes(spec.working_dtype));
    on_array(arrays.wide_for_others, MostRowsFor(spec, options) * WideCols(config) * kFloat);
  }
  if (experts.shared_intermediate_size > 0) on_array(arrays.shared, rows * config.hidden_size * kFloat);
  if (experts.norms_apart) on_array(arrays.shared_x, rows * config.hidden_size * ElementBytes(spec.working_dtype));
  if (experts.shared_scale) on_array(arrays.shared_scale, rows * kFloat);
}

// Calls take(array, its bytes) for every array that a backend with these options has.
template <typename OnArray>
void ForEachArray(const ModelSpec& spec, const BackendOptions& options, BatchArrays& arrays, OnArray&& on_array) {
  const ModelConfig& config = spec.config;
  const int64_t rows = options.max_rows, logit_rows = options.max_logit_rows, working = ElementBytes(spec.working_dtype);
  const int64_t q_cols = QCols(config), kv_cols = config.MostKvHeads() * config.MostHeadDim(), intermediate = IntermediateCols(config);
  constexpr int64_t kIndex = sizeof(int32_t), kFloat = sizeof(float);
  on_array(arrays.tokens, rows * kIndex);
  on_array(arrays.slots, rows * kIndex);
  on_array(arrays.positions, rows * kIndex);
  if (config.short_positions() > 0) on_array(arrays.rope_rows, rows * kIndex);
  on_array(arrays.x, rows * config.stream_cols() * working);
  on_array(arrays.normed, rows * config.hidden_size * working);
  if (config.after_norms) on_array(arrays.added, rows * config.hidden_size * kFloat);
  on_array(arrays.q, rows * q_cols * kFloat);
  on_array(arrays.k, rows * kv_cols * kFloat);
  on_array(arrays.v, rows * kv_cols * kFloat);
  if (config.qkv_by_head) on_array(arrays.by_head, rows * (q_cols + 2 * kv_cols) * kFloat);
  if (config.attention_gate) on_array(arrays.q_and_gate, rows * 2 * q_cols * kFloat);
  on_array(arrays.attended, rows * AttendedCols(config) * working);
  if (const auto& latent = config.latent_attention) {
    on_array(arrays.q_down, rows * latent->query_rank * kFloat);
    on_array(arrays.q_down_x, rows * latent->query_rank * working);
    on_array(arrays.q_heads, rows * config.num_heads * (latent->plain + latent->rotated) * kFloat);
    on_array(arrays.values, rows * config.num_heads * latent->value_dim * working);
  }
  if (const auto& linear = config.linear_attention) {
    on_array(arrays.runs, rows * static_cast<Bytes>(sizeof(SequenceRows)));
    on_array(arrays.qkv, rows * linear->conv_cols() * kFloat);
    on_array(arrays.z, rows * linear->value_cols() * kFloat);
    on_array(arrays.beta, rows * linear->value_heads * kFloat);
    on_array(arrays.decay, rows * linear->value_heads * kFloat);
    if (linear->by_key_head) {
      on_array(arrays.qkvz, rows * (linear->conv_cols() + linear->value_cols()) * kFloat);
      on_array(arrays.beta_decay, rows * 2 * linear->value_heads * kFloat);
    }
  }
  if (config.gated_mlp) on_array(arrays.gate, rows * intermediate * kFloat);
  on_array(arrays.up, rows * intermediate * kFloat);
  on_array(arrays.mixed, rows * intermediate * working);
  if (config.layer_inputs > 0) {
    on_array(arrays.layer_rows, rows * config.layer_input_cols * kFloat);
    on_array(arrays.layer_products, rows * config.layer_input_cols * kFloat);
  }
  on_array(arrays.head_rows, logit_rows * kIndex);
  on_array(arrays.head_x, logit_rows * config.hidden_size * working);
  on_array(arrays.logits, logit_rows * config.vocab_size * kFloat);
  if (options.sparse_rows > 0) {
    on_array(arrays.neurons, config.MostIntermediate() * kIndex);
    on_array(arrays.up_rows, config.MostIntermediate() * static_cast<Bytes>(sizeof(Strip)));
    on_array(arrays.down_columns, config.MostIntermediate() * static_cast<Bytes>(sizeof(Strip)));
  }
  if (options.predictor_rank > 0) {
    on_array(arrays.low, rows * options.predictor_rank * kFloat);
    on_array(arrays.low_x, rows * options.predictor_rank * working);
    on_array(arrays.predicted, rows * config.MostIntermediate());
  }
  if (config.experts) ForEachExpertArray(spec, options, arrays, on_array);
  if (options.attends_pieces) on_array(arrays.covered, options.max_sequences * kIndex);
}

}  // namespace

Workspace::Workspace(const ModelSpec& spec, const BackendOptions& options, Numerics numerics)
    : dtype(spec.working_dtype),
      hidden(spec.config.hidden_size),
      vocab(spec.config.vocab_size),
      residual_multiplier(static_cast<float>(spec.config.residual_multiplier)),
      narrow_cols(NarrowCols(spec.config)),
      wide_cols(WideCols(spec.config)),
      sparse_rows(options.sparse_rows),
      predictor_rank(options.predictor_rank),
      numerics(numerics),
      for_others_rows(options.computes_for_others && spec.config.experts ? MostRowsFor(spec, options) : 0),
      pool(options.num_threads),
      linear(options.num_threads, options.max_rows, WidestInput(spec.config), numerics),
      attention(AttentionOptions(spec, options, options.attends_pieces)),
      config_(spec.config),
      long_rope_(LongRope(spec.config)) {
  if (options.attends_for_others) for_others.emplace(AttentionOptions(spec, options, true));
  if (options.sparse_rows > 0) strips.emplace(StripOptions(spec, options, numerics));
  if (const auto of_prover = ProverOptions(spec, options)) prover.emplace(*of_prover);
  for (const RopeConfig& rope : spec.config.ropes) ropes.emplace_back(rope, options.context);
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
  if (options.sparse_rows > 0) bytes += StripWorkspace::BytesFor(StripOptions(spec, options));
  if (const auto of_prover = ProverOptions(spec, options)) bytes += ProverWorkspace::BytesFor(*of_prover);
  for (const RopeConfig& rope : spec.config.ropes) bytes += RopeTable::BytesFor(rope, options.context);
  BatchArrays none;
  ForEachArray(spec, options, none, [&](const auto* /*array*/, Bytes of_array) { bytes += of_array; });
  return bytes;
}

Bytes Workspace::bytes() const {
  Bytes bytes = array_bytes_ + linear.bytes() + attention.bytes() + (for_others ? for_others->bytes() : 0) +
                (strips ? strips->bytes() : 0) + (prover ? prover->bytes() : 0);
  for (const RopeTable& rope : ropes) bytes += rope.bytes();
  return bytes;
}

absl::Status Workspace::SetBatch(const MicroBatch& batch, int64_t new_logit_rows) {
  rows = std::ssize(batch.rows);
  logit_rows = new_logit_rows;
  head_selected = false;
  pieces_attended = -1;
  has_records = false;
  experts = {};
  neuron_progress = {};
  predicted_layer = -1;
  int32_t* head_row = head_rows;
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    tokens[i] = batch.rows[i].token;
    slots[i] = batch.rows[i].sequence;
    positions[i] = batch.rows[i].position;
    if (long_rope_ != nullptr) rope_rows[i] = static_cast<int32_t>(long_rope_->TableRow(positions[i], batch.rows[i].length));
    if (batch.rows[i].wants_logits) *head_row++ = static_cast<int32_t>(i);
  }
  return runs == nullptr ? absl::OkStatus() : FindRuns(batch);
}

absl::Status Workspace::FindRuns(const MicroBatch& batch) {
  num_runs = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const bool goes_on = row > 0 && slots[row] == slots[row - 1];
    if (goes_on && batch.rows[static_cast<size_t>(row - 1)].snapshot < 0) continue;
    for (const SequenceRows& run : sequence_rows()) {
      if (!goes_on && slots[run.begin] == slots[row]) return Invalid("the rows of sequence slot ", slots[row], " are not consecutive");
    }
    if (num_runs > 0) runs[num_runs - 1].end = row;
    runs[num_runs++] = {.begin = row, .end = rows};
  }
  for (SequenceRows& run : sequence_rows()) run.snapshot = batch.rows[static_cast<size_t>(run.end - 1)].snapshot;
  return absl::OkStatus();
}

}  // namespace lime::cpu
