// Chooses for how many neurons of each sparse MLP the devices have memory, from a calibration, and
// whether sparse MLPs pay at all.
//
// More neurons in memory make fewer reads, until other parts have to stream or the neurons no longer
// fit.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/status.h"
#include "planner/demand/bundle_reads.h"
#include "planner/demand/calibration.h"
#include "planner/plan/plan.h"
#include "planner/plan/sparse_parts.h"

namespace lime {

struct NeuronRowsSearch {
  std::span<const int64_t> neurons;          // by layer, of an MLP that may be sparse; 0: it may not
  const Calibration* calibration = nullptr;  // not null; layers that it does not have stay dense
  std::span<const DeciderForm> deciders;     // PlanRequest::deciders; the calibration has their copies
  std::span<const int32_t> predictor_ranks;  // PlanRequest; the calibration is of what predictors name
  bool on_path = true;                       // PlanRequest::bundles_on_path
  int64_t batch = 1;                         // sequences of a step
  BurstCost burst;                           // of the disks
  std::span<const BurstCost> bursts;         // by layer, of the disk that has it; empty: `burst`
  // By layer: layers of one group share memory for neurons, such as those of a device. Empty: all are of
  // one group. Else the sizes of groups are also changed one by one, down to none: then all MLPs of the
  // group are dense.
  std::span<const int32_t> groups;
  // A plan with these PlanRequest::neuron_rows; ResourceExhausted if none fits.
  std::function<absl::StatusOr<Plan>(const std::vector<int64_t>& rows)> plan;
  // The newest plan is the best one until now.
  std::function<void()> best = [] {};
  std::function<bool()> ends = [] { return false; };
  int most_plans = 24;
};

// The plan with the least TimeMs (unit_places.h). Divides memory of some size among the layers of a group,
// each row where it saves most time (demand/neuron_rows.h). Begins with an eighth of all neurons, doubles
// and halves the size while that is better, and then changes it by less and less. At last every device uses
// for its layers what the best plan leaves free. Deterministic if `plan` and `ends` are.
// Errors: InvalidArgument if a layer does not have the calibration's neurons; those of `plan` that are
// not ResourceExhausted; ResourceExhausted if no plan fits.
absl::StatusOr<Plan> ChooseNeuronRows(const ModelSpec& spec, const NeuronRowsSearch& search);

// Chooses for each layer whether its decider or a copy of it decides.
struct DeciderSearch {
  const Calibration* calibration = nullptr;  // not null
  // By layer, the copy that it may have; without bits: none. The calibration has all of them (CopiesOf).
  std::span<const DeciderForm> copies;
  // The best plan with these PlanRequest::deciders; ResourceExhausted if none fits.
  std::function<absl::StatusOr<Plan>(const std::vector<DeciderForm>& deciders)> plan;
  std::function<void()> best = [] {};  // the newest plan is the best one until now
  int most_plans = 8;
};

// The copies among `forms` of which the calibration knows what they prove; the others without bits.
std::vector<DeciderForm> KnownCopies(const Calibration& calibration, std::span<const DeciderForm> forms);
// The plan with the least TimeMs: without copies, with all of them, and from the better of both on layer by
// layer, first where a copy proves least, or most. Errors: as ChooseNeuronRows.
absl::StatusOr<Plan> ChooseDeciders(const DeciderSearch& search);

// What may decide in sparse MLPs.
enum class DeciderWish : uint8_t {
  kAuto,       // where it is predicted faster, a copy of the decider
  kDense,      // the decider itself
  kCertified,  // a copy of the decider, where there is one
};
std::optional<DeciderWish> ParseDecider(std::string_view name);  // "auto", "dense", "certified"

// ---- Whether sparse MLPs pay

// Milliseconds of a prompt: the prediction, and at least the reads of every disk. Chunks read the rows of
// sparse parts whole. The prediction counts them and streamed parts as if each had the disk to itself,
// which could halve the time of a prompt.
double PromptMs(const Plan& plan);

// What the caller asks for.
enum class SparsityWish : uint8_t {
  kAuto,  // exact if it is predicted faster
  kOff,
  kExact,
  kPredicted,  // a predictor names the neurons, and results change; never chosen by kAuto
};
std::optional<SparsityWish> ParseSparsity(std::string_view name);  // "auto", "off", "exact", "predicted"

// Why `auto` has not looked for a plan with sparse MLPs: the model has no ReLU, no bundles, or no
// calibration. The second two say what to do.
inline constexpr std::string_view kNoZeros = "the MLPs of the model have no ReLU";
inline constexpr std::string_view kNoBundles = "the model has no bundles; `lime prepare --bundles` writes them";
inline constexpr std::string_view kNoCalibration = "nothing is known of the zeros of the model; `lime calibrate` learns them";

struct SparsityChoice {
  bool exact = false;
  std::string why;  // "12.3 ms a token predicted, 45.6 without sparse MLPs"
};
// `off_ms`, `exact_ms`: of a token; `off_work_ms`, `exact_work_ms`: of the whole work, with its prompts.
// nullopt: no such plan fits.
struct SparsityTimes {
  std::optional<double> off_ms, exact_ms;
  double off_work_ms = 0, exact_work_ms = 0;
};
// A gain below kLeastSparseGain is no reason for another way to compute.
inline constexpr double kLeastSparseGain = 0.01;
SparsityChoice ChooseSparsity(const SparsityTimes& times);

}  // namespace lime
