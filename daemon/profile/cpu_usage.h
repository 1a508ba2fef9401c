// Measures how busy the CPUs were while something ran, and with what. Linux; zeros elsewhere.
#pragma once

namespace lime {

// Seconds since some start, summed over CPUs.
struct CpuUsage {
  double wall = 0;     // of the clock, not summed
  double process = 0;  // of all threads of this process
  double busy = 0;     // of all processes of this machine, kernel and interrupts included
  double stolen = 0;   // given to others by the hypervisor

  CpuUsage& operator+=(const CpuUsage& more) {
    wall += more.wall, process += more.process, busy += more.busy, stolen += more.stolen;
    return *this;
  }
  CpuUsage operator-(const CpuUsage& before) const {
    return {wall - before.wall, process - before.process, busy - before.busy, stolen - before.stolen};
  }
};

// A few system calls: not for the token path.
CpuUsage ReadCpuUsage();

}  // namespace lime
