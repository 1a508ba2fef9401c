#include "kernels/paced_backend.h"

#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "planner/plan/plan.h"

namespace lime {
namespace {

class SystemClock final : public PaceClock {
 public:
  double NowMs() override { return std::chrono::duration<double, std::milli>(Clock::now().time_since_epoch()).count(); }

  // By default Linux may end a sleep 50 us late, to wake several threads at once. A part of a block
  // may take less than that, so the slack is set to 1 ns.
  void SleepUntilMs(double ms) override {
#ifdef __linux__
    thread_local const int slack [[maybe_unused]] = prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
#endif
    std::this_thread::sleep_until(
        Clock::time_point(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(ms))));
  }

 private:
  using Clock = std::chrono::steady_clock;
};

Bytes MatrixBytes(const BlockSpec& block) {
  return block.bytes - PinnedBytes(block);
}

class PacedBackend final : public Backend {
 public:
  PacedBackend(std::unique_ptr<Backend> real, const ModelSpec& spec, PaceOptions options)
      : real_(std::move(real)), spec_(spec), options_(std::move(options)) {
    if (options_.clock == nullptr) options_.clock = std::make_unique<SystemClock>();
  }
  ~PacedBackend() override {
    if (options_.ended) options_.ended(report_);
  }

  std::string numerics_id() const override { return real_->numerics_id(); }
  std::string description() const override { return real_->description() + ", paced"; }
  absl::Status BindBlock(const BlockSpec& block, BlockWeights weights) override { return real_->BindBlock(block, std::move(weights)); }
  void SetPages(int32_t sequence, int64_t layer, std::span<const int32_t> pages) override { real_->SetPages(sequence, layer, pages); }
  std::byte* KvPage(int32_t page) override { return real_->KvPage(page); }
  std::shared_ptr<const std::byte> ShareKv() override { return real_->ShareKv(); }
  std::shared_ptr<const std::byte> ShareStates() override { return real_->ShareStates(); }
  std::span<std::byte> State(int32_t sequence, int64_t layer) override { return real_->State(sequence, layer); }
  std::span<std::byte> Snapshot(int32_t sequence, int32_t snapshot, int64_t layer) override {
    return real_->Snapshot(sequence, snapshot, layer);
  }
  absl::Status ResizeKv(int64_t pages) override { return real_->ResizeKv(pages); }
  std::span<std::byte> Hidden() override { return real_->Hidden(); }
  std::span<float> Logits() override { return real_->Logits(); }
  Bytes ActivationBytes() const override { return real_->ActivationBytes(); }
  Bytes KvBytes() const override { return real_->KvBytes(); }
  Bytes StateBytes() const override { return real_->StateBytes(); }

  absl::Status Begin(const MicroBatch& batch) override {
    logit_rows_ = std::ranges::count_if(batch.rows, &BatchRow::wants_logits);
    context_ = 0;
    positions_.clear(), sequences_.clear();
    for (const BatchRow& row : batch.rows) {
      context_ = std::max<int64_t>(context_, row.position + 1);
      positions_.push_back(row.position);
      if (sequences_.empty() || sequences_.back() != row.sequence) sequences_.push_back(row.sequence);
    }
    return real_->Begin(batch);
  }

  absl::Status Compute(BlockId block) override {
    return Paced(block, 1, [&] { return real_->Compute(block); });
  }
  absl::Status ComputeRows(BlockId block, const RowsInMemory& rows) override {
    return Paced(block, Share(spec_.block(block), rows.rows), [&] { return real_->ComputeRows(block, rows); });
  }
  std::span<const int32_t> ChosenUnits(BlockId block) const override { return real_->ChosenUnits(block); }
  // Not paced: a plan does not count it.
  size_t GuessUnits(BlockId block, BlockId next, std::span<const RowsInMemory> router, std::span<int32_t> units) override {
    return real_->GuessUnits(block, next, router, units);
  }
  absl::Status ComputeUnits(BlockId block, std::span<const RowsInMemory> rows) override {
    double share = 0;
    for (const RowsInMemory& one : rows) share += Share(spec_.block(block), one.rows);
    return Paced(block, share, [&] { return real_->ComputeUnits(block, rows); });
  }
  // The share of the matrices' bytes that is used: the decider once, the others by neurons.
  absl::StatusOr<std::span<const int32_t>> DecideNeurons(BlockId block) override {
    absl::StatusOr<std::span<const int32_t>> active = absl::InternalError("not decided");
    LIME_RETURN_IF_ERROR(Paced(block, 1 / Matrices(), [&] {
      active = real_->DecideNeurons(block);
      return active.status();
    }));
    return active;
  }
  absl::StatusOr<std::span<const int32_t>> ActiveNeurons(BlockId block, int64_t row) override { return real_->ActiveNeurons(block, row); }
  absl::Status ComputeNeurons(BlockId block, std::span<const NeuronInMemory> neurons) override {
    const double all = static_cast<double>(std::max<int64_t>(1, spec_.config.layer(block.layer).intermediate_size));
    const bool with_decider = !neurons.empty() && neurons.front().decider != nullptr;
    const double share = (Matrices() - (with_decider ? 0 : 1)) / Matrices() * static_cast<double>(neurons.size()) / all;
    return Paced(block, share, [&] { return real_->ComputeNeurons(block, neurons); });
  }
  absl::Status BindCopy(BlockId block, const DeciderView& copy, std::shared_ptr<const void> storage) override {
    return real_->BindCopy(block, copy, std::move(storage));
  }
  absl::Status BindPredictor(BlockId block, const PredictorView& predictor, std::shared_ptr<const void> storage) override {
    return real_->BindPredictor(block, predictor, std::move(storage));
  }
  absl::StatusOr<std::span<const std::byte>> InputOfNeurons(BlockId block) override { return real_->InputOfNeurons(block); }
  // Not paced here: the rows of O are counted with the time of the whole attention.
  absl::Status AttendToPieces(int64_t layer, int64_t begin, int64_t end, std::span<const std::byte* const> places) override {
    return real_->AttendToPieces(layer, begin, end, places);
  }
  absl::StatusOr<std::span<const float>> Queries(int64_t layer) override { return real_->Queries(layer); }
  int64_t RecordFloats() const override { return real_->RecordFloats(); }
  // Paced like a part of the device's own batch: the time that attention over these positions adds
  // to a block.
  absl::Status AttendFor(std::span<const int32_t> positions, std::span<const float> queries, std::span<const std::byte* const> pieces,
                         std::span<float> records) override {
    const int64_t rows = std::ssize(positions), layer = FirstKvLayer();
    const int64_t attended = Attended(layer, positions, std::ssize(pieces) * kKvPiece);
    const double ms = attended == 0 ? 0 : std::max(0.0, AttentionMs(layer, rows, attended) - AttentionMs(layer, rows, 1));
    return Paced(ms, [&] { return real_->AttendFor(positions, queries, pieces, records); });
  }
  // The device need not attend to pieces that a host has attended to, so the parts that follow
  // become shorter.
  absl::Status ContinueFromRecords(int64_t layer, std::span<const int32_t> covered, std::span<const float> records) override {
    int64_t pieces = sequences_.empty() ? 0 : INT64_MAX;
    for (const int32_t sequence : sequences_) pieces = std::min<int64_t>(pieces, covered[static_cast<size_t>(sequence)]);
    const int64_t rows = std::ssize(positions_), seen = Attended(layer, positions_, pieces * kKvPiece);
    if (seen > 0)
      saved_ms_ += std::max(0.0, AttentionMs(layer, rows, context_) - AttentionMs(layer, rows, std::max<int64_t>(1, context_ - seen)));
    return real_->ContinueFromRecords(layer, covered, records);
  }
  absl::StatusOr<UnitInputs> InputsOfUnits(BlockId block) override { return real_->InputsOfUnits(block); }
  absl::StatusOr<Bytes> UnitResultBytes(BlockId block, int32_t unit) override { return real_->UnitResultBytes(block, unit); }
  absl::Status TakeUnitResult(BlockId block, int32_t unit, std::span<const std::byte> result) override {
    return real_->TakeUnitResult(block, unit, result);
  }
  absl::Status UseUnitResults(BlockId block, std::span<const int32_t> units) override { return real_->UseUnitResults(block, units); }
  // Paced like these units in a batch of the device's own.
  absl::Status ComputeUnitsFor(BlockId block, std::span<const std::byte> inputs, std::span<const UnitForRows> units,
                               std::span<float> results) override {
    const BlockSpec& spec = spec_.block(block);
    const auto row_bytes = spec_.config.hidden_size * ElementBytes(spec_.working_dtype);
    const int64_t rows = std::max<int64_t>(1, std::ssize(inputs) / row_bytes);
    const ExpertsConfig& experts = *spec_.config.experts;
    const double unit = static_cast<double>(ExpertBytes(spec)) / static_cast<double>(experts.count);
    const double others = static_cast<double>(MatrixBytes(spec) - ExpertBytes(spec));
    const double chosen = static_cast<double>(std::min(experts.count, experts.per_token * rows));
    const double share = unit * static_cast<double>(units.size()) / (others + unit * chosen);
    return Paced(share * options_.profile.ComputeMs(spec_, block, rows, 1),
                 [&] { return real_->ComputeUnitsFor(block, inputs, units, results); });
  }
  absl::Status EmbedRows(const RowsInMemory& rows) override {
    return Paced(BlockId{BlockKind::kEmbedding, 0}, 1, [&] { return real_->EmbedRows(rows); });
  }

 private:
  // Of an MLP.
  double Matrices() const { return spec_.config.gated_mlp ? 3 : 2; }

  // Share of a block's time: the share of its matrices' bytes, as a plan divides it. Of the experts
  // only the chosen ones count.
  double Share(const BlockSpec& block, const MatrixRows& rows) const {
    if (rows.expert >= 0 && !std::ranges::binary_search(real_->ChosenUnits(block.id), rows.expert)) return 0;
    double bytes = 0;
    for (const TensorSpec& tensor : block.OfExpert(rows.expert)) {
      if (tensor.role != rows.role || IsPinned(tensor)) continue;
      bytes +=
          static_cast<double>(tensor.info.bytes) * static_cast<double>(rows.end - rows.begin) / static_cast<double>(tensor.info.shape[0]);
    }
    return bytes / ComputedBytes(block);
  }

  // Bytes of the matrices that the current batch computes. Before the router has run, as many
  // experts count as its rows can choose.
  double ComputedBytes(const BlockSpec& block) const {
    const Bytes all = MatrixBytes(block);
    if (block.id.kind != BlockKind::kExperts) return static_cast<double>(all);
    const ExpertsConfig& experts = *spec_.config.experts;
    const size_t chosen = real_->ChosenUnits(block.id).size();
    const int64_t units = chosen > 0 ? static_cast<int64_t>(chosen) : std::min(experts.count, experts.per_token * std::ssize(positions_));
    const Bytes of_experts = ExpertBytes(block);
    return static_cast<double>(all - of_experts) +
           static_cast<double>(of_experts) * static_cast<double>(units) / static_cast<double>(experts.count);
  }

  static Bytes ExpertBytes(const BlockSpec& block) {
    Bytes bytes = 0;
    for (const TensorSpec& tensor : block.tensors) bytes += tensor.expert < 0 || IsPinned(tensor) ? 0 : tensor.info.bytes;
    return bytes;
  }

  // All layers with KV are alike if a device attends for others.
  int64_t FirstKvLayer() const { return std::ranges::find_if(spec_.config.layers, &LayerConfig::has_kv) - spec_.config.layers.begin(); }

  // Positions of [0, end) that any of the rows sees.
  int64_t Attended(int64_t layer, std::span<const int32_t> positions, int64_t end) const {
    const int64_t window = spec_.config.layer(layer).window;
    if (positions.empty() || window == 0) return end;
    const int64_t first = std::max<int64_t>(0, std::ranges::min(positions) + 1 - window);
    return std::max<int64_t>(0, end - first);
  }

  double AttentionMs(int64_t layer, int64_t rows, int64_t context) const {
    return options_.profile.ComputeMs(spec_, {BlockKind::kAttention, static_cast<int32_t>(layer)}, rows, context);
  }

  template <typename Compute>
  absl::Status Paced(BlockId block, double share, const Compute& compute) {
    const int64_t rows = block.kind == BlockKind::kHead ? logit_rows_ : std::ssize(positions_);
    const double ms = share * options_.profile.ComputeMs(spec_, block, rows, context_), saved = std::min(ms, saved_ms_);
    saved_ms_ -= saved;
    return Paced(ms - saved, compute);
  }

  template <typename Compute>
  absl::Status Paced(double ms, const Compute& compute) {
    const double begin = options_.clock->NowMs();
    const double counted_from = begin - returned_ <= kPaceHandOverMs ? due_ : begin;
    LIME_RETURN_IF_ERROR(compute());
    const double computed = options_.clock->NowMs();
    due_ = counted_from + ms;
    if (computed < due_) options_.clock->SleepUntilMs(due_);
    Count(ms, computed - begin, computed - due_);
    returned_ = options_.clock->NowMs();
    return absl::OkStatus();
  }

  void Count(double paced_ms, double real_ms, double late_ms) {
    ++report_.parts;
    report_.paced_ms += paced_ms;
    report_.real_ms += real_ms;
    if (late_ms > 0) ++report_.late, report_.latest_ms = std::max(report_.latest_ms, late_ms);
  }

  const std::unique_ptr<Backend> real_;
  const ModelSpec spec_;
  PaceOptions options_;
  // State of the current batch.
  int64_t logit_rows_ = 0;
  int64_t context_ = 0;             // the longest context
  std::vector<int32_t> positions_;  // of its rows
  std::vector<int32_t> sequences_;  // sequences that have rows
  // Time of attention that a host has computed.
  double saved_ms_ = 0;
  // When the profile's device would have ended the last part.
  double due_ = 0;
  // When the call of that part returned.
  double returned_ = -1e9;
  PaceReport report_;
};

}  // namespace

std::unique_ptr<Backend> PaceBackend(std::unique_ptr<Backend> real, const ModelSpec& spec, PaceOptions options) {
  return std::make_unique<PacedBackend>(std::move(real), spec, std::move(options));
}

}  // namespace lime
