// Neighbouring pieces of a model block put together as one, so that a search may begin with few blocks and cut them later.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/assignment.h"
#include "planner/plan/instance.h"

namespace lime {

// Every model block in at most `most_pieces` parts, of as many pieces each as can be: the first piece of every part, then the number of all
// pieces.
std::vector<int32_t> GroupPieces(const Instance& instance, int most_pieces);

// The instance whose blocks are those parts: bytes and computing added up, one read of the disk each. Nothing is said about other batches.
Instance PutTogether(const Instance& instance, const std::vector<int32_t>& begins);

// A plan of the parts as one of the pieces, and back: a part is on the device of its first piece, and streams where one of its pieces does.
Assignment ToPieces(const Assignment& parts, const std::vector<int32_t>& begins);
Assignment ToParts(const Assignment& pieces, const std::vector<int32_t>& begins);

}  // namespace lime
