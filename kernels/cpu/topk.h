// The largest logits of one row.
#pragma once

#include <cstdint>

namespace lime::cpu {

struct TopEntry {
  float value = 0;
  int32_t id = 0;
};

// Fills `top` with the min(k, n) largest of logits [n], largest first, equal ones by ascending id, and returns how many there are;
// -1 if a logit is NaN, which only broken weights or a bug can bring. Allocates nothing.
int64_t TopK(const float* logits, int64_t n, int64_t k, TopEntry* top);

}  // namespace lime::cpu
