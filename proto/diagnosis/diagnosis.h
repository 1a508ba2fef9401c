// Explains why a device cannot be reached: one fault, one sentence, one remedy. Pure:
// proto/diagnosis/prober.h collects the facts.
#pragma once

#include <ctime>
#include <optional>
#include <string>

#include "planner/base/status.h"
#include "proto/certificate.h"
#include "proto/hello.h"

namespace lime {

enum class Fault {
  kNone,            // it answers and accepts our keys
  kUnresolvable,    // its host name cannot be resolved
  kNobodyListens,   // its machine refuses the connection
  kUnreachable,     // there is no route to its machine
  kNoAnswer,        // connecting takes too long
  kSilent,          // it accepts a connection but sends nothing
  kOtherProgram,    // another program than limed listens there
  kNoKeysThere,     // limed there has no keys, but we have
  kKeysWanted,      // limed there has keys, but we have none
  kForeignKeys,     // its keys are of another cluster
  kOurKeysForeign,  // it regards our keys as those of another cluster
  kOurKeysRefused,  // it refuses our keys without a reason
  kWrongName,       // another device of the cluster answers at its address
  kExpired,         // its keys have expired
  kNotYetValid,     // its keys are not valid yet
  kOurKeysExpired,  // our keys have expired
  kOurKeysNotYet,   // our keys are not valid yet
  kClockApart,      // clocks differ so much that valid keys seem invalid on one side
  kOtherRelease,    // it uses another version of the protocol
};
// The name for programs, such as "nobody_listens".
std::string NameOf(Fault fault);

// The device to reach, and our keys.
struct ProbeTarget {
  std::string name, address;  // name of the device; HOST:PORT
  ClusterKeys keys;           // ours; empty: none
  std::string start;          // command that starts it; empty: "start limed there"
};

// The facts about the device, as far as the probe got.
struct Probed {
  enum class Answer {
    kNothing,  // no answer within the time
    kClosed,   // the connection was closed without a byte
    kHttp2,    // gRPC without keys
    kTls,      // gRPC with keys
    kOther,    // anything else, see `said`
  };
  struct Peer {
    Certificate certificate;
    std::string pem;
    Trust trust = Trust::kUnusable;        // by our authority and clock
    Trust trust_there = Trust::kUnusable;  // by our authority and the device's clock
  };
  enum class Verdict {
    kAccepted,  // it accepted our keys
    kUnknown,   // it refused: it does not know our authority
    kDates,     // it refused: our keys have expired
    kRefused,   // it refused for another reason, or without one
  };
  std::string unresolved;  // the resolver's message; empty: resolved
  int connect_error = 0;   // errno
  Answer answer = Answer::kNothing;
  std::string said;     // the first bytes from it
  bool closed = false;  // it closed or reset the last connection where data was due
  std::optional<Peer> peer;
  Verdict verdict = Verdict::kRefused;
  std::optional<Hello> hello;
  std::time_t now = 0;  // by our clock
};

struct Diagnosis {
  Fault fault = Fault::kNone;
  std::string what, remedy;
  // The program there has only closed connections: perhaps it is limed, just ending or starting.
  bool closed = false;

  bool ok() const { return fault == Fault::kNone; }
  // True if waiting cannot help. `expected`: the device has answered before or was just started, so
  // a program that only closes connections may still be it.
  bool lasts(bool expected) const;
  // OK, or "device "NAME" at ADDRESS: WHAT; REMEDY". Unavailable if waiting for an expected device
  // may help, else FailedPrecondition.
  absl::Status ToStatus(const ProbeTarget& target) const;
};
Diagnosis Diagnose(const ProbeTarget& target, const Probed& probed);

// Checks an answer of the device: its protocol and its name.
Diagnosis DiagnoseAnswer(const ProbeTarget& target, const std::string& name, uint32_t protocol, const std::string& release);
// For a device that uses gRPC but does not know our call.
Diagnosis DiagnoseUnknownCall(const ProbeTarget& target, const std::optional<Hello>& hello);

// The reverse of ToStatus, except that `closed` is lost. For any other status: kNone with the
// message of the status.
Diagnosis DiagnosisOf(const absl::Status& status);

// Users are told of a larger difference of clocks, even if it has no effect yet.
inline constexpr std::time_t kClockNotice = 120;
// "3 days behind this machine's", or "ahead of".
std::string FormatClockApart(std::time_t there, std::time_t here);

}  // namespace lime
