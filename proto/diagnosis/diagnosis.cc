#include "proto/diagnosis/diagnosis.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "planner/base/release.h"
#include "proto/convert/convert.h"
#include "proto/fields.h"

namespace lime {
namespace {

constexpr char kFaultMark[] = "lime/fault", kWhatMark[] = "lime/what", kRemedyMark[] = "lime/remedy";
constexpr const char* kNames[] = {
    "none",          "unresolvable",     "nobody_listens",         "unreachable",      "no_answer",        "silent",     "other_program",
    "no_keys_there", "keys_wanted",      "foreign_keys",           "our_keys_foreign", "our_keys_refused", "wrong_name", "expired",
    "not_yet_valid", "our_keys_expired", "our_keys_not_yet_valid", "clock_apart",      "other_release"};

constexpr char kSetClock[] = "set the clock that is wrong (`timedatectl set-ntp true` there)";

std::string PortOf(const ProbeTarget& target) {
  return target.address.substr(target.address.rfind(':') + 1);
}

std::string HostOf(const ProbeTarget& target) {
  return target.address.substr(0, target.address.rfind(':'));
}

std::string Renew(const std::string& name) {
  return absl::StrCat("run `lime keys --renew --name ", name, " --out FOLDER` on the machine that has ca.key");
}

// Names the protocol of the first bytes, if it is known.
std::string Speaks(const std::string& said) {
  if (said.starts_with("HTTP/")) return "it speaks HTTP, as a web server does";
  if (said.starts_with("SSH-")) return "it is an SSH server";
  return absl::StrCat("it says \"", fields::Plain(said, std::min<size_t>(said.find_first_of("\r\n"), 40)), "\"");
}

Diagnosis OtherProgram(const ProbeTarget& target, const std::string& how, bool closed = false) {
  return {Fault::kOtherProgram, absl::StrCat("another program listens on port ", PortOf(target), ": ", how),
          "correct the address in the cluster's file, or give limed another port", closed};
}

Diagnosis Unreached(const ProbeTarget& target, int error) {
  const std::string words = std::strerror(error), port = PortOf(target);
  switch (error) {
    case ECONNREFUSED:
      return {Fault::kNobodyListens, absl::StrCat("nobody listens on port ", port),
              target.start.empty() ? "start limed there" : target.start};
    case ETIMEDOUT:
      return {Fault::kNoAnswer, "nothing answers at its address",
              absl::StrCat("check that the machine is on, that its address is right, and that no firewall drops port ", port)};
    case ECONNRESET:
      return OtherProgram(target, "it closes the connection at once", /*closed=*/true);
    default:
      return {Fault::kUnreachable, absl::StrCat("there is no route to its address (", words, ")"),
              "check its address, and check that both machines are on one network"};
  }
}

Diagnosis ClockApart(const ProbeTarget& target, const Probed& probed, const std::string& therefore) {
  return {Fault::kClockApart,
          absl::StrCat("its clock says ", FormatClock(probed.hello->clock), ", ", FormatClockApart(probed.hello->clock, probed.now),
                       ", so ", therefore),
          absl::StrCat("set the clock that is wrong: `timedatectl set-ntp true` on ", HostOf(target), ", or here")};
}

// Checks the dates of our keys by our clock.
std::optional<Diagnosis> OwnDates(const Probed& probed, const Certificate& own) {
  const std::string clock = absl::StrCat("this machine's clock says ", FormatClock(probed.now));
  if (own.until < probed.now)
    return Diagnosis{Fault::kOurKeysExpired, absl::StrCat("the keys of this machine expired on ", FormatClock(own.until), " (", clock, ")"),
                     Renew(own.name)};
  if (own.from > probed.now)
    return Diagnosis{Fault::kOurKeysNotYet,
                     absl::StrCat("the keys of this machine become valid on ", FormatClock(own.from), ", but ", clock),
                     "set the clock of this machine (`timedatectl set-ntp true`)"};
  return std::nullopt;
}

// Checks the dates of its keys by our clock.
std::optional<Diagnosis> ItsDates(const ProbeTarget& target, const Probed& probed) {
  const Certificate& its = probed.peer->certificate;
  const bool good_there = probed.hello && probed.peer->trust_there == Trust::kGood;
  if (probed.peer->trust == Trust::kExpired) {
    if (good_there) return ClockApart(target, probed, "its keys seem to have expired");
    return Diagnosis{Fault::kExpired, absl::StrCat("its keys expired on ", FormatClock(its.until)),
                     absl::StrCat(Renew(target.name), "; copy the new keys to the device and start limed again")};
  }
  if (probed.peer->trust == Trust::kNotYet) {
    if (good_there) return ClockApart(target, probed, "its keys seem not to be valid yet");
    return Diagnosis{
        Fault::kNotYetValid,
        absl::StrCat("its keys become valid on ", FormatClock(its.from), ", but this machine's clock says ", FormatClock(probed.now)),
        kSetClock};
  }
  return std::nullopt;
}

// The device refuses our keys, although its own are valid.
Diagnosis Refusal(const ProbeTarget& target, const Probed& probed, const std::optional<Certificate>& own) {
  if (probed.hello && own && probed.hello->clock < own->from)
    return ClockApart(target, probed, "it considers the keys of this machine not valid yet");
  if (probed.hello && own && probed.hello->clock > own->until)
    return ClockApart(target, probed, "it considers the keys of this machine expired");
  if (probed.verdict == Probed::Verdict::kUnknown || (probed.hello && probed.verdict == Probed::Verdict::kRefused))
    return {Fault::kOurKeysForeign, "it does not know the authority of this machine's keys",
            absl::StrCat("copy ca.pem, ", target.name, ".pem and ", target.name,
                         ".key there from the folder where `lime keys` made them, and start limed again")};
  if (probed.verdict == Probed::Verdict::kDates)
    return {Fault::kClockApart, "it considers the keys of this machine expired or not valid yet", kSetClock};
  return {Fault::kOurKeysRefused, "it refuses the keys of this machine and gives no reason",
          "check that its clock is right (run `date` there) and that its ca.pem is the same as on this machine"};
}

Diagnosis WithKeys(const ProbeTarget& target, const Probed& probed) {
  if (!probed.peer) return OtherProgram(target, "it speaks TLS, but has no certificate", probed.closed);
  std::optional<Certificate> own;
  if (absl::StatusOr<Certificate> read = ReadCertificate(target.keys.certificate); read.ok()) own = *std::move(read);
  const Certificate& its = probed.peer->certificate;
  if (probed.peer->trust == Trust::kForeign)
    return {Fault::kForeignKeys, absl::StrCat("its keys (of \"", its.name, "\") were made by another authority than the keys here"),
            absl::StrCat("copy ca.pem, ", target.name, ".pem and ", target.name,
                         ".key there from the folder where `lime keys` made the keys of this cluster, and start limed again")};
  if (own) {
    if (std::optional<Diagnosis> dates = OwnDates(probed, *own)) return *std::move(dates);
  }
  if (std::optional<Diagnosis> dates = ItsDates(target, probed)) return *std::move(dates);
  if (probed.peer->trust != Trust::kGood)
    return OtherProgram(target,
                        absl::StrCat("it speaks TLS with a certificate of \"", its.name, "\", which does not belong to this cluster"));
  if (its.name != target.name) return DiagnoseAnswer(target, its.name, kProtocol, std::string(Release()));
  if (probed.verdict != Probed::Verdict::kAccepted) return Refusal(target, probed, own);
  return {};
}

Diagnosis Answered(const ProbeTarget& target, const Probed& probed) {
  const bool keys = !target.keys.empty();
  switch (probed.answer) {
    case Probed::Answer::kHttp2:
      if (!keys) return {};
      return {Fault::kNoKeysThere, "it runs without keys, but the cluster's file names keys (tls)",
              absl::StrCat("start limed there with --tls FOLDER, or leave tls out on every machine")};
    case Probed::Answer::kTls:
      if (keys) return WithKeys(target, probed);
      return {Fault::kKeysWanted, "it asks for keys, but the cluster's file names none",
              "add tls = \"FOLDER\", the folder that `lime keys` made, to [cluster]"};
    case Probed::Answer::kOther:
      return OtherProgram(target, Speaks(probed.said));
    case Probed::Answer::kClosed:
      return OtherProgram(target, "it closes the connection without an answer", /*closed=*/true);
    case Probed::Answer::kNothing:
      break;
  }
  return {Fault::kSilent, absl::StrCat("a program listens on port ", PortOf(target), ", but does not answer"),
          "limed is stopped or stuck, or another program has the port; run `ss -ltnp` there, then start limed again"};
}

}  // namespace

std::string NameOf(Fault fault) {
  return kNames[static_cast<size_t>(fault)];
}

bool Diagnosis::lasts(bool expected) const {
  if (expected && closed) return false;
  switch (fault) {
    case Fault::kNone:
    case Fault::kNobodyListens:
    case Fault::kUnreachable:
    case Fault::kNoAnswer:
    case Fault::kSilent:
      return false;
    default:
      return true;
  }
}

absl::Status Diagnosis::ToStatus(const ProbeTarget& target) const {
  if (ok()) return absl::OkStatus();
  absl::Status status(lasts(/*expected=*/true) ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kUnavailable,
                      absl::StrCat("device \"", target.name, "\" at ", target.address, ": ", what, "; ", remedy));
  status.SetPayload(kFaultMark, absl::Cord(NameOf(fault)));
  status.SetPayload(kWhatMark, absl::Cord(what));
  status.SetPayload(kRemedyMark, absl::Cord(remedy));
  return status;
}

Diagnosis Diagnose(const ProbeTarget& target, const Probed& probed) {
  if (!probed.unresolved.empty())
    return {Fault::kUnresolvable, absl::StrCat("the name ", HostOf(target), " does not resolve (", probed.unresolved, ")"),
            "correct the address in the cluster's file, or make the name known, in /etc/hosts for example"};
  if (probed.connect_error != 0) return Unreached(target, probed.connect_error);
  return Answered(target, probed);
}

Diagnosis DiagnoseAnswer(const ProbeTarget& target, const std::string& name, uint32_t protocol, const std::string& release) {
  if (protocol != kProtocol) {
    const std::string its = release.empty() ? "an unknown release" : absl::StrCat("release ", release);
    return {Fault::kOtherRelease,
            absl::StrCat("it runs ", its, " (protocol ", protocol, "), but this program is release ", std::string(Release()), " (protocol ",
                         kProtocol, ")"),
            "install one release on every machine"};
  }
  if (name != target.name)
    return {Fault::kWrongName, absl::StrCat("it calls itself \"", name, "\""),
            absl::StrCat("correct the address in the cluster's file (if the file also has \"", name,
                         "\", the two addresses may be swapped), or start limed there with --name ", target.name)};
  return {};
}

Diagnosis DiagnoseUnknownCall(const ProbeTarget& target, const std::optional<Hello>& hello) {
  if (hello && hello->protocol != kProtocol) return DiagnoseAnswer(target, target.name, hello->protocol, hello->release);
  return OtherProgram(target, "it speaks gRPC, but it is not a limed of this release");
}

Diagnosis DiagnosisOf(const absl::Status& status) {
  const absl::optional<absl::Cord> fault = status.GetPayload(kFaultMark), what = status.GetPayload(kWhatMark),
                                   remedy = status.GetPayload(kRemedyMark);
  if (!fault || !what || !remedy) return {Fault::kNone, std::string(status.message()), ""};
  const auto found = std::ranges::find(kNames, std::string(*fault));
  return {found == std::end(kNames) ? Fault::kNone : static_cast<Fault>(found - std::begin(kNames)), std::string(*what),
          std::string(*remedy)};
}

std::string FormatClockApart(std::time_t there, std::time_t here) {
  return absl::StrCat(FormatSpan(there - here), there < here ? " behind" : " ahead of", " this machine's");
}

}  // namespace lime
