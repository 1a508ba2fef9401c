// A small linear program: minimise cost x with x >= 0, each row either a x <= b or a x = b, all b >= 0. Dense tableau, two phases.
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
  std::vector<double> multipliers;  // of the rows a x <= b: what one more b would save; 0 for the others
};

LinearSolution Minimise(const LinearProgram& program);

}  // namespace lime
