#include "daemon/profile/measure_rates.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>
#include <vector>

#include "common/steady_clock.h"
#include "daemon/profile/limits.h"
#include "kernels/cpu/linear/linear.h"
#include "planner/base/median.h"

namespace lime {
namespace {

constexpr double kQuickSeconds = 0.05;
// Bytes of a quick look: enough to tell memory from cache, and less than computing takes.
constexpr Bytes kLeastQuickBytes = 16 * kMiB, kMostQuickBytes = 128 * kMiB;

std::string CpuName() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos) return line.substr(line.find(": ") + 2);
  }
  return "unknown";
}

double ReadRate(cpu::ThreadPool& pool, const bench::HugeMemory& memory) {
  return static_cast<double>(memory.bytes()) / bench::ReadSeconds(pool, memory.data(), memory.bytes());
}

// Bytes of a quick look; 0 if there would be too few.
Bytes QuickBytes(Bytes room) {
  const Bytes bytes = std::min(kMostQuickBytes, room / 2 / kMiB * kMiB);
  return bytes >= kLeastQuickBytes ? bytes : 0;
}

double MemoryRate(int threads, Bytes bytes, double seconds) {
  cpu::ThreadPool pool(threads);
  const bench::HugeMemory memory(bytes);
  std::vector<double> rates;
  const double start = SteadyMs();
  while (SteadyMs() - start < 1000 * seconds || rates.size() < 3) rates.push_back(ReadRate(pool, memory));
  return Median(rates);
}

}  // namespace

DeviceProfile EmptyProfile(int threads) {
  DeviceProfile profile;
  profile.cpu = CpuName();
  profile.instruction_set = cpu::InstructionSet();
  profile.threads = threads;
  return profile;
}

void MeasureRates(double seconds, Bytes bytes, DeviceProfile& profile) {
  cpu::ThreadPool pool(static_cast<int>(profile.threads));
  const bench::HugeMemory memory(bytes);
  std::vector<double> rates, flops;
  const double start = SteadyMs();
  while (SteadyMs() - start < 1000 * seconds || rates.size() < 3) {
    rates.push_back(ReadRate(pool, memory));
    flops.push_back(bench::MultiplyAddRate(pool));
  }
  profile.read_bytes_per_second = Median(rates);
  profile.flops = Median(flops);
}

double MeasureMemory(int threads, Bytes room) {
  const Bytes bytes = QuickBytes(room);
  return bytes > 0 ? MemoryRate(threads, bytes, kQuickSeconds) : 0;
}

double MeasureMemoryApart(int threads, Bytes room) {
  int ends[2];
  if (QuickBytes(room) == 0 || pipe(ends) != 0) return 0;
  const pid_t child = fork();
  if (child == 0) {
    const double rate = MeasureMemory(threads, room);
    // Without flushing or closing anything of the parent.
    _exit(write(ends[1], &rate, sizeof(rate)) == sizeof(rate) ? 0 : 1);
  }
  close(ends[1]);
  double rate = 0;
  if (child < 0 || read(ends[0], &rate, sizeof(rate)) != sizeof(rate)) rate = 0;
  close(ends[0]);
  while (child > 0 && waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return rate;
}

}  // namespace lime
