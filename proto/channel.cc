#include "proto/channel.h"

#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include "common/activation.h"

namespace lime {
namespace {

// HTTP/2 begins with a window of 64 KiB, and keeps it without the bandwidth probe. A prompt chunk
// needs megabytes.
constexpr int kWindowBytes = 8 << 20;
constexpr int kMaxFrameBytes = 1 << 20;
constexpr int kMaxControlBytes = 96 << 20;  // a plan and its message
constexpr int kMaxMessageBytes = static_cast<int>(kMaxActivationBytes) + 4096;

template <typename Arguments>
void SetTransport(Arguments set) {
  set(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // its pings delay the messages of a slow link
  set(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
  set(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kMaxFrameBytes);
}

}  // namespace

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const ClusterKeys& keys) {
  if (keys.empty()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = keys.authority;
  options.pem_key_cert_pairs.push_back({keys.key, keys.certificate});
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address, const std::string& device, const ClusterKeys& keys, ChannelUse use) {
  grpc::ChannelArguments arguments;
  SetTransport([&](const char* key, int value) { arguments.SetInt(key, value); });
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  arguments.SetMaxReceiveMessageSize(kMaxControlBytes);
  arguments.SetMaxSendMessageSize(use == ChannelUse::kControl ? kMaxControlBytes : kMaxMessageBytes);
  if (keys.empty()) return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  arguments.SetSslTargetNameOverride(device);
  const grpc::SslCredentialsOptions options{
      .pem_root_certs = keys.authority, .pem_private_key = keys.key, .pem_cert_chain = keys.certificate};
  return grpc::CreateCustomChannel(address, grpc::SslCredentials(options), arguments);
}

void SetServerOptions(grpc::ServerBuilder& builder) {
  SetTransport([&](const char* key, int value) { builder.AddChannelArgument(key, value); });
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a second daemon on the port is an error
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
}

}  // namespace lime
