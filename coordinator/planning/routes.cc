#include "coordinator/planning/routes.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/command.h"
#include "daemon/machine/files.h"
#include "planner/plan/device/device_profile.h"

namespace lime {
namespace {

using cli::OfUser;

constexpr size_t kShownKeyBytes = 200;

// FNV-1a: the key of a model may be longer than that of a log.
uint64_t HashOfKey(std::string_view key) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

// Its begin, and a hash of all.
std::string RouteKey(const ModelSpec& spec) {
  const std::string key = ModelKey(spec);
  std::string shown = key.substr(0, kShownKeyBytes);
  for (char& c : shown) c = c > ' ' && c <= '~' ? c : '_';
  return absl::StrCat(shown, "#", absl::Hex(HashOfKey(key), absl::kZeroPad16));
}

absl::StatusOr<RouteShape> RouteShapeOf(const ModelSpec& spec, const std::string& model) {
  if (!spec.config.experts) return Invalid(model, " has no experts, so it has no routes; leave out --routes");
  RouteShape shape{.model = RouteKey(spec),
                   .layers = static_cast<int32_t>(spec.config.num_layers()),
                   .units = static_cast<int32_t>(spec.config.experts->count),
                   .per_token = static_cast<int32_t>(spec.config.experts->per_token)};
  LIME_RETURN_IF_ERROR(CheckRouteShape(shape));
  return shape;
}

absl::StatusOr<RouteCurve> ReadRoutes(const std::string& path, const ModelSpec& spec, const std::string& model) {
  LIME_ASSIGN_OR_RETURN(const RouteShape shape, OfUser(RouteShapeOf(spec, model)));
  LIME_ASSIGN_OR_RETURN(const std::string bytes, OfUser(ReadNamedText(path, kMostRouteLogBytes)));
  LIME_ASSIGN_OR_RETURN(const RouteLog log, OfUser(ParseRouteLog(bytes, path)));
  if (log.shape() != shape) {
    return OfUser(Invalid(path, ": has the routes of another model, ", log.shape().model, ", not of ", model, ", which is ", shape.model,
                          "; record them with `lime trace --routes`"));
  }
  return OfUser(CurveOfRoutes(log, path));
}

void UseRoutes(const RouteCurve& routes, PlanRequest& request) {
  request.unit_hits = routes.hits;
  request.unit_policies = routes.policies;
}

}  // namespace lime
