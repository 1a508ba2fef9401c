#include "tests/kernels/convert.h"

#include "kernels/cpu/base/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/convert.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "kernels/cpu/base/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {
namespace {

template <typename In, typename Out>
void ConvertArray(const In* in, Out* out, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(Load(in + i), out + i);
  if (i < n) StoreFirst(LoadFirst(in + i, n - i), out + i, n - i);
}

void ConvertAny(const void* in, DType in_dtype, void* out, DType out_dtype, int64_t n) {
  WithWorkingType(in_dtype, [&](auto in_type) HWY_ATTR {
    WithWorkingType(out_dtype, [&](auto out_type) HWY_ATTR {
      ConvertArray(static_cast<const decltype(in_type)*>(in), static_cast<decltype(out_type)*>(out), n);
    });
  });
}

}  // namespace
}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lime::cpu {

HWY_EXPORT(ConvertAny);

void Convert(const void* in, DType in_dtype, void* out, DType out_dtype, int64_t n) {
  if (in_dtype == out_dtype) {
    std::memmove(out, in, n * ElementBytes(in_dtype));
  } else {
    HWY_DYNAMIC_DISPATCH(ConvertAny)(in, in_dtype, out, out_dtype, n);
  }
}

}  // namespace lime::cpu
#endif  // HWY_ONCE
