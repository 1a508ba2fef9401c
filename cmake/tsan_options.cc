// What every program of the ThreadSanitizer build begins with, in the place of the runtime's own
// answer. What libraries that were built without it call of libc is not looked at: it does not see
// the locks that order them.
extern "C" const char* __tsan_default_options() {
  return "ignore_noninstrumented_modules=1 suppressions=" LIME_TSAN_SUPPRESSIONS;
}
