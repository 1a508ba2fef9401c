#include "planner/search/part_groups.h"

#include <algorithm>

namespace lime {
namespace {

std::vector<double> Summed(const std::vector<double>& each, const std::vector<int32_t>& begins) {
  std::vector<double> out(begins.size() - 1, 0.0);
  for (size_t p = 0; p + 1 < begins.size(); ++p) {
    for (int b = begins[p]; b < begins[p + 1]; ++b) out[p] += each[b];
  }
  return out;
}

}  // namespace

std::vector<int32_t> GroupParts(const Instance& instance, int most_groups) {
  std::vector<int32_t> begins;
  const int blocks = instance.NumBlocks();
  for (int lo = 0, hi = 0; lo < blocks; lo = hi) {
    hi = lo + 1;
    while (hi < blocks && instance.ContinuesBlock(hi)) ++hi;
    const int parts = std::min(most_groups, hi - lo);
    for (int part = 0; part < parts; ++part) begins.push_back(lo + static_cast<int32_t>(int64_t{hi - lo} * part / parts));
  }
  begins.push_back(blocks);
  return begins;
}

Instance PutTogether(const Instance& instance, const std::vector<int32_t>& begins) {
  Instance out = instance;
  out.blocks.clear();
  for (size_t p = 0; p + 1 < begins.size(); ++p) {
    Instance::Block block = instance.blocks[begins[p]];
    for (int b = begins[p] + 1; b < begins[p + 1]; ++b) {
      block.mb += instance.blocks[b].mb;
      block.kv_mb += instance.blocks[b].kv_mb;
    }
    out.blocks.push_back(block);
  }
  for (Instance::Device& device : out.devices) {
    device.comp_ms = Summed(device.comp_ms, begins);
    device.comp_ms_by_batch.clear();
  }
  out.net.tx_ms_by_batch.clear();
  return out;
}

Assignment ToParts(const Assignment& parts, const std::vector<int32_t>& begins) {
  Assignment out = {.embedding_by_rows = parts.embedding_by_rows};
  for (size_t p = 0; p + 1 < begins.size(); ++p) {
    out.device.resize(begins[p + 1], parts.device[p]);
    out.streamed.resize(begins[p + 1], parts.streamed[p]);
  }
  return out;
}

Assignment ToGroups(const Assignment& parts, const std::vector<int32_t>& begins) {
  Assignment out = {.embedding_by_rows = parts.embedding_by_rows};
  for (size_t p = 0; p + 1 < begins.size(); ++p) {
    out.device.push_back(parts.device[begins[p]]);
    out.streamed.push_back(*std::max_element(parts.streamed.begin() + begins[p], parts.streamed.begin() + begins[p + 1]));
  }
  return out;
}

}  // namespace lime
