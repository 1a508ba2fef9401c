// A clock that is wrong, for a program that this is loaded into before all else (LD_PRELOAD):
// std::time, by which TLS judges certificates and limed tells its clock, is LIME_TEST_CLOCK_SHIFT
// seconds off. Timers keep the true one.
#include <cstdlib>
#include <ctime>

extern "C" time_t time(time_t* out) noexcept {
  static const long shift = [] {
    const char* const text = std::getenv("LIME_TEST_CLOCK_SHIFT");
    return text == nullptr ? 0L : std::atol(text);
  }();
  struct timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  const time_t shifted = now.tv_sec + shift;
  if (out != nullptr) *out = shifted;
  return shifted;
}
