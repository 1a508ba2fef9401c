// Solves a small linear program: minimise cost x with x >= 0. Each row is a x <= b or a x = b, all
// b >= 0. Dense tableau, two phases.
#pragma once

#include <vector>

namespace lime {

struct LinearProgram {
  struct Row {
    std::vector<double> a;  // by variable
    double b = 0;
    bool equal = false;
  };
  std::vector<double> cost;
  std::vector<Row> rows;
};

struct LinearSolution {
  bool optimal = false;  // false: infeasible, unbounded, or given up
  std::vector<double> x;
  // For rows a x <= b: the saving per unit of b; 0 for the others.
  std::vector<double> multipliers;
};

LinearSolution Minimise(const LinearProgram& program);

}  // namespace lime
