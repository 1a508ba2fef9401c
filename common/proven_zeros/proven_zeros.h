// Proves for an input x that pre-activations z = w.x + bias of a layer, as fp32 computes them, are
// not above a threshold, without reading w. With e = w - q and the mean and directions U of a copy
// (decider_copy.h), x' = x - mean, and any vector a, here a = U'x':
//
//   w.x = q.x + e.mean + e.U a + e.(x' - U a)
//   z  <= q.x + e.mean + kept.a + bias                                   the estimate
//       + |e| |x' - U a| + |e.U - kept| |a|                              what the copy does not have
//       + RelativeError (|w| + |q|) |x| + kUnderflow + ...               roundings: of the layer's sum, of
//                                                                        q.x, and of all of this
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

class ProvenZeros {
 public:
  // REQUIRES: `copy` outlives this object.
  explicit ProvenZeros(const DeciderCopy& copy);

  // The input that the following calls are about, [cols]: the values that the layer multiplies.
  void SetInput(std::span<const float> x);

  // The bound of a row. A kernel gives the two products that it has computed:
  //   copy_product   q.x in fp64, or in fp32 with the order kPortable; of x as the copy's order reads it
  //   kept_product   kept.along() in fp64, in any order
  ZBound BoundOf(int64_t row, double copy_product, double kept_product) const;
  // The same; computes both products.
  ZBound BoundOf(int64_t row) const { return BoundOf(row, CopyProduct(row), KeptProduct(row)); }

  double CopyProduct(int64_t row) const;
  double KeptProduct(int64_t row) const;
  std::span<const double> along() const { return along_; }  // a: x' along the directions

  // Marks the rows that are not proven to be at most `threshold` for this input. For several inputs,
  // call it after each SetInput: a neuron is left out only if no input marks it.
  // REQUIRES: `unproven` has an entry for each row.
  void MarkUnproven(float threshold, std::vector<bool>& unproven) const;

 private:
  const DeciderCopy& copy_;
  std::vector<float> x_;      // as the order reads it
  std::vector<double> rest_;  // x' - U a
  std::vector<double> along_;
  double input_norm_ = 0, along_norm_ = 0, rest_norm_ = 0;
};

}  // namespace lime
