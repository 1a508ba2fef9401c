// Converts between messages and our types. Only bulk_convert.h and kv_convert.h do the same for
// other messages.
//
// Input is untrusted. Every number, count and string is bounded here, and the error names the first
// wrong one. Code that knows the installed plan must check references to it, such as slots and
// stages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/device_news.h"
#include "common/device_report.h"
#include "common/install_call.h"
#include "common/limed_settings.h"
#include "common/order_message.h"
#include "planner/base/bytes.h"
#include "planner/base/finding.h"
#include "planner/base/status.h"
#include "planner/plan/device/device_profile.h"
#include "planner/plan/plan.h"
#include "proto/convert/kv_convert.h"
#include "proto/convert/messages.h"

namespace lime {

// Version of the protocol. Devices and coordinators with different versions refuse each other. It
// rises with each field of an order, since a device that skips one computes other tokens.
inline constexpr uint32_t kProtocol = 4;

inline constexpr int64_t kMaxWirePosition = int64_t{1} << 24;  // positions and tokens
inline constexpr int64_t kMaxWireSequences = int64_t{1} << 20;
inline constexpr int64_t kMaxWireRows = int64_t{1} << 17;  // per step
inline constexpr size_t kMaxWireAddress = 256;
inline constexpr size_t kMaxWirePath = 4096;
inline constexpr int64_t kMaxTraceSpans = int64_t{1} << 20;      // capacity of a device
inline constexpr int64_t kMaxWireTraceSpans = int64_t{1} << 13;  // per message: half a megabyte
inline constexpr double kMaxWireClockMs = 1e12;                  // thirty years

struct PlanUser {
  Coordinator coordinator;
  std::string address;  // the caller's address
  double seconds = 0;   // since it installed the plan

  // "ann@box (192.168.1.9:41234)", without unknown parts.
  std::string Name() const;
  // The same, followed by ", for 12m".
  std::string Who() const;
  friend bool operator==(const PlanUser&, const PlanUser&) = default;
};

// A person has removed the coordinator's plan from the device (`lime unload --force`). The
// coordinator then cannot install another plan and does not try. No other error has this code.
inline constexpr absl::StatusCode kRevoked = absl::StatusCode::kUnauthenticated;

// Converts gRPC's name of a peer, "ipv4:1.2.3.4:5", to an address.
std::string PeerAddress(std::string_view peer);

struct DeviceHealth {
  std::string name;
  uint32_t protocol = kProtocol;
  int64_t epoch = -1;  // of the plan that is installed or being installed
  int64_t last_epoch = 0;
  Bytes memory = 0;                        // limit for the process; 0: unknown
  Bytes runtime = 0;                       // used while no plan is installed; 0: unknown
  std::string model;                       // of the plan, for people; empty: none
  std::optional<PlanUser> used_by;         // user of the plan; nullopt: nobody
  std::optional<DaemonSettings> settings;  // nullopt: from an earlier release without this field
  std::string release;                     // of its program; empty: unknown
  int64_t clock = 0;                       // of its machine: seconds since 1970; 0: unknown
  // When its keys expire, according to the connection; 0: it has none. Not a field of the message.
  int64_t keys_until = 0;

  friend bool operator==(const DeviceHealth&, const DeviceHealth&) = default;
};
void ToProto(const DeviceHealth& health, v1::HealthReply& message);
absl::StatusOr<DeviceHealth> FromProto(const v1::HealthReply& message);

// For people: unloads any plan.
struct ReleaseCall {
  bool force = false;  // also while a coordinator uses it
  Coordinator by;
  friend bool operator==(const ReleaseCall&, const ReleaseCall&) = default;
};
void ToProto(const ReleaseCall& call, v1::ReleaseRequest& message);
absl::StatusOr<ReleaseCall> FromProto(const v1::ReleaseRequest& message);

struct ReleasedPlan {
  int64_t epoch = -1;  // of the plan that was here; -1: none
  std::string model;
  std::optional<PlanUser> used_by;  // before the release
  friend bool operator==(const ReleasedPlan&, const ReleasedPlan&) = default;
};
void ToProto(const ReleasedPlan& released, v1::ReleaseReply& message);
absl::StatusOr<ReleasedPlan> FromProto(const v1::ReleaseReply& message);

void ToProto(const WeightsDigest& digest, v1::WeightsDigest& message);
// In the result, every block has a possible kind and layer.
absl::StatusOr<WeightsDigest> FromProto(const v1::WeightsDigest& message);

void ToProto(const InstallCall& call, v1::InstallRequest& message);
// In the result, the plan is valid and has this device.
absl::StatusOr<InstallCall> FromProto(const v1::InstallRequest& message);

struct LoadedBytes {
  Bytes done = 0, total = 0;
  friend bool operator==(const LoadedBytes&, const LoadedBytes&) = default;
};
using InstallNews = std::variant<LoadedBytes, InstalledPlan>;
void ToProto(const InstallNews& news, v1::InstallEvent& message);
absl::StatusOr<InstallNews> FromProto(const v1::InstallEvent& message);
void ToProto(const DeviceStatistics& statistics, v1::StatisticsReply& message);
absl::StatusOr<DeviceStatistics> FromProto(const v1::StatisticsReply& message);

// ---- Tracing

void ToProto(const TraceCall& call, v1::TraceRequest& message);
absl::StatusOr<TraceCall> FromProto(const v1::TraceRequest& message);

void ToProto(const TraceChunk& chunk, v1::TraceReply& message);
// Stages, parts and peers are not checked; the caller knows the plan.
absl::StatusOr<TraceChunk> FromProto(const v1::TraceReply& message);

// ---- Measuring

inline constexpr double kMaxProfileSeconds = 600;
inline constexpr Bytes kMaxWireConfigBytes = 4 * kMiB;
inline constexpr Bytes kMaxProbeBytes = 4 * kGiB;

struct ProfileCall {
  std::string weights;  // folder on the device; empty: its own
  // config.json of the model, for a device without its weights; empty: none.
  std::string config;
  double seconds = 5;  // for the disk; twice as much for blocks, half for the rest

  friend bool operator==(const ProfileCall&, const ProfileCall&) = default;
};
void ToProto(const ProfileCall& call, v1::ProfileRequest& message);
absl::StatusOr<ProfileCall> FromProto(const v1::ProfileRequest& message);

struct ProfileProgress {
  std::string what;  // the current measurement, for people
  double share = 0;  // finished share of the whole
  friend bool operator==(const ProfileProgress&, const ProfileProgress&) = default;
};
struct MeasuredDevice {
  DeviceProfile profile;
  Bytes runtime = 0;        // used by the process while no plan is installed
  Bytes memory = 0;         // available to a plan
  std::string numerics_id;  // of the kernels that compute the model
  // Why its disk was not measured, for people. Empty: it was, or the model is small enough not to
  // need it.
  std::string disk_problem;
  friend bool operator==(const MeasuredDevice&, const MeasuredDevice&) = default;
};
using ProfileNews = std::variant<ProfileProgress, MeasuredDevice>;
void ToProto(const ProfileNews& news, v1::ProfileEvent& message);
absl::StatusOr<ProfileNews> FromProto(const v1::ProfileEvent& message);

// A request to measure the link to a peer.
struct LinkProbe {
  std::string peer, address;
  double seconds = 1;       // approximate duration
  Bytes most = 256 * kMiB;  // limit for the bytes sent
  friend bool operator==(const LinkProbe&, const LinkProbe&) = default;
};
void ToProto(const LinkProbe& probe, v1::ProbeLinkRequest& message);
absl::StatusOr<LinkProbe> FromProto(const v1::ProbeLinkRequest& message);

struct MeasuredLink {
  double bytes_per_second = 0;
  double latency_ms = 0;  // one way
  friend bool operator==(const MeasuredLink&, const MeasuredLink&) = default;
};
void ToProto(const MeasuredLink& link, v1::ProbeLinkReply& message);
absl::StatusOr<MeasuredLink> FromProto(const v1::ProbeLinkReply& message);

// ---- Inspecting, for `lime doctor`

inline constexpr double kMaxInspectSeconds = 10;

struct InspectCall {
  std::string weights;  // folder on the device; empty: the one from its start
  double seconds = 0;   // limit for measuring its disk; 0: not measured
};
void ToProto(const InspectCall& call, v1::InspectRequest& message);
absl::StatusOr<InspectCall> FromProto(const v1::InspectRequest& message);

// At most 64 findings of at most 1,024 bytes each. Longer ones are cut when sent.
void ToProto(const std::vector<Finding>& findings, v1::InspectReply& message);
absl::StatusOr<std::vector<Finding>> FromProto(const v1::InspectReply& message);

// ---- From the coordinator

inline constexpr int32_t kMostScoreTop = 1000;
inline constexpr int64_t kMostHashState = 1024;  // LogitsHash::kMostStateBytes

inline constexpr Bytes kMaxVocabularyPart = 64 * kKiB;
inline constexpr Bytes kMaxWireVocabulary = 64 * kMiB;

struct OpenOrders {
  int64_t epoch = 0;
  uint64_t vocabulary = 0;  // digest of the vocabulary's bytes; 0: no request will need it
  friend bool operator==(const OpenOrders&, const OpenOrders&) = default;
};
// A part of the vocabulary's bytes (VocabularyBytes). Parts come in their order.
struct VocabularyPart {
  Bytes total = 0;  // of the whole
  std::string data;
  friend bool operator==(const VocabularyPart&, const VocabularyPart&) = default;
};
using FromCoordinator = std::variant<OpenOrders, OrderMessage, Alive, VocabularyPart>;
void ToProto(const FromCoordinator& what, v1::OrderRequest& message);
absl::StatusOr<FromCoordinator> FromProto(const v1::OrderRequest& message);

// ---- From a device

void ToProto(const FromDevice& what, v1::OrderEvent& message);
absl::StatusOr<FromDevice> FromProto(const v1::OrderEvent& message);

}  // namespace lime
