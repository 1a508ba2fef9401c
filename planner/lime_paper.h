// Algorithm 1 of the paper, minimally corrected: strategy `lime-paper`.
#pragma once

#include "planner/plan_search.h"

namespace lime {

// Every device takes the whole layers it holds; S - 1 of S layers that share a slot are what offloading gains; the slots are shared out so
// that the slowest disk is fastest; halves of layers go back to where there is room. Every S, and the best order of the devices (all of up
// to five). The exact evaluation judges. Infeasible where the algorithm finds nothing.
FoundPlan PlanLimePaper(const Instance& instance, SearchBudget& budget);

}  // namespace lime
