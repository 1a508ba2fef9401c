#include "coordinator/rpc/ask_health.h"

#include <grpc/grpc_security_constants.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "planner/base/release.h"
#include "proto/diagnosis/prober.h"

namespace lime {
namespace {

constexpr absl::Duration kFirstLook = absl::Milliseconds(700);  // before the first diagnosis

// When the device's certificate expires; 0: it has shown none.
std::time_t KeysUntil(const grpc::ClientContext& context) {
  const auto auth = context.auth_context();
  if (auth == nullptr) return 0;
  const auto certificates = auth->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  if (certificates.empty()) return 0;
  const absl::StatusOr<Certificate> read = ReadCertificate(std::string(certificates.front().data(), certificates.front().size()));
  return read.ok() ? read->until : 0;
}

absl::StatusOr<DeviceHealth> Check(const ProbeTarget& target, const grpc::ClientContext& context, const v1::HealthReply& reply) {
  // Checks the protocol first: with another protocol, the other fields may have another meaning.
  LIME_RETURN_IF_ERROR(DiagnoseAnswer(target, target.name, reply.protocol(), reply.release().substr(0, 64)).ToStatus(target));
  absl::StatusOr<DeviceHealth> health = FromProto(reply);
  if (!health.ok()) return health;
  LIME_RETURN_IF_ERROR(DiagnoseAnswer(target, health->name, health->protocol, health->release).ToStatus(target));
  health->keys_until = KeysUntil(context);
  return health;
}

}  // namespace

absl::StatusOr<DeviceHealth> AskHealth(v1::Control::Stub& stub, const ProbeTarget& target, const HealthQuestion& question) {
  const absl::Time until = absl::Now() + question.patience;
  absl::Time look = question.explain ? std::min(until, absl::Now() + kFirstLook) : until;
  while (true) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(look));
    context.set_wait_for_ready(true);
    v1::HealthRequest request;
    request.set_awaited(question.awaited);
    request.set_release(std::string(Release()));
    v1::HealthReply reply;
    const grpc::Status status = stub.Health(&context, request, &reply);
    if (status.ok()) return Check(target, context, reply);
    const absl::Status silent = absl::UnavailableError(
        absl::StrCat("device \"", target.name, "\" at ", target.address, " does not answer (", status.error_message().substr(0, 200), ")"));
    if (!question.explain) return silent;
    if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) return DiagnoseUnknownCall(target, AskHello(target)).ToStatus(target);
    const Diagnosis diagnosis = FindFault(target);
    if (diagnosis.lasts(question.expected) || absl::Now() >= until) {
      LIME_RETURN_IF_ERROR(diagnosis.ToStatus(target));
      if (absl::Now() >= until)
        return absl::UnavailableError(absl::StrCat(silent.message(), ", although it accepts connections; its machine may be overloaded"));
    }
    look = until;
  }
}

}  // namespace lime
