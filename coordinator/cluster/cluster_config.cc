#include "coordinator/cluster/cluster_config.h"

#include <algorithm>
#include <exception>
#include <set>
#include <stdexcept>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/cluster/remote_command.h"
#include "coordinator/cluster/units.h"
#include "planner/base/strings.h"
#include "planner/plan/limits.h"

// The parser asserts what hostile text can break ("[[[a]]"), and takes it for granted where NDEBUG is set. Here it throws instead, in every
// build, and ParseToml() catches. Its depth is ours to bound, see CheckShape().
[[noreturn]] static void RefuseToml() {
  throw std::logic_error("the text cannot be read");
}
#undef NDEBUG
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 1
#define TOML_MAX_NESTED_VALUES 16
#define TOML_ASSERT(expr) ((expr) ? static_cast<void>(0) : RefuseToml())
#include "toml++/toml.h"

namespace lime {
namespace {

constexpr size_t kMaxStringBytes = 4096;
constexpr std::ptrdiff_t kMaxDotsPerLine = 64;

template <typename... What>
absl::Status Wrong(std::string_view file, int64_t line, const What&... what) {
  return absl::InvalidArgumentError(absl::StrCat(Text(file), " line ", line, ": ", what...));
}

std::string Shown(std::string_view text) {
  return absl::CHexEscape(Text(text.substr(0, 80)));
}

int64_t LineOf(const toml::node& node) {
  return static_cast<int64_t>(node.source().begin.line);
}

// The parser makes a table for every dot of a key and frees them by recursion, so their number in a line is bounded; values in values are
// bounded by TOML_MAX_NESTED_VALUES.
absl::Status CheckShape(std::string_view text, std::string_view file) {
  if (static_cast<Bytes>(text.size()) > kMaxClusterBytes)
    return absl::InvalidArgumentError(
        absl::StrCat(Text(file), ": is longer than ", FormatBytes(kMaxClusterBytes), "; this is no cluster file"));
  for (int64_t line = 1; !text.empty(); ++line) {
    const std::string_view row = text.substr(0, text.find('\n'));
    if (std::count(row.begin(), row.end(), '.') > kMaxDotsPerLine) return Wrong(file, line, "has more than ", kMaxDotsPerLine, " dots");
    text.remove_prefix(std::min(text.size(), row.size() + 1));
  }
  return absl::OkStatus();
}

// Behind the string of one line that begins there; of one that does not end, behind the line.
size_t EndOfString(std::string_view text, size_t begin) {
  for (size_t i = begin + 1; i < text.size(); ++i) {
    if (text[i] == '\n') return i;
    if (text[i] == text[begin]) return i + 1;
    if (text[i] == '\\' && text[begin] == '"') ++i;
  }
  return text.size();
}

// The parser's answer whether a letter beyond ASCII is white space is undefined, so where it would ask there is none: letters stand in
// comments and in strings of one line. Where a string begins within a word the parser sees none.
absl::Status CheckLetters(std::string_view text, std::string_view file) {
  constexpr std::string_view kBeforeString = " \t\r\n=,.[{";
  int64_t line = 1;
  const size_t begin = text.starts_with("\xEF\xBB\xBF") ? 3 : 0;
  for (size_t i = begin, end = i; i < text.size(); i = end) {
    const char c = text[i];
    if (!absl::ascii_isascii(static_cast<unsigned char>(c)))
      return Wrong(file, line, "is no TOML: a letter beyond ASCII stands outside quotes: \"", Shown(text.substr(i, 4)), "\"");
    const bool quote = c == '"' || c == '\'';
    if (quote && text.substr(i).starts_with(std::string(3, c)))
      return Wrong(file, line, "a string in three quotes has no place here; write one of one line");
    if (quote && i > begin && kBeforeString.find(text[i - 1]) == std::string_view::npos)
      return Wrong(file, line, "is no TOML: a quote stands within a word: \"", Shown(text.substr(i - 1, 20)), "\"");
    end = c == '#' ? std::min(text.find('\n', i), text.size()) : quote ? EndOfString(text, i) : i + 1;
    if (c == '\n') ++line;
  }
  return absl::OkStatus();
}

absl::StatusOr<toml::table> ParseToml(std::string_view text, std::string_view file) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    return Wrong(file, static_cast<int64_t>(error.source().begin.line), "is no TOML: ", Shown(error.description()));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(Text(file), ": is no TOML: ", Shown(error.what())));
  }
}

// Typed, bounded access to the fields of one table; the first wrong one is kept, and later reads return their defaults.
class TableFields {
 public:
  // `table` and `file` outlive this. `what` names the table in errors: [cluster].
  TableFields(const toml::table& table, std::string_view file, std::string what) : table_(table), file_(file), what_(std::move(what)) {}

  int64_t line() const { return LineOf(table_); }

  std::string String(const char* key) {
    const toml::node* const node = Take(key);
    if (node == nullptr) return {};
    const toml::value<std::string>* const value = node->as_string();
    if (value == nullptr) return Fail(*node, key, "is not a string"), std::string();
    const std::string& text = value->get();
    if (text.size() > kMaxStringBytes) return Fail(*node, key, absl::StrCat("is longer than ", kMaxStringBytes, " bytes")), std::string();
    if (std::ranges::any_of(text, [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); }))
      return Fail(*node, key, "holds control characters"), std::string();
    return text;
  }

  int64_t Int(const char* key, int64_t low, int64_t high) {
    const toml::node* const node = Take(key);
    if (node == nullptr) return low;
    const toml::value<int64_t>* const value = node->as_integer();
    if (value == nullptr) return Fail(*node, key, "is not a whole number"), low;
    if (value->get() < low || value->get() > high)
      return Fail(*node, key, absl::StrCat("= ", value->get(), " is outside ", low, " to ", high)), low;
    return value->get();
  }

  // A string that `parse` reads.
  template <typename T>
  T Parsed(const char* key, absl::StatusOr<T> (*parse)(std::string_view), T low, T high) {
    const std::string text = String(key);
    const toml::node* const node = table_.get(key);
    if (node == nullptr || !error_.ok()) return T{};
    const absl::StatusOr<T> value = parse(text);
    if (!value.ok()) return Fail(*node, key, absl::StrCat(": ", value.status().message())), T{};
    if (!(*value >= low && *value <= high)) return Fail(*node, key, absl::StrCat("= ", Shown(text), " is out of range")), T{};
    return *value;
  }

  bool Has(const char* key) const { return table_.get(key) != nullptr; }

  void FailAt(const char* key, const std::string& problem) { Fail(*table_.get(key), key, problem); }

  void Missing(const char* key, std::string_view advice) {
    if (error_.ok()) error_ = Wrong(file_, line(), what_, ": field \"", key, "\" is missing; ", Text(advice));
  }

  // After all fields were read: the first error, or the first field that nobody asked for.
  absl::Status Finish() {
    LIME_RETURN_IF_ERROR(error_);
    for (const auto& [key, node] : table_) {
      if (!taken_.contains(std::string(key.str())))
        return Wrong(file_, LineOf(node), what_, ": field \"", Shown(key.str()), "\" is unknown; there are ", absl::StrJoin(taken_, ", "));
    }
    return absl::OkStatus();
  }

 private:
  const toml::node* Take(const char* key) {
    taken_.insert(key);
    return error_.ok() ? table_.get(key) : nullptr;
  }
  void Fail(const toml::node& node, const char* key, const std::string& problem) {
    if (!error_.ok()) return;
    error_ = Wrong(file_, LineOf(node), what_, ": field \"", key, problem.starts_with(':') ? "\"" : "\" ", problem);
  }

  const toml::table& table_;
  const std::string_view file_;
  const std::string what_;
  std::set<std::string> taken_;
  absl::Status error_;
};

bool IsAddress(std::string_view address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string_view::npos || colon == 0 || address.find(' ') != std::string_view::npos) return false;
  const std::string_view host = address.substr(0, colon);
  if (host.find(':') != std::string_view::npos && !(host.front() == '[' && host.back() == ']')) return false;
  return absl::SimpleAtoi(Text(address.substr(colon + 1)), &port) && port >= 1 && port <= 65535;
}

Bytes ReadMemory(TableFields& fields, const toml::table& table) {
  const toml::node* const node = table.get("memory");
  if (node != nullptr && node->is_integer()) return fields.Int("memory", 1, kMaxDeviceMemory);
  return fields.Parsed<Bytes>("memory", ParseBytes, 1, kMaxDeviceMemory);
}

absl::StatusOr<ClusterConfig::Device> ReadDevice(const toml::table& table, std::string_view file) {
  TableFields fields(table, file, "[[device]]");
  ClusterConfig::Device device;
  device.line = static_cast<int>(fields.line());
  device.name = fields.String("name");
  device.address = fields.String("address");
  device.memory = ReadMemory(fields, table);
  device.weights = fields.String("weights");
  device.store = fields.String("store");
  device.threads = static_cast<int32_t>(fields.Int("threads", 0, 1024));
  const std::string backend = fields.String("backend");
  device.profile = fields.String("profile");
  device.ssh = fields.String("ssh");
  device.limed = fields.String("limed");
  device.tls = fields.String("tls");
  device.listen = fields.String("listen");
  LIME_RETURN_IF_ERROR(fields.Finish());
  if (!fields.Has("name"))
    fields.Missing("name", "every device has one of its own");
  else if (!IsDeviceName(device.name))
    fields.FailAt("name", absl::StrCat("= \"", Shown(device.name), "\" is not ", Text(kDeviceNameRule)));
  else if (fields.Has("address") && !IsAddress(device.address))
    fields.FailAt("address", absl::StrCat("= \"", Shown(device.address), "\" is not host:port"));
  else if (fields.Has("listen") && !IsAddress(device.listen))
    fields.FailAt("listen", absl::StrCat("= \"", Shown(device.listen), "\" is not host:port"));
  else if (fields.Has("ssh") && !IsSshTarget(device.ssh))
    fields.FailAt("ssh", absl::StrCat("= \"", Shown(device.ssh), "\" is not ", kSshTargetRule));
  else if (fields.Has("backend") && backend != "cpu" && backend != "cuda" && backend != "mps")
    fields.FailAt("backend", absl::StrCat("= \"", Shown(backend), "\" is none of cpu, cuda and mps"));
  if (fields.Has("backend")) device.backend = backend;
  LIME_RETURN_IF_ERROR(fields.Finish());
  return device;
}

absl::StatusOr<ClusterConfig::Link> ReadLink(const toml::table& table, std::string_view file) {
  TableFields fields(table, file, "[[link]]");
  ClusterConfig::Link link;
  link.from = fields.String("from");
  link.to = fields.String("to");
  link.bytes_per_second = fields.Parsed<double>("bandwidth", ParseBandwidth, 1, kMaxBytesPerSecond);
  link.latency_ms = fields.Parsed<double>("latency", ParseMilliseconds, 0, kMaxLatencyMs);
  LIME_RETURN_IF_ERROR(fields.Finish());
  if (!fields.Has("bandwidth")) fields.Missing("bandwidth", "write one such as \"100Mbit/s\"");
  if (fields.Has("from") != fields.Has("to"))
    fields.Missing(fields.Has("from") ? "to" : "from", "name both ends, or none for all other pairs");
  LIME_RETURN_IF_ERROR(fields.Finish());
  return link;
}

// The tables of [[key]], or null with a status.
absl::StatusOr<std::vector<const toml::table*>> Tables(const toml::table& root, const char* key, size_t max, std::string_view file) {
  std::vector<const toml::table*> tables;
  const toml::node* const node = root.get(key);
  if (node == nullptr) return tables;
  const toml::array* const array = node->as_array();
  if (array == nullptr) return Wrong(file, LineOf(*node), "\"", key, "\" is one table or value; write [[", key, "]]");
  if (array->size() > max) return Wrong(file, LineOf(*node), "has ", array->size(), " [[", key, "]], more than ", max);
  for (const toml::node& element : *array) {
    if (!element.is_table()) return Wrong(file, LineOf(element), "\"", key, "\" holds what is no table; write [[", key, "]]");
    tables.push_back(element.as_table());
  }
  return tables;
}

absl::Status ReadDevices(const toml::table& root, std::string_view file, ClusterConfig& config) {
  LIME_ASSIGN_OR_RETURN(const std::vector<const toml::table*> tables, Tables(root, "device", kMaxPlanDevices, file));
  if (tables.empty()) return absl::InvalidArgumentError(absl::StrCat(Text(file), ": has no [[device]]; write one for each device"));
  std::set<std::string> names;
  for (const toml::table* const table : tables) {
    LIME_ASSIGN_OR_RETURN(ClusterConfig::Device device, ReadDevice(*table, file));
    if (!names.insert(device.name).second)
      return Wrong(file, device.line, "[[device]]: there is a device \"", device.name, "\" already; give each a name of its own");
    config.devices.push_back(std::move(device));
  }
  return absl::OkStatus();
}

absl::Status ReadLinks(const toml::table& root, std::string_view file, ClusterConfig& config) {
  LIME_ASSIGN_OR_RETURN(const std::vector<const toml::table*> tables, Tables(root, "link", kMaxLinks, file));
  std::set<std::string> names;
  for (const ClusterConfig::Device& device : config.devices) names.insert(device.name);
  std::set<std::pair<std::string, std::string>> pairs;
  for (const toml::table* const table : tables) {
    LIME_ASSIGN_OR_RETURN(ClusterConfig::Link link, ReadLink(*table, file));
    for (const std::string& end : {link.from, link.to}) {
      if (!end.empty() && !names.contains(end)) return Wrong(file, LineOf(*table), "[[link]]: there is no device \"", Shown(end), "\"");
    }
    if (!link.from.empty() && link.from == link.to)
      return Wrong(file, LineOf(*table), "[[link]]: leads from \"", link.from, "\" to itself");
    if (!pairs.insert(std::minmax(link.from, link.to)).second)
      return Wrong(file, LineOf(*table), "[[link]]: ", link.from.empty() ? "there is one for all pairs" : "these two have one", " already");
    config.links.push_back(std::move(link));
  }
  return absl::OkStatus();
}

absl::Status ReadCluster(const toml::table& root, std::string_view file, ClusterConfig& config) {
  const toml::node* const node = root.get("cluster");
  if (node == nullptr) return absl::OkStatus();
  if (!node->is_table()) return Wrong(file, LineOf(*node), "\"cluster\" is no table; write [cluster] once");
  TableFields fields(*node->as_table(), file, "[cluster]");
  config.name = fields.String("name");
  config.model = fields.String("model");
  config.tls = fields.String("tls");
  return fields.Finish();
}

}  // namespace

bool IsDeviceName(std::string_view name) {
  constexpr size_t kMaxNameBytes = 64;
  return !name.empty() && name.size() <= kMaxNameBytes && std::ranges::all_of(name, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
}

absl::StatusOr<ClusterConfig> ParseClusterConfig(std::string_view text, std::string_view name) {
  LIME_RETURN_IF_ERROR(CheckShape(text, name));
  LIME_RETURN_IF_ERROR(CheckLetters(text, name));
  LIME_ASSIGN_OR_RETURN(const toml::table root, ParseToml(text, name));
  for (const auto& [key, node] : root) {
    if (key.str() != "cluster" && key.str() != "device" && key.str() != "link")
      return Wrong(name, LineOf(node), "\"", Shown(key.str()), "\" is unknown; there are [cluster], [[device]] and [[link]]");
  }
  ClusterConfig config;
  LIME_RETURN_IF_ERROR(ReadCluster(root, name, config));
  LIME_RETURN_IF_ERROR(ReadDevices(root, name, config));
  LIME_RETURN_IF_ERROR(ReadLinks(root, name, config));
  return config;
}

}  // namespace lime
