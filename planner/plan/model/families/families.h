// The list of all families. Each is defined in a file of its own.
#pragma once

#include "planner/plan/model/family.h"

namespace lime {

extern const Family kLlamaFamily, kMistralFamily, kQwen2Family, kQwen3Family, kOptFamily, kQwen3_5Family, kSmolLm3Family, kGraniteFamily,
    kPhi3Family, kMinistral3Family;

// In the order in which messages list them.
inline constexpr const Family* kFamilies[] = {&kLlamaFamily,   &kMistralFamily, &kQwen2Family,   &kQwen3Family, &kOptFamily,
                                              &kQwen3_5Family, &kSmolLm3Family, &kGraniteFamily, &kPhi3Family,  &kMinistral3Family};

}  // namespace lime
