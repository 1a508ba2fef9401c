// Simulated clusters by seed (tests/sim/README.md).
//
//   lime_sim --seed S            replays one run and prints its transcript
//   lime_sim --count N [--from S] runs N seeds, and says what faults they met and which seeds failed
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "tests/sim/sim_cluster.h"

namespace lime {
namespace {

int Replay(uint64_t seed) {
  SimOptions options = SimRun(seed);
  options.traces = true;
  const SimResult result = RunSim(options);
  std::fputs(result.transcript.c_str(), stdout);
  if (result.violation.empty()) return 0;
  std::fprintf(stderr, "lime_sim: seed %llu: %s\n", static_cast<unsigned long long>(seed), result.violation.c_str());
  return 1;
}

int RunMany(uint64_t from, uint64_t count) {
  SimResult all;
  int64_t failed = 0, gave_up = 0, outlived = 0;
  for (uint64_t seed = from; seed < from + count; ++seed) {
    const SimResult result = RunSim(SimRun(seed));
    for (size_t f = 0; f < all.faults.size(); ++f) all.faults[f] += result.faults[f];
    all.tokens += result.tokens, all.steps += result.steps, all.recoveries += result.recoveries;
    all.plan_changes += result.plan_changes, all.taken_over += result.taken_over, all.not_taken_over += result.not_taken_over;
    all.kept += result.kept, all.continued += result.continued, all.copied += result.copied;
    gave_up += result.gave_up ? 1 : 0, outlived += result.outlived;
    if (result.violation.empty()) continue;
    ++failed;
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), result.violation.c_str());
  }
  std::printf(
      "%llu seeds, %lld failed; %lld tokens in %lld steps, %lld recoveries, %lld changes of plans with KV of %lld requests, %lld refused, "
      "%lld given "
      "up, %lld outlived; KV kept in %lld slots, %lld requests continued with it, %lld with a copy\n",
      static_cast<unsigned long long>(count), static_cast<long long>(failed), static_cast<long long>(all.tokens),
      static_cast<long long>(all.steps), static_cast<long long>(all.recoveries), static_cast<long long>(all.plan_changes),
      static_cast<long long>(all.taken_over), static_cast<long long>(all.not_taken_over), static_cast<long long>(gave_up),
      static_cast<long long>(outlived), static_cast<long long>(all.kept), static_cast<long long>(all.continued),
      static_cast<long long>(all.copied));
  for (int f = 0; f < kNumSimFaults; ++f)
    std::printf("  %-18s %lld\n", SimFaultName(static_cast<SimFault>(f)), static_cast<long long>(all.faults[static_cast<size_t>(f)]));
  return failed == 0 ? 0 : 1;
}

int Main(int argc, char** argv) {
  std::map<std::string, uint64_t> flags = {{"--seed", 0}, {"--from", 1}, {"--count", 0}};
  bool known = argc % 2 == 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    known = known && flags.contains(argv[i]);
    flags[argv[i]] = std::strtoull(argv[i + 1], nullptr, 10);
  }
  if (!known || (flags["--seed"] == 0) == (flags["--count"] == 0)) {
    std::fputs("usage: lime_sim --seed S | --count N [--from S]\n", stderr);
    return 2;
  }
  return flags["--seed"] > 0 ? Replay(flags["--seed"]) : RunMany(flags["--from"], flags["--count"]);
}

}  // namespace
}  // namespace lime

int main(int argc, char** argv) {
  return lime::Main(argc, argv);
}
