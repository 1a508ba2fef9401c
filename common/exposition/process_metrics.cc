#include "common/exposition/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <system_error>

namespace lime {
namespace {

double CpuSeconds() {
  rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0;
  if (!(file >> all >> resident)) return 0;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

// One of them is the open folder itself.
double OpenFiles() {
  std::error_code error;
  int64_t files = 0;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end; !error && entry != end; entry.increment(error)) ++files;
  return error ? 0 : static_cast<double>(files - 1);
}

// The 22nd field, in ticks since the machine started. The second one may have blanks and brackets.
double StartSeconds() {
  std::ifstream process("/proc/self/stat"), machine("/proc/stat");
  std::string text, word;
  if (!std::getline(process, text) || text.rfind(')') == std::string::npos) return 0;
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  double ticks = 0, booted = 0;
  for (int field = 3; field < 22; ++field) fields >> word;
  while (machine >> word && word != "btime") machine.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  if (!(fields >> ticks) || !(machine >> booted)) return 0;
  return booted + ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

MetricFamilies ProcessMetrics() {
  return {CounterFamily("process_cpu_seconds_total", "User and system time of this process, in seconds.", {{.value = CpuSeconds()}}),
          GaugeFamily("process_resident_memory_bytes", "Resident memory of this process, in bytes.", {{.value = ResidentBytes()}}),
          GaugeFamily("process_open_fds", "Open file descriptors of this process.", {{.value = OpenFiles()}}),
          GaugeFamily("process_start_time_seconds", "When this process started, in seconds since 1970.", {{.value = StartSeconds()}})};
}

}  // namespace lime
