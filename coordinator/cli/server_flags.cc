#include "coordinator/cli/server_flags.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/input/host_port.h"
#include "coordinator/cli/command.h"
#include "daemon/machine/files.h"

namespace lime::cli {
namespace {

constexpr double kMaxSeconds = 86400;
constexpr double kMaxPaceMs = 60'000;
constexpr double kLeastKeepAlive = 0.01;
constexpr Bytes kLeastBody = kKiB, kMostBody = kGiB, kMaxKeyFile = kMiB;
constexpr size_t kMaxKeyBytes = 1024;

template <typename T>
absl::Status CheckRange(const char* flag, T value, T low, T high, const char* unit = "") {
  if (value >= low && value <= high) return absl::OkStatus();
  return WrongCall(absl::StrCat(flag, " ", value, " is outside ", low, " to ", high, unit));
}

// `said`: what names the key, which is not printed.
absl::Status CheckKeyText(const std::string& said, const std::string& key) {
  const bool plain = std::ranges::all_of(key, [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
  if (!key.empty() && plain && key.size() <= kMaxKeyBytes) return absl::OkStatus();
  return WrongCall(absl::StrCat(said, ": a key is 1 to ", kMaxKeyBytes, " visible characters of ASCII"));
}

absl::StatusOr<Bytes> ParseCache(const std::string& value) {
  if (value == "on") return std::numeric_limits<Bytes>::max();
  if (value == "off") return Bytes{0};
  absl::StatusOr<Bytes> bytes = ParseBytes(value);
  if (!bytes.ok()) return WrongCall(absl::StrCat("--prompt-cache ", AsTyped(value), " is neither on, off nor a size such as 2GiB"));
  return bytes;
}

}  // namespace

void ServerFlags::AddTo(const CommandFlags& command) {
  command.Add("--host", &host, "Address to listen on, or a name of this machine; other machines need one that they can reach").Shown();
  command.Add("--port", &port, "Port to listen on; 0: any free one").Shown();
  command.Add("--api-key", &api_keys, "A key that clients send; may be given several times; other users of this machine can see it")
      .Repeats();
  command.Add("--api-key-file", &api_key_file, "File of keys, one a line; read again on SIGHUP. The variable LIME_API_KEY is one key more");
  command.Add("--no-auth", &no_auth, "Let anyone who reaches the address use the server");
  command.Add("--tls-cert", &tls_cert, "PEM file of the certificate, and those that lead to its authority; read again on SIGHUP");
  command.Add("--tls-key", &tls_key, "PEM file of the certificate's key");
  command
      .Add("--cors-origin", &cors_origins,
           "Origin of pages that may call the server, such as https://chat.example.org; * for any; may be given several times. Pages "
           "of this machine always may")
      .Repeats();
  command.Add("--hostname", &hostnames, "A further name by which clients reach the server; may be given several times").Repeats();
  command.Add("--parallel", &parallel, "Sequences computed at once: 1 to 16").Shown();
  command.Add("--queue", &queue, "Requests that wait beside those that run; more are refused").Shown();
  command.Add("--max-wait", &max_wait_s, "Seconds that a request waits for its turn").Shown();
  command.Add("--max-body", &max_body, "Longest body of a request").Shown();
  command.Add("--max-connections", &max_connections, "Open connections; more wait in the system's backlog").Shown();
  command.Add("--keep-alive", &keep_alive_s, "Seconds of silence after which an answer shows a sign of life").Shown();
  command.Add("--drain", &drain_s, "Seconds that running requests have after SIGTERM").Shown();
  command.Add("--prompt-cache", &prompt_cache, "Use KV of earlier requests with the same beginning: on, off, or a bound such as 2GiB")
      .Shown();
  command.Add("--pace", &pace_ms, "Milliseconds that a step takes at least, to test clients");
  command.Add("--log-json", &log_json, "Log JSON objects instead of words, one line a request");
  command.Add("--log-prompts", &log_prompts, "Log the bodies of requests, too");
  command.Add("--config", &config, "TOML file with these flags as fields, without the leading dashes; a flag overrides its field");
}

absl::Status ServerFlags::CheckAddress() const {
  LIME_RETURN_IF_ERROR(CheckRange("--port", port, 0, 65535));
  if (tls_cert.empty() != tls_key.empty())
    return WrongCall(absl::StrCat(tls_cert.empty() ? "--tls-key" : "--tls-cert", " is given without ",
                                  tls_cert.empty() ? "--tls-cert" : "--tls-key", "; give both, or none"));
  const bool has_keys = !api_keys.empty() || !api_key_file.empty() || std::getenv("LIME_API_KEY") != nullptr;
  if (no_auth && has_keys) return WrongCall("--no-auth lets anyone in, but there is a key; leave one of them out");
  if (has_keys || no_auth || IsLoopback(HostPort{.host = host, .port = port})) return absl::OkStatus();
  return WrongCall(absl::StrCat("--host ", AsTyped(host),
                                " can be reached from other machines: give --api-key-file FILE with the keys of your clients, or --no-auth "
                                "to let anyone in"));
}

absl::Status ServerFlags::CheckPages() const {
  for (const std::string& origin : cors_origins) {
    const size_t scheme = origin.find("://");
    const bool usable = scheme != std::string::npos && ParseAuthority(std::string_view(origin).substr(scheme + 3)).has_value();
    if (origin != "*" && !usable)
      return WrongCall(absl::StrCat("--cors-origin ", AsTyped(origin), " is no origin; give one such as https://chat.example.org, or *"));
  }
  for (const std::string& hostname : hostnames) {
    const auto authority = ParseAuthority(hostname);
    if (!authority || !authority->port.empty())
      return WrongCall(
          absl::StrCat("--hostname ", AsTyped(hostname), " is no name of a host; give one such as lime.example.org, without a port"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ServerFlags::ReadKeys() const {
  std::vector<std::string> keys = api_keys;
  for (const std::string& key : api_keys) LIME_RETURN_IF_ERROR(CheckKeyText("--api-key", key));
  if (const char* const variable = std::getenv("LIME_API_KEY"); variable != nullptr) {
    LIME_RETURN_IF_ERROR(CheckKeyText("LIME_API_KEY", variable));
    keys.emplace_back(variable);
  }
  if (api_key_file.empty()) return keys;
  const absl::StatusOr<std::string> text = ReadNamedText(api_key_file, kMaxKeyFile);
  if (!text.ok()) return WrongCall(absl::StrCat("--api-key-file ", text.status().message()));
  const std::vector<std::string> read = ParseApiKeys(*text);
  for (size_t i = 0; i < read.size(); ++i)
    LIME_RETURN_IF_ERROR(CheckKeyText(absl::StrCat("--api-key-file ", api_key_file, ", key ", i + 1), read[i]));
  if (read.empty()) return WrongCall(absl::StrCat("--api-key-file ", api_key_file, " holds no key; write one a line"));
  keys.insert(keys.end(), read.begin(), read.end());
  return keys;
}

absl::StatusOr<ServerSettings> ServerFlags::Check() const {
  LIME_RETURN_IF_ERROR(CheckAddress());
  LIME_RETURN_IF_ERROR(CheckPages());
  LIME_RETURN_IF_ERROR(CheckRange("--parallel", parallel, 1, kMostParallel));
  LIME_RETURN_IF_ERROR(CheckRange("--queue", queue, 0, 65536));
  LIME_RETURN_IF_ERROR(CheckRange("--max-wait", max_wait_s, 0.0, kMaxSeconds, " s"));
  LIME_RETURN_IF_ERROR(CheckRange("--max-connections", max_connections, 1, 65536));
  LIME_RETURN_IF_ERROR(CheckRange("--keep-alive", keep_alive_s, kLeastKeepAlive, kMaxSeconds, " s"));
  LIME_RETURN_IF_ERROR(CheckRange("--drain", drain_s, 0.0, kMaxSeconds, " s"));
  LIME_RETURN_IF_ERROR(CheckRange("--pace", pace_ms, 0.0, kMaxPaceMs, " ms"));
  const absl::StatusOr<Bytes> body = ParseBytes(max_body);
  if (!body.ok()) return WrongCall(absl::StrCat("--max-body: ", body.status().message()));
  if (*body < kLeastBody || *body > kMostBody)
    return WrongCall(absl::StrCat("--max-body ", max_body, " is outside ", FormatBytes(kLeastBody), " to ", FormatBytes(kMostBody)));
  ServerSettings settings;
  LIME_ASSIGN_OR_RETURN(settings.prompt_cache, ParseCache(prompt_cache));
  LIME_ASSIGN_OR_RETURN(settings.keys, ReadKeys());
  settings.http.host = host;
  settings.http.port = port;
  settings.http.max_connections = max_connections;
  settings.http.limits.request.body_bytes = *body;
  if (!tls_cert.empty()) settings.http.tls = TlsFiles{.certificate = tls_cert, .key = tls_key};
  settings.places = {.bound_host = host, .hostnames = hostnames, .origins = cors_origins};
  settings.max_wait = absl::Seconds(max_wait_s);
  settings.keep_alive = absl::Seconds(keep_alive_s);
  settings.drain = absl::Seconds(drain_s);
  settings.pace = absl::Milliseconds(pace_ms);
  return settings;
}

}  // namespace lime::cli
