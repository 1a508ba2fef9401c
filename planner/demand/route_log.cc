#include "planner/demand/route_log.h"

#include <algorithm>
#include <utility>

#include "planner/base/check.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr std::string_view kRouteMagic = "LIMEROUT";
constexpr uint64_t kRouteVersion = 1;

void PutNumber(uint64_t value, std::string& bytes) {
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>((value & 0x7f) | 0x80));
  bytes.push_back(static_cast<char>(value));
}

// Reads numbers of a file. After the first error, all numbers are 0.
class NumberReader {
 public:
  NumberReader(std::string_view bytes, std::string_view name) : bytes_(bytes), name_(name) {}

  // From `least` to `most`. `what` names the number in errors.
  int64_t Next(std::string_view what, int64_t least, int64_t most) {
    const size_t begin = at_;
    uint64_t value = 0;
    for (int shift = 0; status_.ok(); shift += 7) {
      if (at_ == bytes_.size()) return Fail(what, begin, "the file ends within it");
      const uint64_t byte = static_cast<uint8_t>(bytes_[at_++]);
      value |= (byte & 0x7f) << shift;
      if (byte == 0 && shift > 0) return Fail(what, begin, "it is not in the fewest bytes");
      if (byte < 0x80) break;
      if (shift == 49) return Fail(what, begin, "it has more than 8 bytes");
    }
    if (!status_.ok()) return 0;
    if (static_cast<int64_t>(value) < least || static_cast<int64_t>(value) > most)
      return Fail(what, begin, absl::StrCat("it is ", value, ", not ", least, " to ", most));
    return static_cast<int64_t>(value);
  }

  std::string_view NextText(std::string_view what, size_t length) {
    if (!status_.ok()) return {};
    if (length > bytes_.size() - at_) {
      Fail(what, at_, "the file ends within it");
      return {};
    }
    at_ += length;
    return bytes_.substr(at_ - length, length);
  }

  int64_t Fail(std::string_view what, size_t at, std::string_view why) {
    status_ = Invalid(Text(name_), ": ", Text(what), " at byte ", at, " is wrong: ", Text(why), "; record the routes again");
    return 0;
  }

  size_t at() const { return at_; }
  size_t left() const { return bytes_.size() - at_; }
  std::string_view name() const { return name_; }
  const absl::Status& status() const { return status_; }

 private:
  const std::string_view bytes_, name_;
  size_t at_ = 0;
  absl::Status status_;
};

RouteShape ReadShape(NumberReader& reader) {
  RouteShape shape;
  shape.model = reader.NextText("the model's key", static_cast<size_t>(reader.Next("the key's length", 1, kMostRouteModelBytes)));
  shape.layers = static_cast<int32_t>(reader.Next("the number of layers", 1, kMostRouteLayers));
  shape.units = static_cast<int32_t>(reader.Next("the number of units", 1, kMostRouteUnits));
  shape.per_token = static_cast<int32_t>(reader.Next("per_token", 0, shape.units));
  return shape;
}

void ReadVisit(NumberReader& reader, int64_t step, int64_t& layer, std::vector<int32_t>& units, RouteLog& log) {
  const RouteShape& shape = log.shape();
  layer += 1 + reader.Next("a layer", 0, shape.layers - 2 - layer);
  const auto rows = static_cast<int32_t>(reader.Next("the rows of a visit", 1, kMostRouteRows));
  const int64_t count = reader.Next("the units of a visit", 1, shape.units);
  units.clear();
  for (int64_t i = 0, unit = -1; i < count && reader.status().ok(); ++i) {
    unit += 1 + reader.Next("a unit", 0, shape.units - 2 - unit);
    units.push_back(static_cast<int32_t>(unit));
  }
  if (!reader.status().ok()) return;
  if (const absl::Status added = log.Add(step, static_cast<int32_t>(layer), rows, units); !added.ok())
    reader.Fail("a visit", reader.at(), std::string(added.message()));
}

}  // namespace

absl::Status CheckRouteShape(const RouteShape& shape) {
  const auto printable = [](char c) { return c > ' ' && c <= '~'; };
  if (shape.model.empty() || shape.model.size() > kMostRouteModelBytes || !std::ranges::all_of(shape.model, printable))
    return Invalid("routes: the model's key must have 1 to ", kMostRouteModelBytes, " printable characters without spaces");
  if (shape.layers < 1 || shape.layers > kMostRouteLayers)
    return Invalid("routes: ", shape.layers, " layers, need 1 to ", kMostRouteLayers);
  if (shape.units < 1 || shape.units > kMostRouteUnits) return Invalid("routes: ", shape.units, " units, need 1 to ", kMostRouteUnits);
  if (int64_t{shape.layers} * shape.units > kMostRouteModelUnits)
    return Invalid("routes: ", shape.layers, " layers of ", shape.units, " units, together at most ", kMostRouteModelUnits);
  if (shape.per_token < 0 || shape.per_token > shape.units)
    return Invalid("routes: per_token ", shape.per_token, ", need 0 to the ", shape.units, " units");
  return absl::OkStatus();
}

absl::Status CheckAscending(std::span<const int32_t> chosen, int32_t units) {
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i] < 0 || chosen[i] >= units) return Invalid("unit ", chosen[i], " is chosen, but a layer has units 0 to ", units - 1);
    if (i > 0 && chosen[i] <= chosen[i - 1]) return Invalid("unit ", chosen[i], " follows unit ", chosen[i - 1], "; units must ascend");
  }
  return absl::OkStatus();
}

absl::Status CheckChosen(std::span<const int32_t> chosen, int32_t units) {
  if (chosen.empty()) return Invalid("no unit is chosen");
  return CheckAscending(chosen, units);
}

RouteLog::RouteLog(RouteShape shape) : shape_(std::move(shape)) {
  LIME_CHECK(CheckRouteShape(shape_).ok()) << CheckRouteShape(shape_).message();
}

absl::Status RouteLog::Add(int64_t step, int32_t layer, int32_t rows, std::span<const int32_t> units) {
  const bool first = step == num_steps();
  if (!first && step != num_steps() - 1) return Invalid("step ", step, " does not follow the ", num_steps(), " steps of the log");
  if (layer < 0 || layer >= shape_.layers) return Invalid("layer ", layer, " is not among the ", shape_.layers, " layers");
  if (!first && layer <= visits_.back().layer)
    return Invalid("layer ", layer, " follows layer ", visits_.back().layer, " in a step; layers must ascend");
  if (rows < 1 || rows > kMostRouteRows) return Invalid(rows, " rows, need 1 to ", kMostRouteRows);
  LIME_RETURN_IF_ERROR(CheckChosen(units, shape_.units));
  if (std::ssize(visits_) >= kMostRouteVisits || num_choices() + std::ssize(units) > kMostRouteChoices)
    return absl::ResourceExhaustedError(
        absl::StrCat("the log is full: it has ", visits_.size(), " visits and ", num_choices(), " units; record fewer steps"));
  if (first) steps_.push_back(std::ssize(visits_));
  visits_.push_back({.layer = layer, .rows = rows, .begin = num_choices(), .end = num_choices() + std::ssize(units)});
  units_.insert(units_.end(), units.begin(), units.end());
  return absl::OkStatus();
}

std::span<const RouteLog::Visit> RouteLog::visits_of(int64_t step) const {
  LIME_CHECK(step >= 0 && step < num_steps()) << step;
  const auto i = static_cast<size_t>(step);
  const int64_t end = step + 1 < num_steps() ? steps_[i + 1] : std::ssize(visits_);
  return std::span(visits_).subspan(static_cast<size_t>(steps_[i]), static_cast<size_t>(end - steps_[i]));
}

std::string EncodeRouteLog(const RouteLog& log) {
  const RouteShape& shape = log.shape();
  std::string bytes(kRouteMagic);
  const auto put = [&bytes](int64_t value) { PutNumber(static_cast<uint64_t>(value), bytes); };
  put(kRouteVersion), put(std::ssize(shape.model));
  bytes += shape.model;
  put(shape.layers), put(shape.units), put(shape.per_token), put(log.num_steps());
  for (int64_t step = 0; step < log.num_steps(); ++step) {
    const std::span<const RouteLog::Visit> visits = log.visits_of(step);
    put(std::ssize(visits));
    int32_t layer = -1;
    for (const RouteLog::Visit& visit : visits) {
      put(visit.layer - layer - 1), put(visit.rows), put(visit.end - visit.begin);
      layer = visit.layer;
      int32_t last = -1;
      for (const int32_t unit : log.units_of(visit)) put(unit - last - 1), last = unit;
    }
  }
  return bytes;
}

absl::StatusOr<RouteLog> ParseRouteLog(std::string_view bytes, std::string_view name) {
  if (std::ssize(bytes) > kMostRouteLogBytes)
    return Invalid(Text(name), ": ", bytes.size(), " bytes, a log has at most ", kMostRouteLogBytes, "; record fewer steps");
  if (!bytes.starts_with(kRouteMagic)) return Invalid(Text(name), ": is not a log of routes; it must begin with ", Text(kRouteMagic));
  NumberReader reader(bytes, name);
  reader.NextText("the first word", kRouteMagic.size());
  reader.Next("the version", kRouteVersion, kRouteVersion);
  const RouteShape shape = ReadShape(reader);
  // Every step has a byte, so the file's length bounds the number of steps.
  const int64_t steps = reader.Next("the number of steps", 0, static_cast<int64_t>(reader.left()));
  LIME_RETURN_IF_ERROR(reader.status());
  if (const absl::Status valid = CheckRouteShape(shape); !valid.ok()) return Invalid(Text(name), ": ", valid.message());
  RouteLog log(shape);
  std::vector<int32_t> units;
  for (int64_t step = 0; step < steps && reader.status().ok(); ++step) {
    const int64_t visits = reader.Next("the visits of a step", 1, shape.layers);
    for (int64_t i = 0, layer = -1; i < visits && reader.status().ok(); ++i) ReadVisit(reader, step, layer, units, log);
  }
  LIME_RETURN_IF_ERROR(reader.status());
  if (reader.left() > 0) return Invalid(Text(name), ": ", reader.left(), " bytes follow the last step; record the routes again");
  return log;
}

}  // namespace lime
