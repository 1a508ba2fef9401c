// Makes routes by seed, as routers of published models choose: tests, the testbed, and the curve of
// a model whose routes were not recorded.
//
// A row chooses its units one after another, without repeating one. Each comes either from the
// layer's recently used units (with `recent` chance), the unit with r others used after it with a
// weight of 1 / (r / per_token + recent_flat)^2; or from favourites that never change, an order by
// seed, with a weight of 1 / (r / per_token + favourite_flat)^2.
//
// With 8 of 128 units, the defaults lie near what others have measured. Hits of LRU with 12 % of
// the units kept: 61 % (measured 53 to 67), with 25 %: 78 % (76 to 81); units of the token before:
// 45 % (43 with Qwen3-30B-A3B).
#pragma once

#include <cstdint>
#include <vector>

#include "planner/base/random.h"
#include "planner/base/status.h"
#include "planner/demand/hit_curve.h"
#include "planner/demand/route_log.h"

namespace lime {

struct RouteModelOptions {
  RouteShape shape;           // per_token is positive; all layers have units
  double recent = 0.9;        // chance of a recent unit, else a favourite; 0 to 1
  double recent_flat = 1;     // larger: less recency; 0.01 to 1e6
  double favourite_flat = 4;  // larger: more even favourites; 0.01 to 1e6
  uint64_t seed = 1;
};

class RouteModel {
 public:
  // InvalidArgument if a number is outside its bounds.
  static absl::StatusOr<RouteModel> Create(const RouteModelOptions& options);

  // Adds a step of `rows` rows, with a visit of every layer. Errors as of RouteLog::Add.
  // REQUIRES: `log` has the shape of this model.
  absl::Status AddStep(int32_t rows, RouteLog& log);

 private:
  explicit RouteModel(const RouteModelOptions& options);

  // Units of a layer: the last used one first, and the favourites in order.
  struct Layer {
    std::vector<int32_t> recent, favourites;
  };

  // Chooses the units of one row, and makes them the last used ones.
  void ChooseRow(Layer& layer);
  int32_t ChooseUnit(const Layer& layer);

  RouteModelOptions options_;
  Random random_;
  std::vector<Layer> layers_;
  std::vector<double> recent_sums_, favourite_sums_;  // of the weights up to each rank
  std::vector<bool> of_row_, of_visit_;               // units that are chosen
  std::vector<int32_t> row_, visit_;                  // they, in order
  size_t first_recent_ = 0, first_favourite_ = 0;     // ranks before them are of the row
};

// A log of `steps` steps of one row each.
absl::StatusOr<RouteLog> ModelRoutes(const RouteModelOptions& options, int64_t steps);

// The curve of a layer by the default model and LRU, from steps of one row.  InvalidArgument for
// numbers outside the bounds of a RouteShape, or per_token 0.
absl::StatusOr<HitCurve> DefaultHitCurve(int32_t units, int32_t per_token);

}  // namespace lime
