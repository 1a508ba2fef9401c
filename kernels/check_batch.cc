#include "kernels/check_batch.h"

#include <algorithm>

namespace lime {

absl::StatusOr<int64_t> CheckBatch(const MicroBatch& batch, const ModelSpec& spec, const BackendOptions& options,
                                   std::span<const int64_t> positions) {
  if (batch.rows.empty() || std::ssize(batch.rows) > options.max_rows)
    return Invalid("a batch has ", batch.rows.size(), " rows, the plan allows 1 to ", options.max_rows);
  // Position tables have exactly `context` rows, but KV pages are whole, so a page may exist beyond
  // it.
  const int64_t context = spec.config.learned_positions ? std::min(options.context, spec.config.max_positions) : options.context;
  int64_t logit_rows = 0;
  for (const BatchRow& row : batch.rows) {
    if (row.token < 0 || row.token >= spec.config.vocab_size)
      return Invalid("token id ", row.token, " is outside the vocabulary of ", spec.config.vocab_size);
    if (row.sequence < 0 || row.sequence >= std::ssize(positions) || row.position < 0 ||
        row.position >= positions[static_cast<size_t>(row.sequence)])
      return Invalid("position ", row.position, " of sequence slot ", row.sequence, " has no KV page reserved");
    if (row.position >= context) return Invalid("position ", row.position, " is beyond the context of ", context);
    if (row.length < 0 || row.length > options.context)
      return Invalid("sequence slot ", row.sequence, " is to have ", row.length, " positions, the plan allows at most ", options.context);
    if (row.snapshot < -1 || row.snapshot >= options.state_snapshots)
      return Invalid("a row is followed by snapshot ", row.snapshot, ", the plan has ", options.state_snapshots, " for each sequence slot");
    logit_rows += row.wants_logits ? 1 : 0;
  }
  if (logit_rows > options.max_logit_rows)
    return Invalid("a batch asks for logits of ", logit_rows, " rows, the plan allows at most ", options.max_logit_rows);
  return logit_rows;
}

}  // namespace lime
