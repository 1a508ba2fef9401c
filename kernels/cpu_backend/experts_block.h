// A block with experts: a router chooses for every row the experts that compute it; a shared expert
// may compute all rows. Only the chosen experts are needed, in any order.
//
// Every result of an expert is held until all of the batch are there. Then they are added in
// ascending id, and the sum goes to the residual stream with one rounding (kernels/cpu/experts.h).
// So the order of the experts, and which of them are in memory, change no bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/delta_rule.h"
#include "kernels/cpu_backend/block.h"
#include "kernels/cpu_backend/layers.h"
#include "planner/plan/model/model_config.h"

namespace lime::cpu {

class ExpertsBlock final : public Block {
 public:
  ExpertsBlock(const ModelConfig& config, int32_t layer)
      : config_(config), layer_(layer), experts_(static_cast<size_t>(config.experts->count)) {}

  // Experts without weights are not in memory.
  void Bind(const BlockBinder& binder) override;

  // Computes all but the chosen experts that are not in memory. If there are none, updates ws.x;
  // else ForwardUnits or ForwardRows bring them.
  absl::Status Forward(const StepMemory& memory) override;

  // Rows of the router and the shared expert first, in order of use. After these, chosen experts
  // that are in memory are computed. Then rows of the other experts: those of one expert in order
  // of use, the experts in any order, even mixed. Rows of experts that no row chose are ignored. The
  // last row that is needed updates ws.x.
  absl::Status ForwardRows(const RowsInMemory& rows, const StepMemory& memory) override;

  // ForwardRows for several experts, with few parallel regions for those with all rows.
  absl::Status ForwardUnits(std::span<const RowsInMemory> rows, const StepMemory& memory) override;

  std::span<const int32_t> ChosenUnits(const Workspace& ws) const override;

  // Backend's methods for remote units. REQUIRES: for the first four, ChosenUnits is not empty.
  UnitInputs InputsOfUnits(const Workspace& ws) const;
  absl::StatusOr<Bytes> UnitResultBytes(const Workspace& ws, int32_t id) const;
  absl::Status TakeUnitResult(const Workspace& ws, int32_t id, std::span<const std::byte> result) const;
  absl::Status UseUnitResults(Workspace& ws, std::span<const int32_t> units) const;
  absl::Status ForwardUnitsFor(Workspace& ws, std::span<const std::byte> inputs, std::span<const UnitForRows> units,
                               std::span<float> results) const;

  // Backend::GuessUnits for this block, while another block with experts is under way. It costs one
  // product of a few rows with the router, and one norm with norms_apart.
  size_t GuessUnits(Workspace& ws, std::span<const RowsInMemory> router, std::span<int32_t> units) const;

 private:
  struct Expert {
    LinearLayer in;    // kGate, or kGateUp
    LinearLayer up;    // none with kGateUp
    LinearLayer down;  // kDown
  };
  // An expert that some row chose, with all rows of its matrices.
  struct Unit {
    int32_t id = 0;
    Expert layers;
  };

  const ExpertsConfig& sizes() const { return *config_.experts; }
  bool has_shared() const { return sizes().shared_intermediate_size > 0; }
  bool InMemory(const Expert& expert) const;
  // Rows of all matrices of an expert, and the first of those of `role` among them.
  int64_t AllRows() const { return 2 * sizes().intermediate_size + config_.hidden_size; }
  int64_t FirstRow(TensorRole role) const;

  // How many rows of the batch chose the expert, and their input: [rows, XStride()].
  static int64_t RowsOf(const Workspace& ws, int32_t id) { return ws.first_place[id + 1] - ws.first_place[id]; }
  static const std::byte* XOf(const Workspace& ws, int32_t id);
  static int64_t XStride(const Workspace& ws) { return ws.rows == 1 ? ws.hidden : ws.narrow_cols; }
  // Its places in ws.narrow and ws.wide.
  static std::byte* NarrowOf(const Workspace& ws, int32_t id);
  static float* WideOf(const Workspace& ws, int32_t id) { return ws.wide + ws.first_place[id] * ws.wide_cols; }

  // The router's products -> chosen experts, their weights and places, and the experts' inputs.
  absl::Status Choose(Workspace& ws) const;
  // The input of the shared expert: [tokens, hidden] working dtype.
  const std::byte* SharedX(const Workspace& ws) const { return sizes().norms_apart ? ws.shared_x : ws.normed; }
  void WeighApart(Workspace& ws) const;  // ws.chosen_weights times expert_scale_
  void AddApart(Workspace& ws) const;    // the results, each with its norm -> ws.x
  void SetPlaces(Workspace& ws) const;
  void Gather(Workspace& ws) const;

  absl::Status ForwardSharedRows(const LinearLayer& layer, TensorRole role, Workspace& ws) const;
  absl::Status ForwardExpertRows(const RowsInMemory& rows, Workspace& ws) const;
  void NormaliseForRouter(Workspace& ws) const;  // ws.x -> ws.normed
  // The input of the guess: [tokens, hidden] working dtype; null if there is none.
  const std::byte* GuessX(Workspace& ws) const;
  void ActivateShared(Workspace& ws) const;  // ws.gate, up -> ws.mixed
  // wide [rows, ws.wide_cols] -> narrow [rows, ws.narrow_cols]
  void Activate(Workspace& ws, const float* wide, int64_t rows, std::byte* narrow) const;
  void ComputeBound(Workspace& ws, bool with_shared) const;
  // `with_shared`: the last matrix of the shared expert, too.
  void ComputeUnits(Workspace& ws, std::span<const Unit> units, bool with_shared) const;
  // Points the layers at the unit's matrices. False if these are not all rows of all its matrices.
  bool PointAtAll(std::span<const RowsInMemory> matrices, Expert& layers) const;
  size_t MatricesOfUnit() const { return sizes().alternates ? 2 : 3; }
  // Takes the matrices of one chosen expert with all their rows from the front of `rows`; counts
  // these rows as computed. False, and nothing is taken: they are not there.
  bool TakeUnit(const Workspace& ws, std::span<const RowsInMemory>& rows, Unit& unit) const;
  // Updates ws.x if all results are there.
  void AddIfComplete(Workspace& ws) const;

  void BindNorms(const BlockBinder& binder);
  LinearLayer& linear(TensorRole role);
  const LinearLayer& OfExpert(const Expert& expert, TensorRole role) const;

  const ModelConfig& config_;
  const int32_t layer_;
  Norm norm_;  // of the experts' input; without norms_apart of all inputs
  LinearLayer router_;
  Values correction_;
  // With ExpertsConfig::norms_apart.
  Norm router_norm_, shared_norm_, shared_after_norm_, experts_after_norm_, after_norm_;
  Values expert_scale_;
  float layer_scale_ = 1;
  LinearLayer shared_scale_, shared_gate_, shared_up_, shared_down_;
  std::vector<Expert> experts_;
};

}  // namespace lime::cpu
