#include "daemon/calibration/proven_shares.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/zero_prover.h"

namespace lime {
namespace {

int64_t Taught(const LayerInputs& inputs) {
  return TaughtInputs(std::ssize(inputs.masks));
}

absl::Status WrongProof(const LayerInputs& inputs, int32_t neuron) {
  return absl::InternalError(
      absl::StrCat("neuron ", neuron, " of layer ", inputs.layer, " is active, but is proven to be zero; report this with the model"));
}

// Of the whole work, approximately.
constexpr double kFrameShare = 0.5;

void Report(const LayerInputs& inputs, double share) {
  if (inputs.progress) inputs.progress(share);
}

// With all threads of the pool; does no more once the work is cancelled.
ForEach OnThreads(cpu::ThreadPool& pool, const LayerInputs& inputs) {
  return [&](int64_t count, const std::function<void(int64_t)>& body) {
    pool.ParallelFor(count, [&](int64_t i, int /*thread*/) {
      if (!inputs.IsCancelled()) body(i);
    });
  };
}

struct Count {
  int64_t neurons = 0, zeros = 0, proven = 0;
};

// Of one token. `unproven`: places in inputs.neurons, ascending.
absl::Status AddToken(const LayerInputs& inputs, const std::vector<int32_t>& mask, std::span<const int32_t> unproven, Count& count) {
  auto next = unproven.begin();
  for (size_t place = 0; place < inputs.neurons.size(); ++place) {
    const bool is_proven = next == unproven.end() || static_cast<size_t>(*next) != place;
    if (!is_proven) ++next;
    const bool is_zero = !std::ranges::binary_search(mask, inputs.neurons[place]);
    if (is_proven && !is_zero) return WrongProof(inputs, inputs.neurons[place]);
    ++count.neurons, count.zeros += is_zero ? 1 : 0, count.proven += is_proven ? 1 : 0;
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<CopyForm> UsualCopyForms(int64_t cols) {
  std::vector<CopyForm> forms;
  for (const int bits : {5, 6, 8}) {
    for (const int64_t part : {16, 8}) forms.push_back({.bits = bits, .directions = std::max<int64_t>(1, cols / part)});
  }
  return forms;
}

InputFrame FrameOf(const LayerInputs& inputs, int64_t directions) {
  cpu::ThreadPool pool(inputs.num_threads);
  InputFrame frame = FrameOf(std::span(inputs.inputs).first(static_cast<size_t>(Taught(inputs) * inputs.cols)), inputs.cols, directions,
                             OnThreads(pool, inputs));
  Report(inputs, kFrameShare);
  return frame;
}

absl::StatusOr<std::vector<ProvenShare>> MeasureProofs(const LayerInputs& inputs, const InputFrame& frame, std::span<const CopyForm> forms,
                                                       int num_threads) {
  std::vector<ProvenShare> shares;
  if (!inputs.order) return shares;
  const int64_t most = std::ssize(frame.directions) / inputs.cols;
  const auto rows = static_cast<int64_t>(inputs.neurons.size());
  cpu::ThreadPool pool(num_threads);
  cpu::ProverWorkspace ws({.max_tokens = 1, .max_rows = rows, .max_cols = inputs.cols, .max_directions = most});
  std::vector<int32_t> unproven(inputs.neurons.size());
  for (const CopyForm& form : forms) {
    LIME_ASSIGN_OR_RETURN(
        const DeciderCopy copy,
        DeciderCopy::Create(
            {.rows = rows, .cols = inputs.cols, .weights = inputs.decider, .bits = form.bits, .for_each = OnThreads(pool, inputs)},
            FirstDirections(frame, form.directions)));
    const DeciderView view = copy.view();
    const cpu::ProvenLayer layer{.copy = &view, .order = *inputs.order, .bias = inputs.bias.empty() ? nullptr : inputs.bias.data()};
    Count count;
    for (int64_t token = Taught(inputs); token < std::ssize(inputs.masks); ++token) {
      if (inputs.IsCancelled()) return absl::CancelledError("interrupted");
      const size_t found =
          cpu::FindUnproven(pool, ws, layer, inputs.inputs.data() + token * inputs.cols, DType::kF32, 1, inputs.threshold, unproven.data());
      LIME_RETURN_IF_ERROR(AddToken(inputs, inputs.masks[static_cast<size_t>(token)], std::span(unproven).first(found), count));
    }
    if (inputs.IsCancelled()) return absl::CancelledError("interrupted");
    if (count.neurons == 0) return Invalid("calibration: too few tokens to measure proofs; give a longer text");
    shares.push_back({.bits = form.bits,
                      .directions = static_cast<int32_t>(view.directions),
                      .zeros = static_cast<double>(count.zeros) / static_cast<double>(count.neurons),
                      .proven = static_cast<double>(count.proven) / static_cast<double>(count.neurons)});
    Report(inputs, kFrameShare + (1 - kFrameShare) * static_cast<double>(shares.size()) / static_cast<double>(forms.size()));
  }
  return shares;
}

absl::StatusOr<std::vector<SequenceMasks>> UnprovenMasks(const LayerInputs& inputs, const InputFrame& frame, int bits, int num_threads) {
  LIME_ASSIGN_OR_RETURN(const RowCopier copier, RowCopier::Create(inputs.cols, bits, frame));
  const int64_t rows = inputs.all_neurons, code_bytes = CodeRowBytes(inputs.cols, bits), directions = copier.directions();
  std::vector<uint8_t> codes(static_cast<size_t>(rows * code_bytes));
  std::vector<int8_t> kept(static_cast<size_t>(rows * directions));
  std::vector<CopiedRow> of_rows(static_cast<size_t>(rows));
  std::atomic<bool> finite = true;
  cpu::ThreadPool pool(num_threads);
  cpu::ParallelRows(pool, rows, inputs.cols * (directions + 1), [&](int64_t begin, int64_t end) {
    std::vector<float> weights(static_cast<size_t>(inputs.cols));
    for (int64_t row = begin; row < end && !inputs.IsCancelled(); ++row) {
      const auto part = [row](auto& all, int64_t size) {
        return std::span(all).subspan(static_cast<size_t>(row * size), static_cast<size_t>(size));
      };
      inputs.row(row, weights);
      if (!copier.Copy(weights, part(codes, code_bytes), part(kept, directions), of_rows[static_cast<size_t>(row)])) finite = false;
    }
  });
  if (inputs.IsCancelled()) return absl::CancelledError("interrupted");
  if (!finite) return Invalid("copy of a decider: a weight of layer ", inputs.layer, " is not finite");
  DeciderView view{.rows = rows,
                   .cols = inputs.cols,
                   .directions = directions,
                   .bits = bits,
                   .codes = codes.data(),
                   .kept = kept.data(),
                   .of_rows = of_rows.data(),
                   .mean = copier.mean().data(),
                   .axes = copier.axes().data()};
  MeasureFrame(view);
  return UnprovenMasks(inputs, view, num_threads);
}

absl::StatusOr<std::vector<SequenceMasks>> UnprovenMasks(const LayerInputs& inputs, const DeciderView& copy, int num_threads) {
  cpu::ThreadPool pool(num_threads);
  cpu::ProverWorkspace ws({.max_tokens = 1, .max_rows = copy.rows, .max_cols = copy.cols, .max_directions = copy.directions});
  const cpu::ProvenLayer layer{
      .copy = &copy, .order = inputs.order.value(), .bias = inputs.all_bias.empty() ? nullptr : inputs.all_bias.data()};
  std::vector<int32_t> ids(static_cast<size_t>(copy.rows));
  std::vector<SequenceMasks> unproven;
  const float* input = inputs.last_inputs.data();
  for (const SequenceMasks& sequence : inputs.last_masks) {
    unproven.emplace_back();
    for (const std::vector<int32_t>& active : sequence) {
      if (inputs.IsCancelled()) return absl::CancelledError("interrupted");
      const size_t found = cpu::FindUnproven(pool, ws, layer, input, DType::kF32, 1, inputs.threshold, ids.data());
      unproven.back().emplace_back(ids.begin(), ids.begin() + static_cast<int64_t>(found));
      for (const int32_t neuron : active) {
        if (!std::ranges::binary_search(unproven.back().back(), neuron)) return WrongProof(inputs, neuron);
      }
      input += inputs.cols;
    }
  }
  return unproven;
}

}  // namespace lime
