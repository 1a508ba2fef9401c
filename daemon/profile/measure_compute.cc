#include "daemon/profile/measure_compute.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/steady_clock.h"
#include "daemon/machine/system_memory.h"
#include "daemon/profile/scale_model.h"
#include "kernels/registry/registry.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/plan.h"

namespace lime {
namespace {

constexpr int64_t kMaxHeadRows = 64;  // one step of a generation never asks for logits of more rows
constexpr int kSweepCaches = 4;       // a sweep passes the last cache this many times
constexpr int kMinSteps = 3;          // for each point, without the first of each visit
// For a point of long steps, after kMostSlices times its share of the time.
constexpr int kLeastSteps = 2;
constexpr int kMostSlices = 4;
constexpr int kWarmUpVisits = 5;
constexpr double kVisitMs = 20;  // consecutive steps of one point
constexpr double kShareOfMemory = 0.8;

// The lower quartile: other programs on the machine only add time.
double Typical(std::vector<double> values) {
  const auto quartile = values.begin() + static_cast<int64_t>(values.size()) / 4;
  std::ranges::nth_element(values, quartile);
  return *quartile;
}

// One shape of step, and the time it has taken so far.
struct Shape {
  int64_t rows = 0;
  int64_t context = 0;  // positions that the last row attends to
  double spent_ms = 0;
  int steps = 0;

  bool decodes() const { return rows <= kMaxDecodeRows; }
  int64_t sequences() const { return decodes() ? rows : 1; }
  int64_t PagesPerLayer() const { return sequences() * RoundUp(context, kPageTokens) / kPageTokens; }
  int64_t LogitRows() const { return rows <= kMaxHeadRows ? rows : 0; }
};

std::vector<Shape> ShapesOf(const ModelConfig& config) {
  std::vector<int64_t> contexts;
  for (const int64_t context : {64, 512, 2048, 8192}) {
    if (context <= config.max_positions) contexts.push_back(context);
  }
  if (contexts.empty()) contexts.push_back(config.max_positions);
  std::vector<Shape> shapes;
  for (const int64_t rows : {1, 2, 4, 8, 16, 64, 256, 512}) {
    for (const int64_t context : contexts) {
      if (rows <= kMaxDecodeRows || rows <= context) shapes.push_back({rows, context});
    }
  }
  return shapes;
}

// What a list of shapes allocates.
struct Need {
  BackendOptions backend;
  Bytes kv = 0;
  Bytes state = 0;
  Bytes activations = 0;
  Bytes total() const { return kv + state + activations; }
};

std::vector<int32_t> StateLayers(const ModelSpec& spec) {
  std::vector<int32_t> layers;
  for (const BlockSpec& block : spec.blocks) {
    if (HasState(block.id.kind)) layers.push_back(block.id.layer);
  }
  return layers;
}

// One layer of each kind of attention.
std::set<int32_t> MeasuredLayers(const ModelSpec& spec) {
  std::set<int32_t> layers;
  for (const BlockSpec& block : spec.blocks) {
    if (IsAttentionHalf(block.id.kind)) layers.insert(MeasuredLayer(spec.config, block.id.kind));
  }
  return layers;
}

// KV pages are given out in turn from a pool. Like the weights, the pool is larger than the caches,
// so pages come from memory. The pages of one layer are distinct.
absl::StatusOr<Need> NeedOf(const std::vector<Shape>& shapes, const ModelSpec& spec, const MeasureComputeOptions& options, Bytes sweep) {
  Need need{.backend = {.num_threads = options.num_threads, .max_sequences = 1, .numerics = options.numerics}};
  int64_t pages = 0;
  for (const Shape& shape : shapes) {
    need.backend.max_rows = std::max(need.backend.max_rows, shape.rows);
    need.backend.max_logit_rows = std::max(need.backend.max_logit_rows, shape.LogitRows());
    need.backend.max_sequences = std::max(need.backend.max_sequences, shape.sequences());
    need.backend.context = std::max(need.backend.context, shape.context);
    pages = std::max(pages, shape.PagesPerLayer());
  }
  const int64_t page_bytes = std::max<Bytes>(spec.KvPageBytes(), 1);
  need.backend.num_kv_pages = std::max(pages, std::min(pages * spec.NumKvLayers(), sweep / page_bytes));
  need.kv = need.backend.num_kv_pages * page_bytes;
  need.backend.state_layers = StateLayers(spec);
  for (const int32_t layer : need.backend.state_layers) need.state += need.backend.max_sequences * spec.StateBytes(layer);
  LIME_ASSIGN_OR_RETURN(need.activations, PlanActivationBytes(options.backend, spec, need.backend));
  return need;
}

// Removes the shapes that need most, until the rest fits.
absl::StatusOr<Need> FitShapes(std::vector<Shape>& shapes, const ModelSpec& spec, const MeasureComputeOptions& options, Bytes sweep,
                               Bytes room) {
  while (true) {
    LIME_ASSIGN_OR_RETURN(const Need need, NeedOf(shapes, spec, options, sweep));
    if (need.total() <= room) return need;
    if (shapes.size() == 1) {
      return absl::ResourceExhaustedError(absl::StrCat("measuring needs ", FormatBytes(need.total()), " besides the weights, but ",
                                                       FormatBytes(std::max<Bytes>(room, 0)),
                                                       " are free; end other programs, or give more memory"));
    }
    const auto pages = [](const Shape& shape) { return std::pair(shape.PagesPerLayer(), shape.rows); };
    const auto rows = [](const Shape& shape) { return std::pair(shape.rows, shape.PagesPerLayer()); };
    const auto sequences = [](const Shape& shape) { return std::pair(shape.sequences(), shape.PagesPerLayer()); };
    shapes.erase(need.state > std::max(need.kv, need.activations) ? std::ranges::max_element(shapes, {}, sequences)
                 : need.kv > need.activations                     ? std::ranges::max_element(shapes, {}, pages)
                                                                  : std::ranges::max_element(shapes, {}, rows));
  }
}

class ComputeMeter {
 public:
  static absl::StatusOr<std::unique_ptr<ComputeMeter>> Create(const ModelSpec& model, const MeasureComputeOptions& options) {
    std::unique_ptr<ComputeMeter> meter(new ComputeMeter(model, options));
    LIME_RETURN_IF_ERROR(meter->Open());
    return meter;
  }

  absl::Status Run() {
    LIME_RETURN_IF_ERROR(WarmUp());
    const double slice_ms = options_.seconds * 1000 / static_cast<double>(shapes_.size());
    bool ran = true;
    while (ran) {
      ran = false;
      for (Shape& shape : shapes_) {
        if (shape.steps >= kMinSteps ? shape.spent_ms >= slice_ms : shape.steps >= kLeastSteps && shape.spent_ms >= kMostSlices * slice_ms)
          continue;
        LIME_RETURN_IF_ERROR(Visit(shape));
        ran = true;
        Report(slice_ms);
      }
    }
    return absl::OkStatus();
  }

  std::string numerics_id() const { return backend_->numerics_id(); }

  ModelCompute Result() const {
    ModelCompute result{.key = ModelKey(model_), .step_overhead_ms = Typical(overhead_ms_)};
    for (const auto& [at, samples] : samples_) {
      const auto [kind, rows, context] = at;
      const double factor = kind == BlockKind::kHead ? scale_.head_factor : 1;
      result.points.push_back({.kind = kind, .rows = rows, .context = context, .ms = factor * Typical(samples)});
    }
    return result;
  }

 private:
  ComputeMeter(const ModelSpec& model, const MeasureComputeOptions& options)
      : model_(model), options_(options), shapes_(ShapesOf(model.config)) {}

  absl::Status Open() {
    const Bytes sweep = std::min<Bytes>(kSweepCaches * LastCacheBytes(), options_.memory / 4);
    scale_ = MakeScaleModel(model_, std::max<Bytes>(sweep, 1));
    first_layers_ = MeasuredLayers(scale_.spec);
    const Bytes least = LeastRingBytes(scale_.spec), ring = std::max(sweep, least);
    // Loads the backend, so that the system counts the backend's own memory.
    LIME_RETURN_IF_ERROR(NeedOf(shapes_, scale_.spec, options_, sweep).status());
    const Bytes free = std::min(options_.memory, static_cast<Bytes>(kShareOfMemory * static_cast<double>(AvailableMemory())));
    LIME_ASSIGN_OR_RETURN(const Need need, FitShapes(shapes_, scale_.spec, options_, sweep, free - ring));
    LIME_ASSIGN_OR_RETURN(weights_, RingWeights::Make(scale_.spec, ring));
    LIME_ASSIGN_OR_RETURN(backend_, OpenBackend(options_.backend, scale_.spec, need.backend));
    num_pages_ = need.backend.num_kv_pages, state_layers_ = need.backend.state_layers;
    for (size_t i = 0; i < scale_.spec.blocks.size(); ++i)
      LIME_RETURN_IF_ERROR(backend_->BindBlock(scale_.spec.blocks[i], weights_.blocks()[i]));
    return absl::OkStatus();
  }

  void DealPages(const Shape& shape) {
    std::vector<int32_t> pages(RoundUp(shape.context, kPageTokens) / kPageTokens);
    for (int64_t layer = 0; layer < scale_.spec.config.num_layers(); ++layer) {
      if (!scale_.spec.config.layer(layer).has_kv()) continue;
      for (int64_t sequence = 0; sequence < shape.sequences(); ++sequence) {
        for (int32_t& page : pages) page = static_cast<int32_t>(next_page_++ % num_pages_);
        backend_->SetPages(static_cast<int32_t>(sequence), layer, pages);
      }
    }
  }

  // States begin with the number of their positions, which rows must continue.
  void PlaceStates(const Shape& shape) {
    const int64_t positions = shape.context - (shape.decodes() ? 1 : shape.rows);
    for (const int32_t layer : state_layers_) {
      for (int64_t sequence = 0; sequence < shape.sequences(); ++sequence)
        std::memcpy(backend_->State(static_cast<int32_t>(sequence), layer).data(), &positions, sizeof(positions));
    }
  }

  void FillBatch(const Shape& shape) {
    batch_.Clear();
    for (int64_t i = 0; i < shape.rows; ++i) {
      const int64_t position = shape.decodes() ? shape.context - 1 : shape.context - shape.rows + i;
      const int64_t token = 7919 * (++tokens_) % scale_.spec.config.vocab_size;
      batch_.rows.push_back({.sequence = static_cast<int32_t>(shape.decodes() ? i : 0),
                             .token = static_cast<int32_t>(token),
                             .position = static_cast<int32_t>(position),
                             .wants_logits = shape.LogitRows() > 0});
    }
  }

  // Consecutive steps of one shape. The first step of a decode shape does not count: the caches are
  // full of another shape's data.
  absl::Status Visit(Shape& shape) {
    DealPages(shape);
    const double start = SteadyMs();
    for (int step = 0; step == 0 || SteadyMs() - start < kVisitMs; ++step) {
      if (options_.cancelled != nullptr && options_.cancelled->load(std::memory_order_relaxed)) return absl::CancelledError("interrupted");
      FillBatch(shape);
      LIME_RETURN_IF_ERROR(Step(shape, /*counts=*/step > 0 || !shape.decodes()));
      if (step == 0 && shape.decodes() && SteadyMs() - start >= kVisitMs) LIME_RETURN_IF_ERROR(Step(shape, /*counts=*/true));
    }
    shape.spent_ms += SteadyMs() - start;
    return absl::OkStatus();
  }

  // Brings threads, caches and page tables into the state of a long run.
  absl::Status WarmUp() {
    const Shape first = shapes_.front();
    for (int visit = 0; visit < kWarmUpVisits; ++visit) LIME_RETURN_IF_ERROR(Visit(shapes_.front()));
    shapes_.front() = first;
    samples_.clear();
    overhead_ms_.clear();
    return absl::OkStatus();
  }

  // Time and number of blocks, by kind.
  struct Sum {
    double ms = 0;
    int64_t blocks = 0;
  };
  using Sums = std::array<Sum, kNumBlockKinds>;

  // Chunks compute so long that one layer of each kind is enough.
  bool Computes(const Shape& shape, BlockId block) const {
    return shape.decodes() || !IsLayered(block.kind) || first_layers_.contains(block.layer);
  }

  absl::Status Step(Shape& shape, bool counts) {
    Sums sums{};
    PlaceStates(shape);
    const double start = SteadyMs();
    LIME_RETURN_IF_ERROR(backend_->Begin(batch_));
    for (const BlockSpec& block : scale_.spec.blocks) {
      if (!Computes(shape, block.id)) continue;
      const double begin = SteadyMs();
      LIME_RETURN_IF_ERROR(backend_->Compute(block.id));
      Sum& sum = sums[static_cast<size_t>(block.id.kind)];
      sum.ms += SteadyMs() - begin, ++sum.blocks;
    }
    if (shape.rows == 1 && options_.after_step) options_.after_step(backend_->Logits());
    if (counts) Count(shape, sums, SteadyMs() - start);
    return absl::OkStatus();
  }

  void Count(Shape& shape, const Sums& sums, double step_ms) {
    double overhead_ms = step_ms;
    for (const BlockKindInfo& info : kBlockKinds) {
      const Sum& sum = sums[static_cast<size_t>(info.kind)];
      overhead_ms -= sum.ms;
      if (sum.blocks == 0 || (info.kind == BlockKind::kHead && shape.LogitRows() == 0)) continue;
      samples_[{info.kind, shape.rows, info.has_kv ? shape.context : 0}].push_back(sum.ms / static_cast<double>(sum.blocks));
    }
    if (shape.rows == 1) overhead_ms_.push_back(overhead_ms);
    ++shape.steps;
  }

  void Report(double slice_ms) const {
    if (!options_.progress) return;
    double done = 0;
    for (const Shape& shape : shapes_) done += std::min(shape.spent_ms, slice_ms) / 1000;
    options_.progress(done, options_.seconds);
  }

  const ModelSpec& model_;
  const MeasureComputeOptions& options_;
  std::vector<Shape> shapes_;
  ScaleModel scale_;
  RingWeights weights_;
  std::unique_ptr<Backend> backend_;
  MicroBatch batch_;
  int64_t num_pages_ = 0, next_page_ = 0, tokens_ = 0;
  std::vector<int32_t> state_layers_;
  std::set<int32_t> first_layers_;  // of each kind of attention
  // Milliseconds by kind, rows, context.
  std::map<std::tuple<BlockKind, int64_t, int64_t>, std::vector<double>> samples_;
  std::vector<double> overhead_ms_;  // of decode steps of one row
};

}  // namespace

absl::StatusOr<ModelCompute> MeasureCompute(const ModelSpec& model, const MeasureComputeOptions& options) {
  LIME_ASSIGN_OR_RETURN(const std::unique_ptr<ComputeMeter> meter, ComputeMeter::Create(model, options));
  LIME_RETURN_IF_ERROR(meter->Run());
  if (options.numerics_id != nullptr) *options.numerics_id = meter->numerics_id();
  return meter->Result();
}

}  // namespace lime
