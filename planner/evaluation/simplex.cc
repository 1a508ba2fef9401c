#include "planner/evaluation/simplex.h"

#include <algorithm>
#include <cmath>

namespace lime {
namespace {

constexpr double kZero = 1e-9;

// Columns: the variables, then one slack per row (an artificial variable for an equation), then b.
// Below the rows are two objectives: the sum of the artificial variables, and the cost.
class Tableau {
 public:
  explicit Tableau(const LinearProgram& program)
      : program_(program),
        rows_(static_cast<int>(program.rows.size())),
        vars_(static_cast<int>(program.cost.size())),
        width_(vars_ + rows_ + 1),
        cells_(static_cast<size_t>(rows_ + 2) * width_),
        basis_(rows_) {
    for (int r = 0; r < rows_; ++r) {
      const LinearProgram::Row& row = program.rows[r];
      double scale = 0;
      for (const double a : row.a) scale = std::max(scale, std::abs(a));
      scales_.push_back(scale > 0 ? 1 / scale : 1);
      for (int v = 0; v < vars_; ++v) At(r, v) = row.a[v] * scales_[r];
      At(r, vars_ + r) = 1;
      At(r, width_ - 1) = row.b * scales_[r];
      basis_[r] = vars_ + r;
      if (!row.equal) continue;
      for (int c = 0; c < width_; ++c) At(rows_, c) -= c == vars_ + r ? 0 : At(r, c);
    }
    for (int v = 0; v < vars_; ++v) At(rows_ + 1, v) = program.cost[v];
  }

  LinearSolution Solve() {
    LinearSolution out;
    const bool feasible = Descend(rows_) && -At(rows_, width_ - 1) <= 1e-7 * (1 + MostB());
    out.optimal = feasible && Descend(rows_ + 1);
    out.x.assign(vars_, 0.0);
    for (int r = 0; r < rows_; ++r) {
      if (basis_[r] < vars_) out.x[basis_[r]] = At(r, width_ - 1);
      out.multipliers.push_back(program_.rows[r].equal ? 0 : At(rows_ + 1, vars_ + r) * scales_[r]);
    }
    return out;
  }

 private:
  double& At(int row, int column) { return cells_[static_cast<size_t>(row) * width_ + column]; }

  double MostB() {
    double most = 0;
    for (int r = 0; r < rows_; ++r) most = std::max(most, At(r, width_ - 1));
    return most;
  }

  bool MayEnter(int column) const { return column < vars_ || !program_.rows[column - vars_].equal; }

  // The column with the most negative reduced cost. After many steps the first one, which cannot
  // cycle.
  int Entering(int objective, bool first) {
    int best = -1;
    for (int c = 0; c + 1 < width_; ++c) {
      if (!MayEnter(c) || At(objective, c) >= -kZero) continue;
      if (best < 0 || At(objective, c) < At(objective, best)) best = c;
      if (first) return best;
    }
    return best;
  }

  int Leaving(int column) {
    int best = -1;
    double least = 0;
    for (int r = 0; r < rows_; ++r) {
      if (At(r, column) <= kZero) continue;
      const double ratio = At(r, width_ - 1) / At(r, column);
      if (best < 0 || ratio < least || (ratio == least && basis_[r] < basis_[best])) best = r, least = ratio;
    }
    return best;
  }

  void Pivot(int row, int column) {
    const double pivot = At(row, column);
    for (int c = 0; c < width_; ++c) At(row, c) /= pivot;
    for (int r = 0; r < rows_ + 2; ++r) {
      const double factor = At(r, column);
      if (r == row || factor == 0) continue;
      for (int c = 0; c < width_; ++c) At(r, c) -= factor * At(row, c);
    }
    basis_[row] = column;
  }

  bool Descend(int objective) {
    const int patience = 4 * rows_ + 200;
    for (int step = 0; step < 2 * patience; ++step) {
      const int column = Entering(objective, step > patience);
      if (column < 0) return true;
      const int row = Leaving(column);
      if (row < 0) return false;
      Pivot(row, column);
    }
    return false;
  }

  const LinearProgram& program_;
  int rows_, vars_, width_;
  std::vector<double> cells_;
  std::vector<int> basis_;
  std::vector<double> scales_;
};

}  // namespace

LinearSolution Minimise(const LinearProgram& program) {
  return Tableau(program).Solve();
}

}  // namespace lime
