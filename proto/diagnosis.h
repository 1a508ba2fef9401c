// Why a device cannot be talked to: one fault, one sentence, one remedy. Pure: proto/prober.h brings what is judged here.
#pragma once

#include <ctime>
#include <optional>
#include <string>

#include "planner/base/status.h"
#include "proto/certificate.h"
#include "proto/hello.h"

namespace lime {

enum class Fault {
  kNone,            // it answers, and takes our keys
  kUnresolvable,    // its host is no name that anybody knows
  kNobodyListens,   // its machine says so
  kUnreachable,     // no way leads to its machine
  kNoAnswer,        // connecting to it takes too long
  kSilent,          // a connection is accepted, and nothing is said
  kOtherProgram,    // what listens there is no limed
  kNoKeysThere,     // limed there has no keys, and we have
  kKeysWanted,      // and the other way round
  kForeignKeys,     // its keys are of another cluster
  kOurKeysForeign,  // it takes ours for those of another cluster
  kOurKeysRefused,  // it does not say why
  kWrongName,       // another device of the cluster answers at its address
  kExpired,         // its keys
  kNotYetValid,     // likewise
  kOurKeysExpired,  // those of this machine
  kOurKeysNotYet,   // likewise
  kClockApart,      // so far that keys seem not valid, on one side or the other
  kOtherRelease,    // it speaks another protocol
};
// "nobody_listens", for programs.
std::string NameOf(Fault fault);

// Whom we want to talk to, and with what.
struct ProbeTarget {
  std::string name, address;  // of the device; HOST:PORT
  ClusterKeys keys;           // ours; empty: none
  std::string start;          // what to type where nobody listens; empty: "start limed there"
};

// What was seen of it, as far as it went.
struct Probed {
  enum class Answer {
    kNothing,  // within the time given
    kClosed,   // the connection, without a byte
    kHttp2,    // as gRPC without keys does
    kTls,      // as gRPC with keys does
    kOther,    // anything else: `said`
  };
  struct Peer {
    Certificate certificate;
    std::string pem;
    Trust trust = Trust::kUnusable;        // by our authority and clock
    Trust trust_there = Trust::kUnusable;  // by our authority and the device's clock
  };
  enum class Verdict {
    kAccepted,  // our keys
    kUnknown,   // refused: it says that it does not know our authority
    kDates,     // refused: it says that ours have expired
    kRefused,   // in other words, or without any
  };
  std::string unresolved;  // what the resolver says; empty: resolved
  int connect_error = 0;   // errno
  Answer answer = Answer::kNothing;
  std::string said;  // its first bytes
  std::optional<Peer> peer;
  Verdict verdict = Verdict::kRefused;
  std::optional<Hello> hello;
  std::time_t now = 0;  // by our clock
};

struct Diagnosis {
  Fault fault = Fault::kNone;
  std::string what, remedy;

  bool ok() const { return fault == Fault::kNone; }
  // Waiting does not mend it.
  bool lasts() const;
  // OK, or "device "NAME" at ADDRESS: WHAT; REMEDY". Unavailable where waiting may mend it, else FailedPrecondition.
  absl::Status ToStatus(const ProbeTarget& target) const;
};
Diagnosis Diagnose(const ProbeTarget& target, const Probed& probed);

// The device answered: whether we understand each other, and it is the one.
Diagnosis DiagnoseAnswer(const ProbeTarget& target, const std::string& name, uint32_t protocol, const std::string& release);
// It speaks gRPC, and does not know our question.
Diagnosis DiagnoseUnknownCall(const ProbeTarget& target, const std::optional<Hello>& hello);

// That ToStatus made the status of; of another one, kNone with its message.
Diagnosis DiagnosisOf(const absl::Status& status);

// A difference of clocks that people are told of, although nothing depends on it yet.
inline constexpr std::time_t kClockNotice = 120;
// "3 days behind this machine's", or "ahead of".
std::string FormatClockApart(std::time_t there, std::time_t here);

}  // namespace lime
