// Load to first token: opening a checkpoint, bringing its weights into memory, and one pass over
// every byte of them, by loader and by state of the page cache. The pass stands for the first
// token, since a mapped page that is not there yet costs at first use.
//
// Every measurement is a process of its own, so that its peak memory is its own. Each round
// measures every loader, six rounds in all the orders there are, and the disk beside them; medians
// are printed, and the median of each round's ratio to the loader that is better by its median.
// Memory that a virtual machine has given back to its host is slow when it is touched again, so a
// process touches as much as the weights take before each measurement: what loads finds the same
// memory, whatever came before it.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/machine/huge_buffer.h"
#include "daemon/weights/weight_store.h"
#include "planner/base/median.h"
#include "testbed/make_model/make_model.h"
#include "tests/daemon/weights/drop_from_page_cache.h"

namespace lime {
namespace {

using Clock = std::chrono::steady_clock;

struct Flags {
  std::vector<std::string> sizes = {"100MB", "1GB"};
  std::string folder = std::filesystem::temp_directory_path().string();
  std::string json;
  int rounds = 6;
  int threads = 2;
  bool keep = false;
  bool warm_only = false;
  bool cold_only = false;
};

constexpr std::array kLoaders = {LoaderKind::kMmap, LoaderKind::kRead, LoaderKind::kAuto};

struct Sample {
  double load_s = 0;        // Open and LoadAll
  double first_pass_s = 0;  // one pass over the weights
  double later_pass_s = 0;  // another
  Bytes weights = 0;
  Bytes peak_rss = 0;  // over that of the empty process
  LoaderKind used = LoaderKind::kAuto;
  double total_s() const { return load_s + first_pass_s; }
};

// Sums the block's words on one core: memory speed, no arithmetic worth the name.
uint64_t SumWords(const std::byte* data, Bytes bytes) {
  uint64_t sums[8] = {};
  const auto* words = reinterpret_cast<const uint64_t*>(data);
  for (Bytes i = 0; i + 8 <= bytes / 8; i += 8) {
    for (Bytes lane = 0; lane < 8; ++lane) sums[lane] += words[i + lane];
  }
  uint64_t sum = 0;
  for (const uint64_t lane : sums) sum += lane;
  return sum;
}

// Every tensor once, its halves (or more parts) on different threads as kernels would have them.
double PassSeconds(const std::vector<LoadedBlock>& blocks, int threads) {
  const auto begin = Clock::now();
  std::vector<std::thread> workers;
  workers.reserve(static_cast<size_t>(threads));
  std::atomic<uint64_t> sum = 0;
  for (int part = 0; part < threads; ++part) {
    workers.emplace_back([&, part] {
      uint64_t mine = 0;
      const std::byte* tied = nullptr;
      for (const LoadedBlock& block : blocks) {
        for (const LoadedTensor& tensor : block.tensors) {
          if (tensor.role == TensorRole::kTokenEmbedding) tied = tensor.data;
          if (tensor.role == TensorRole::kOutput && tensor.data == tied) continue;
          const Bytes from = tensor.bytes * part / threads / 8 * 8, to = tensor.bytes * (part + 1) / threads / 8 * 8;
          mine += SumWords(tensor.data + from, to - from);
        }
      }
      sum += mine;
    });
  }
  for (std::thread& worker : workers) worker.join();
  if (sum == 1) std::puts("");  // the sums are used
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Bytes PeakRss() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    Bytes kib = 0;
    if (std::sscanf(line.c_str(), "VmHWM: %ld kB", &kib) == 1) return kib * kKiB;
  }
  return 0;
}

absl::StatusOr<Sample> Measure(const std::string& dir, LoaderKind kind, int threads) {
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(dir));
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, checkpoint.BuildModelSpec());
  Sample sample{.weights = spec.WeightBytes()};
  const Bytes rss = PeakRss();
  const auto begin = Clock::now();
  LIME_ASSIGN_OR_RETURN(const auto store, WeightStore::Open(checkpoint, spec, {.loader = kind}));
  LIME_ASSIGN_OR_RETURN(const auto blocks, store->LoadAll());
  sample.used = store->choice().kind;
  sample.load_s = std::chrono::duration<double>(Clock::now() - begin).count();
  sample.first_pass_s = PassSeconds(blocks, threads);
  sample.later_pass_s = PassSeconds(blocks, threads);
  sample.peak_rss = PeakRss() - rss;
  return sample;
}

// Measures in a child process, which hands the sample back through a pipe.
absl::StatusOr<Sample> MeasureApart(const std::string& dir, LoaderKind kind, int threads) {
  int ends[2];
  if (::pipe(ends) != 0) return absl::UnavailableError("cannot make a pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    const absl::StatusOr<Sample> sample = Measure(dir, kind, threads);
    if (!sample.ok()) std::fprintf(stderr, "%s\n", sample.status().ToString().c_str());
    const bool sent = sample.ok() && ::write(ends[1], &*sample, sizeof(Sample)) == sizeof(Sample);
    ::_exit(sent ? 0 : 1);
  }
  ::close(ends[1]);
  Sample sample;
  const bool got = ::read(ends[0], &sample, sizeof(sample)) == sizeof(sample);
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  if (!got) return absl::UnavailableError("the measuring process failed");
  return sample;
}

// The disk's own rate: `threads` sequential streams past the page cache into memory that is there,
// over up to 512 MiB of the first file.
absl::StatusOr<double> DiskBytesPerSecond(const std::string& dir, int threads) {
  constexpr Bytes kRead = 4 * kMiB, kMost = 512 * kMiB;
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(dir));
  const CheckpointFile& file = checkpoint.files().front();
  const FileDescriptor descriptor(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
  if (!descriptor.valid()) return ErrnoStatus(errno, file.path, "open past the page cache");
  LIME_ASSIGN_OR_RETURN(HugeBuffer memory, HugeBuffer::Allocate(kRead * threads));
  LIME_RETURN_IF_ERROR(memory.Prefault());
  const Bytes reads = std::min(file.bytes, kMost) / kRead;
  std::atomic<Bytes> next = 0, got = 0;
  const auto begin = Clock::now();
  std::vector<std::thread> workers;
  workers.reserve(static_cast<size_t>(threads));
  for (int thread = 0; thread < threads; ++thread) {
    workers.emplace_back([&, mine = memory.data() + thread * kRead] {
      for (Bytes i = next++; i < reads; i = next++) got += std::max<ssize_t>(0, ::pread(descriptor.get(), mine, kRead, i * kRead));
    });
  }
  for (std::thread& worker : workers) worker.join();
  return static_cast<double>(got) / std::chrono::duration<double>(Clock::now() - begin).count();
}

// Writes to so much memory, and gives it back.
absl::Status TouchMemory(Bytes bytes) {
  LIME_ASSIGN_OR_RETURN(HugeBuffer memory, HugeBuffer::Allocate(bytes));
  return memory.Prefault();
}

absl::Status SetCache(const std::string& dir, bool warm) {
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(dir));
  std::vector<char> buffer(static_cast<size_t>(4 * kMiB));
  for (const CheckpointFile& file : checkpoint.files()) {
    if (!warm) LIME_RETURN_IF_ERROR(DropFromPageCache(file.path));
    std::ifstream in(file.path, std::ios::binary);
    while (warm && in.read(buffer.data(), static_cast<std::streamsize>(buffer.size()))) {
    }
  }
  return absl::OkStatus();
}

// A Llama of about `bytes` of bf16 weights in blocks of a usual shape.
MakeModelOptions ModelOfSize(Bytes bytes) {
  MakeModelOptions options{.tokenizer = false};
  ModelShape& config = options.config;
  config.hidden_size = bytes < 512 * kMiB ? 1024 : 2048;
  config.num_heads = 16;
  config.num_kv_heads = 4;
  config.intermediate_size = 4 * config.hidden_size;
  config.vocab_size = 8192;
  config.tie_embeddings = true;
  const Bytes layer = 2 * config.hidden_size * config.hidden_size * 29 / 2;  // q and o, k and v of a quarter, three of four times
  config.num_layers = std::max<int64_t>(1, (bytes - 2 * config.vocab_size * config.hidden_size + layer / 2) / layer);
  return options;
}

nlohmann::json Summary(const std::vector<Sample>& samples) {
  const auto median = [&](auto value) {
    std::vector<double> values;
    values.reserve(samples.size());
    for (const Sample& sample : samples) values.push_back(static_cast<double>(value(sample)));
    return Median(values);
  };
  return {{"load_s", median([](const Sample& s) { return s.load_s; })},
          {"first_pass_s", median([](const Sample& s) { return s.first_pass_s; })},
          {"total_s", median([](const Sample& s) { return s.total_s(); })},
          {"later_pass_s", median([](const Sample& s) { return s.later_pass_s; })},
          {"weight_bytes", samples.front().weights},
          {"peak_rss_bytes", median([](const Sample& s) { return s.peak_rss; })}};
}

using Samples = std::map<LoaderKind, std::vector<Sample>>;

// What the automatic choice costs: the time of the loader that each of its rounds took over that of
// the better one, by the medians of all rounds that took them, asked or chosen. Two runs of one
// loader differ by more than two loaders at times, and this does not count that.
double ChoiceCost(const Samples& samples) {
  std::map<LoaderKind, std::vector<double>> by_used;
  for (const auto& [asked, rounds] : samples) {
    for (const Sample& sample : rounds) by_used[sample.used].push_back(sample.total_s());
  }
  const double best = std::min(Median(by_used[LoaderKind::kMmap]), Median(by_used[LoaderKind::kRead]));
  double sum = 0;
  for (const Sample& sample : samples.at(LoaderKind::kAuto)) sum += Median(by_used[sample.used]) / best;
  return sum / static_cast<double>(samples.at(LoaderKind::kAuto).size());
}

// Median over the rounds of `kind`'s time over that of `other`.
double RoundRatio(const Samples& samples, LoaderKind kind, LoaderKind other) {
  std::vector<double> ratios;
  for (size_t i = 0; i < samples.at(kind).size(); ++i) ratios.push_back(samples.at(kind)[i].total_s() / samples.at(other)[i].total_s());
  return Median(ratios);
}

// The loaders of one round: its number's permutation.
std::array<LoaderKind, kLoaders.size()> OrderOf(int round) {
  std::array order = kLoaders;
  std::ranges::sort(order);
  for (int i = 0; i < round % 6; ++i) std::ranges::next_permutation(order);
  return order;
}

absl::Status MeasureRounds(const std::string& dir, bool warm, const Flags& flags, Samples& samples, std::vector<double>& disk) {
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, LoadModelSpec(dir));
  for (int round = 0; round < flags.rounds; ++round) {
    for (const LoaderKind kind : OrderOf(round)) {
      LIME_RETURN_IF_ERROR(SetCache(dir, warm));
      LIME_RETURN_IF_ERROR(TouchMemory(spec.WeightBytes()));
      LIME_ASSIGN_OR_RETURN(samples[kind].emplace_back(), MeasureApart(dir, kind, flags.threads));
    }
    if (warm) continue;
    LIME_ASSIGN_OR_RETURN(disk.emplace_back(), DiskBytesPerSecond(dir, flags.threads));
  }
  return absl::OkStatus();
}

void Print(const nlohmann::json& row) {
  const auto number = [&](const char* field) { return row[field].get<double>(); };
  const std::string disk = row.contains("disk_bytes_per_s") ? absl::StrFormat("%8.2f", number("disk_bytes_per_s") / 1e9) : "       -";
  absl::PrintF("%10s  %-4s  %-4s  %-6s  %8.3f  %8.3f  %8.3f  %6.2f  %8.2f  %8.2f  %s  %9.2f  %6.2f\n",
               FormatBytes(row["weight_bytes"].get<Bytes>()), row["cache"].get<std::string>(), row["loader"].get<std::string>(),
               row["used"].get<std::string>(), number("load_s"), number("first_pass_s"), number("total_s"), number("over_best"),
               number("over_best_by_round"), number("weight_bytes") / number("total_s") / 1e9, disk,
               number("weight_bytes") / number("later_pass_s") / 1e9, number("rss_over_weights"));
  std::fflush(stdout);
}

// Which loader the rounds used: its name, with the share of rounds where they differ.
std::string Used(const std::vector<Sample>& samples) {
  const auto mapped = std::count_if(samples.begin(), samples.end(), [](const Sample& s) { return s.used == LoaderKind::kMmap; });
  const auto all = static_cast<std::ptrdiff_t>(samples.size());
  return mapped == all ? "mmap" : mapped == 0 ? "read" : absl::StrCat("m", mapped, "/r", all - mapped);
}

absl::Status BenchOne(const std::string& dir, bool warm, const Flags& flags, nlohmann::json& rows) {
  Samples samples;
  std::vector<double> disk;
  LIME_RETURN_IF_ERROR(MeasureRounds(dir, warm, flags, samples, disk));
  std::map<LoaderKind, nlohmann::json> summaries;
  for (const LoaderKind kind : kLoaders) summaries[kind] = Summary(samples[kind]);
  const auto total = [&](LoaderKind kind) { return summaries[kind]["total_s"].get<double>(); };
  const LoaderKind best = total(LoaderKind::kMmap) <= total(LoaderKind::kRead) ? LoaderKind::kMmap : LoaderKind::kRead;
  for (const LoaderKind kind : kLoaders) {
    nlohmann::json& row = summaries[kind];
    row["loader"] = LoaderName(kind);
    row["used"] = Used(samples[kind]);
    row["cache"] = warm ? "warm" : "cold";
    row["over_best"] = total(kind) / total(best);
    row["over_best_by_round"] = RoundRatio(samples, kind, best);
    if (kind == LoaderKind::kAuto) row["choice_cost"] = ChoiceCost(samples);
    row["rss_over_weights"] = row["peak_rss_bytes"].get<double>() / row["weight_bytes"].get<double>();
    if (!warm) row["disk_bytes_per_s"] = Median(disk);
    Print(row);
    rows.push_back(row);
  }
  return absl::OkStatus();
}

absl::Status Run(const Flags& flags) {
  nlohmann::json rows = nlohmann::json::array();
  std::printf("%10s  %-4s  %-4s  %-6s  %8s  %8s  %8s  %6s  %8s  %8s  %8s  %9s  %6s\n", "weights", "cache", "load", "used", "load s",
              "pass s", "total s", "/best", "by round", "GB/s", "disk", "next GB/s", "rss/w");
  for (const std::string& text : flags.sizes) {
    LIME_ASSIGN_OR_RETURN(const Bytes bytes, ParseBytes(text));
    const std::string dir = flags.folder + "/lime_load_bench_" + text;
    if (!std::filesystem::exists(dir + "/config.json")) LIME_RETURN_IF_ERROR(MakeModel(ModelOfSize(bytes), dir));
    LIME_RETURN_IF_ERROR(SetCache(dir, /*warm=*/false));  // and so written to the disk
    if (!flags.cold_only) LIME_RETURN_IF_ERROR(BenchOne(dir, /*warm=*/true, flags, rows));
    if (!flags.warm_only) LIME_RETURN_IF_ERROR(BenchOne(dir, /*warm=*/false, flags, rows));
    std::error_code ignored;
    if (!flags.keep) std::filesystem::remove_all(dir, ignored);
  }
  if (flags.json.empty()) return absl::OkStatus();
  const nlohmann::json report = {{"benchmark", "load_to_first_pass"}, {"rounds", flags.rounds}, {"threads", flags.threads}, {"rows", rows}};
  std::ofstream(flags.json) << report.dump(2) << "\n";
  return absl::OkStatus();
}

}  // namespace
}  // namespace lime

int main(int argc, char** argv) try {
  CLI::App app("Measures loading and the first pass over the weights: mapped, read, and the adaptive choice");
  lime::Flags flags;
  app.add_option("--sizes", flags.sizes, "Sizes of the weights")->capture_default_str();
  app.add_option("--dir", flags.folder, "Folder for the models, on the disk to measure")->capture_default_str();
  app.add_option("--rounds", flags.rounds)->capture_default_str();
  app.add_option("--threads", flags.threads)->capture_default_str();
  app.add_option("--json", flags.json, "JSON file for the figures");
  app.add_flag("--keep", flags.keep, "Leave the models for the next run");
  app.add_flag("--warm-only", flags.warm_only, "Only with the files in the page cache");
  app.add_flag("--cold-only", flags.cold_only, "Only with the files dropped from the page cache");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = lime::Run(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "load_bench: %s\n", std::string(status.message()).c_str());
  return 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "load_bench: %s\n", error.what());
  return 1;
}
