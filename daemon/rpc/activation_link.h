// The way of activations from this device to one other: a connection and a stream of their own, messages in order, payloads not copied.
//
// On the wire a message is the header of common/activation.h, then the payload as it lies in memory. The receiver answers when those
// have arrived that follow one another, or are large, which tells how fast the link is (daemon/logic/link_estimator.h). Messages that may
// wait are sent where nothing else is: the next once those before it were answered, or what is not would take the link a millisecond at
// most, so that another message waits for no more. Probes, where nothing at all waits, take what LinkEstimator says. Nothing else waits for
// an answer.
//
// Threads: any. Send returns at once; a message that the connection does not take yet waits in a bounded queue.
// A link that cannot be opened within its patience, breaks once it is open, or whose queue overflows is lost, and says so once. It is not
// mended: nobody knows whether the last messages came through, so the plan is installed anew.
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
  size_t queued_messages = 1024;         // at most
  Bytes queued_bytes = kMaxQueuedBytes;  // likewise
  bool probes = true;                    // where the link is idle, to know how fast it is
};
// Begins to connect. Nothing is called any more once the link is gone, which it never goes on a thread that `lost` was called on.
std::unique_ptr<Link> OpenActivationLink(ActivationLinkOptions options);

}  // namespace lime
