// Any text as the file of `limed --config`: an error in one sentence, or flags within their bounds.
#include <string_view>

#include "CLI/CLI.hpp"
#include "daemon/engine/call_limits.h"
#include "daemon/limed/limed_flags.h"
#include "planner/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  CLI::App app;
  lime::LimedFlags flags;
  flags.AddTo(lime::CommandFlags(app));
  const absl::Status status =
      lime::ReadLimedText(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz", lime::CommandFlags(app), flags);
  if (status.ok()) {
    LIME_CHECK(flags.threads >= 0 && flags.threads <= lime::kMostThreads);
  } else {
    LIME_CHECK(!status.message().empty());
    LIME_CHECK(status.message().find('\n') == absl::string_view::npos) << std::string(status.message());
  }
  return 0;
}
