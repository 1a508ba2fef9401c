#include "daemon/profile/cpu_usage.h"

#include <unistd.h>

#include <chrono>
#include <ctime>
#include <fstream>
#include <string>

namespace lime {
namespace {

double ProcessSeconds() {
  struct timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

CpuUsage ReadCpuUsage() {
  CpuUsage usage;
  usage.wall = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  usage.process = ProcessSeconds();
  // "cpu user nice system idle iowait irq softirq steal ...", in ticks; guests are counted in user.
  double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, irq = 0, softirq = 0, stolen = 0;
  std::string cpu;
  std::ifstream stat("/proc/stat");
  if (!(stat >> cpu >> user >> nice >> system >> idle >> waiting >> irq >> softirq >> stolen) || cpu != "cpu") return usage;
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  usage.busy = (user + nice + system + irq + softirq) / ticks;
  usage.stolen = stolen / ticks;
  return usage;
}

}  // namespace lime
