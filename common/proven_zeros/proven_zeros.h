// Proves for an input x that pre-activations z = w.x + bias of a layer, as fp32 computes them, are
// not above a threshold, without reading w. With e = w - q and the mean and directions U of a copy
// (decider_copy.h), x' = x - mean, and any vector a, here a = U'x':
//
//   w.x = q.x + e.mean + e.U a + e.(x' - U a)
//   z  <= q.x + e.mean + kept.a + bias                                   the estimate
//       + |e| |x' - U a| + |e.U - kept| |a|                              what the copy does not have
//       + RelativeError |w| |x| + |q| product + kUnderflow + ...         roundings: of the layer's sum, of
//                                                                        q.x, and of all of this
//       + |subnormal elements of w| |x|                                  which kBf16Dot reads as zero
//
// Norms are rounded up, so that the bound holds for the numbers that are computed. Adding the bias
// rounds to nearest, and cannot go past the threshold, which is a number of fp32.
//
// Which activations are zero then:
//   ReLU      z <= 0: threshold 0
//   FATReLU   z <= T: threshold T. z is compared before it is rounded to the working dtype
//   dReLU     relu(gate) relu(up): either is at most 0; so prove with a copy of each
// In a gated MLP the other factor must be finite (StaysFinite in sum_order.h).
//
// An x with NaN or infinity, and norms whose partial sums could overflow in fp32, prove nothing. A
// proof is never wrong, only useful or not; a neuron without a proof may still be zero.
//
// Thread: the owner's.   Pure, deterministic, and allocates nothing after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/proven_zeros/decider_copy.h"

namespace lime {

// An upper bound of z: estimate + slack.
struct ZBound {
  double estimate = 0;
  double slack = 0;  // not negative; infinite or NaN if nothing is known

  bool Proves(float threshold) const { return estimate + slack <= static_cast<double>(threshold); }
};

// Of one input; each is at least the exact number.
struct InputNorms {
  double input = 0;    // |x|
  double along = 0;    // |a|
  double rest = 0;     // |x' - U a|
  double product = 0;  // codes.x, as it is computed, is off by at most |codes| times this
};

// `x`: [cols], as the order reads it. `along`: a, any vector of one number for each direction. `rest`:
// x' - U a in fp64, the products with directions subtracted one after another, in any order. `product` is
// that of codes.x in fp64, or in fp32 in the lanes of kPortable.
InputNorms NormsOf(const DeciderView& copy, std::span<const float> x, std::span<const double> along, std::span<const double> rest);

// The bound of a row from two products:
//   code_product   codes.x, as norms.product says
//   kept_product   kept codes.a in fp64, in any order
// Products of codes, which are integers, lose nothing to underflow; those that overflow prove nothing.
ZBound BoundOf(const DeciderView& copy, SumOrder order, int64_t row, float bias, const InputNorms& norms, double code_product,
               double kept_product);

// All rows, one product after the other: what kernels are compared with.
class ProvenZeros {
 public:
  // `bias`: [rows], or empty. REQUIRES: the memory of `copy` and `bias` outlives this object.
  ProvenZeros(const DeciderView& copy, SumOrder order, std::span<const float> bias);

  // The input that the following calls are about, [cols]: the values that the layer multiplies.
  void SetInput(std::span<const float> x);

  ZBound BoundOf(int64_t row) const { return BoundOf(row, CodeProduct(row), KeptProduct(row)); }
  ZBound BoundOf(int64_t row, double code_product, double kept_product) const;

  double CodeProduct(int64_t row) const;
  double KeptProduct(int64_t row) const;
  std::span<const double> along() const { return along_; }  // a: x' along the directions

  // Marks the rows that are not proven to be at most `threshold` for this input. For several inputs,
  // call it after each SetInput: a neuron is left out only if no input marks it.
  // REQUIRES: `unproven` has an entry for each row.
  void MarkUnproven(float threshold, std::vector<bool>& unproven) const;

 private:
  const DeciderView copy_;
  const SumOrder order_;
  const std::span<const float> bias_;
  std::vector<float> x_;      // as the order reads it
  std::vector<double> rest_;  // x' - U a
  std::vector<double> along_;
  InputNorms norms_;
};

}  // namespace lime
