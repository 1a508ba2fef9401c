// Rotary position embedding: tables of cos and sin for every scaling type.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/plan/model/model_config.h"

namespace lime::cpu {

// Inverse frequencies [rope.dims / 2] in radians per position, as modeling_rope_utils of Hugging
// Face transformers defines each type. Only two use `sequence_length`: the base of kDynamic grows with the
// length beyond original_max_position; kLongRope has other factors there.
std::vector<double> RopeInverseFrequencies(const RopeConfig& rope, int64_t sequence_length);

// cos and sin of every position and frequency, times the attention factor, computed in fp64 and
// rounded once to fp32.
//
// Our reading of kDynamic: position p uses the base of sequence length max(p + 1,
// original_max_position). Generating token by token with a cache gives the same. So K of a position
// does not depend on how its prompt was cut into chunks.
//
// kLongRope has RopeConfig::TableRows rows; RopeConfig::TableRow says which row is of which position.
class RopeTable {
 public:
  // REQUIRES: rope.dims is even.
  RopeTable(const RopeConfig& rope, int64_t positions);

  int64_t positions() const { return positions_; }
  int64_t half() const { return half_; }
  const float* cos() const { return cos_.data(); }  // [rows, half]; a row for each position, but see above
  const float* sin() const { return sin_.data(); }
  // [positions]: factors of the rotated queries, 1 + query_beta ln(1 + floor(position / original)),
  // rounded once from fp64. Null if there is no query_beta.
  const float* query_factors() const { return query_factors_.empty() ? nullptr : query_factors_.data(); }
  Bytes bytes() const { return static_cast<Bytes>((cos_.size() + sin_.size() + query_factors_.size()) * sizeof(float)); }
  // Bytes of such a table, without creating it.
  static Bytes BytesFor(const RopeConfig& rope, int64_t positions) {
    return rope.TableRows(positions) * (rope.dims + (rope.query_beta != 0 ? 1 : 0)) * static_cast<Bytes>(sizeof(float));
  }

 private:
  int64_t positions_;
  int64_t half_;
  std::vector<float> cos_, sin_, query_factors_;
};

}  // namespace lime::cpu
