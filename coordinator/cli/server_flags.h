// The flags of `lime serve` that concern the server alone: addresses, keys, queues, logs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/http/access.h"
#include "common/http/http_server.h"
#include "common/input/command_line.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime::cli {

inline constexpr int kMostParallel = 16;  // sequences computed at once

// Flags after their checks.
struct ServerSettings {
  HttpServer::Options http;
  AllowedPlaces::Options places;
  std::vector<std::string> keys;  // empty: everybody may call
  absl::Duration max_wait, keep_alive, drain, pace;
  Bytes prompt_cache = 0;  // of KV kept for later requests; 0: none
};

struct ServerFlags {
  std::string host = "127.0.0.1";
  int port = 5463;
  std::vector<std::string> api_keys;
  std::string api_key_file;
  bool no_auth = false;
  std::string tls_cert, tls_key;
  std::vector<std::string> cors_origins, hostnames;
  int parallel = 4;
  int queue = 64;
  double max_wait_s = 600;
  std::string max_body = "16MiB";
  int max_connections = 512;
  double keep_alive_s = 10;
  double drain_s = 30;
  std::string prompt_cache = "on";
  double pace_ms = 0;
  bool log_json = false, log_prompts = false;
  std::string config;  // read with the flags

  void AddTo(const CommandFlags& command);
  // Refuses values out of range, and an address that others reach without a key. All errors are
  // wrong calls.
  absl::StatusOr<ServerSettings> Check() const;
  // The keys of the flags, of the file as it is now, and of LIME_API_KEY.
  absl::StatusOr<std::vector<std::string>> ReadKeys() const;

 private:
  absl::Status CheckAddress() const;
  absl::Status CheckPages() const;
};

}  // namespace lime::cli
