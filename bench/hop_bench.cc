// What a hop from one daemon to another costs: messages there and back between two processes on
// loopback, a core for each, over the links that activations take. Prints one JSON object.

#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "coordinator/rpc/cluster_client.h"
#include "daemon/rpc/device_server.h"
#include "nlohmann/json.hpp"
#include "tests/daemon/rpc/fake_cluster.h"

namespace {

using Clock = std::chrono::steady_clock;

// Sends back what it gets, or tells that it is there.
class EchoStage final : public lime::StageEngine {
 public:
  explicit EchoStage(lime::StageSetup setup) : setup_(std::move(setup)) {}

  absl::Status OnOrder(const lime::Order&) override { return absl::OkStatus(); }
  absl::Status OnActivation(lime::ActivationMessage message) override {
    if (setup_.device == 1) {
      message.header.stage = 1;
      setup_.peers.send(0, std::move(message));
      return absl::OkStatus();
    }
    absl::MutexLock lock(&mutex_);
    came_back_ = true;
    return absl::OkStatus();
  }
  lime::DeviceStatistics stats() const override { return {}; }
  std::string numerics_id() const override { return "echo"; }

  double RoundTripMicroseconds(int64_t bytes) {
    lime::ActivationMessage message{.header = {.epoch = setup_.plan.epoch, .bytes = bytes},
                                    .payload = std::vector<std::byte>(static_cast<size_t>(bytes))};
    const Clock::time_point begin = Clock::now();
    setup_.peers.send(1, std::move(message));
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&came_back_));
    came_back_ = false;
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  }

 private:
  const lime::StageSetup setup_;
  absl::Mutex mutex_;
  bool came_back_ ABSL_GUARDED_BY(mutex_) = false;
};

void PinTo(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  (void)sched_setaffinity(0, sizeof(cores), &cores);
}

std::unique_ptr<lime::DeviceServer> StartDevice(const std::string& name, EchoStage** stage) {
  lime::DeviceServer::Options options = lime::FakeDevice(name);
  options.plans.make_stage = [stage](lime::StageSetup setup) -> absl::StatusOr<std::unique_ptr<lime::StageEngine>> {
    auto made = std::make_unique<EchoStage>(std::move(setup));
    *stage = made.get();
    return made;
  };
  auto server = lime::DeviceServer::Start(options);
  if (!server.ok()) std::fprintf(stderr, "hop_bench: %s\n", std::string(server.status().message()).c_str()), std::exit(1);
  return *std::move(server);
}

// The second device, in a process of its own, until the first ends.
[[noreturn]] void ServeForEver(int pipe) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  PinTo(1);
  EchoStage* stage = nullptr;
  const auto server = StartDevice("b", &stage);
  const int port = server->port();
  if (write(pipe, &port, sizeof(port)) != sizeof(port)) std::exit(1);
  while (true) pause();
}

}  // namespace

int main(int argc, char** argv) try {
  int64_t bytes = 4096;
  int messages = 10000;
  double pause_ms = 0;
  int64_t read_mb = 0;
  CLI::App app("Measures the cost of a hop between two daemons");
  app.add_option("--bytes", bytes, "Bytes of a message")->capture_default_str();
  app.add_option("--messages", messages, "Messages in each direction")->capture_default_str();
  app.add_option("--pause-ms", pause_ms, "Milliseconds that both devices sleep before each message, as between two tokens")
      ->capture_default_str();
  app.add_option("--read-mb", read_mb,
                 "Megabytes that the first device reads then, as computing does, so that its caches hold nothing else")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  int ends[2] = {};
  if (pipe(ends) != 0) return 1;
  const pid_t child = fork();  // before gRPC has any thread
  if (child == 0) ServeForEver(ends[1]);
  int port = 0;
  if (read(ends[0], &port, sizeof(port)) != sizeof(port)) return 1;
  PinTo(0);
  EchoStage* stage = nullptr;
  const auto server = StartDevice("a", &stage);
  const auto client = lime::ClusterClient::Connect({.devices = {{.name = "a", .address = absl::StrCat("127.0.0.1:", server->port())},
                                                                {.name = "b", .address = absl::StrCat("127.0.0.1:", port)}}});
  absl::Status status = client.status();
  if (status.ok()) status = (*client)->Install(lime::MakeStages({0, 1}, 1, 1), {});
  if (status.ok()) status = (*client)->Open([](int32_t, const lime::FromDevice&) {});
  if (!status.ok()) return std::fprintf(stderr, "hop_bench: %s\n", std::string(status.message()).c_str()), 1;

  for (int i = 0; i < 200; ++i) (void)stage->RoundTripMicroseconds(bytes);
  std::vector<double> hops;
  const std::vector<uint64_t> memory(static_cast<size_t>(read_mb) * 1'000'000 / sizeof(uint64_t), 1);
  uint64_t sum = 0;
  for (int i = 0; i < messages; ++i) {
    if (pause_ms > 0) std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(pause_ms));
    sum += std::accumulate(memory.begin(), memory.end(), uint64_t{0});
    hops.push_back(stage->RoundTripMicroseconds(bytes) / 2);
  }
  if (sum != memory.size() * static_cast<uint64_t>(messages)) return 1;  // so that it is read
  std::ranges::sort(hops);
  const auto quantile = [&](double q) { return hops[static_cast<size_t>(q * static_cast<double>(hops.size() - 1))]; };
  const nlohmann::ordered_json answer = {{"bytes", bytes},
                                         {"messages", messages},
                                         {"pause_ms", pause_ms},
                                         {"read_mb", read_mb},
                                         {"hop_us_median", quantile(0.5)},
                                         {"hop_us_p10", quantile(0.1)},
                                         {"hop_us_p90", quantile(0.9)},
                                         {"hop_us_p99", quantile(0.99)}};
  std::puts(answer.dump().c_str());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "hop_bench: %s\n", error.what());
  return 1;
}
