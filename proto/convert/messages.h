// Forward declarations of the messages, because generated headers take a second to compile.
#pragma once

namespace lime::v1 {

class HealthReply;
class HoldingsReply;
class HoldingsRequest;
class InspectReply;
class InspectRequest;
class InstallEvent;
class InstallRequest;
class KvPages;
class KvRequest;
class KvTakeoverPlan;
class ListStoreReply;
class OrderEvent;
class OrderRequest;
class ProbeLinkReply;
class ProbeLinkRequest;
class ProfileEvent;
class ProfileRequest;
class PushEvent;
class PushRequest;
class ReleaseReply;
class ReleaseRequest;
class StatisticsReply;
class TraceReply;
class TraceRequest;
class UnloadReply;
class UnloadRequest;
class WeightsDigest;

}  // namespace lime::v1
