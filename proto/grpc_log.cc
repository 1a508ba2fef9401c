#include "proto/grpc_log.h"

#include <grpc/support/log.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lime {
namespace {

constexpr size_t kMaxLine = 512;

using Sink = std::function<void(std::string_view)>;

// Never destroyed: gRPC's threads may outlive main.
Sink& TheSink() {
  static Sink& sink = *new Sink;
  return sink;
}

void Drop(gpr_log_func_args*) {}

void PassOn(gpr_log_func_args* said) {
  const std::string file = said->file, message = said->message;
  TheSink()(absl::StrCat("gRPC: ", message.substr(0, kMaxLine), " (", file.substr(file.rfind('/') + 1), ":", said->line, ")"));
}

}  // namespace

void SilenceGrpc() {
  gpr_set_log_function(&Drop);
}

void GrpcLogTo(Sink sink, bool all) {
  TheSink() = std::move(sink);
  gpr_set_log_verbosity(all ? GPR_LOG_SEVERITY_DEBUG : GPR_LOG_SEVERITY_ERROR);
  gpr_set_log_function(&PassOn);
}

}  // namespace lime
