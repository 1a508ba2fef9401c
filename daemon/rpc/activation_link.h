// Sends activations from this device to one other device. A link has its own connection and stream;
// messages arrive in order, and payloads are not copied.
//
// On the wire a message is the header of common/activation.h, then the payload as it lies in
// memory. The receiver answers consecutive messages and large messages with their arrival times,
// which show how fast the link is (daemon/logic/rates/link_estimator.h).
// - Messages that may wait are sent only while no other message waits. The next one goes once
//   earlier ones are answered, or if the unanswered bytes take the link at most a millisecond. So
//   another message waits for one of them at most, or for a millisecond.
// - Probes are sent only while no message waits at all, as LinkEstimator decides.
// - No other message waits for an answer.
//
// Threads: any. Send returns at once; a message that the connection cannot take yet waits in a
// bounded queue. A link is lost if it cannot be opened within its patience, breaks after that, or
// its queue overflows. It reports this once and is not repaired: nobody can tell whether the last
// messages arrived, so the plan is installed again.
#pragma once

#include <memory>

#include "absl/time/time.h"
#include "common/activation.h"
#include "daemon/stage/transport.h"
#include "proto/channel.h"

namespace lime {

struct ActivationLinkOptions {
  Transport::LinkOptions link;
  ClusterKeys keys;
  absl::Duration patience = absl::Seconds(2);
  size_t queued_messages = 1024;         // upper bounds of the queue
  Bytes queued_bytes = kMaxQueuedBytes;  // the same
  bool probes = true;                    // measure the rate of an idle link with probes
};
// Starts to connect. Makes no call after the link is destroyed. REQUIRES: the link is not destroyed
// on a thread that is inside a call of `lost`.
std::unique_ptr<Link> OpenActivationLink(ActivationLinkOptions options);

}  // namespace lime
