#include "daemon/limed/engine_profiler.h"

#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/engine/call_limits.h"
#include "daemon/engine/process_memory.h"
#include "daemon/machine/system_memory.h"
#include "daemon/profile/disk_sample.h"
#include "daemon/profile/measure_bursts.h"
#include "daemon/profile/measure_compute.h"
#include "daemon/profile/measure_disk.h"
#include "daemon/profile/measure_rates.h"
#include "daemon/weights/checkpoint.h"
#include "planner/plan/model/described_model.h"

namespace lime {
namespace {

constexpr double kPlannedShare = 0.85;  // of the free memory, if no budget is given
constexpr Bytes kMeasuringRoom = 64 * kMiB;
constexpr double kLittleTime = 2;  // seconds; too few for all sizes and depths, at 0.5 s each
// Smaller files are read in smaller requests, over less memory.
constexpr Bytes kSmallDisk = 32 * kMiB;
using Say = std::function<void(const ProfileProgress&)>;

// Memory that measuring took is free again. It must not count in the peak of a later plan.
void BeginPeakAnew() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

// The model, from its files or only from its description.
struct Model {
  std::optional<Checkpoint> checkpoint;
  absl::Status absent;  // why there is no checkpoint
  ModelSpec spec;
  std::string name;
};

absl::StatusOr<Model> OpenModel(const ProfileCall& call, const std::string& folder) {
  Model model;
  model.name = std::filesystem::path(folder).lexically_normal().filename().string().substr(0, 128);
  absl::StatusOr<Checkpoint> checkpoint =
      folder.empty() ? absl::NotFoundError("it has neither weights nor a store; add weights = \"FOLDER\" or store = \"FOLDER\"")
                     : Checkpoint::OpenPart(folder);
  if (checkpoint.ok()) {
    LIME_ASSIGN_OR_RETURN(model.spec, checkpoint->BuildModelSpec());
    model.checkpoint = *std::move(checkpoint);
    return model;
  }
  if (call.config.empty() || !absl::IsNotFound(checkpoint.status())) return checkpoint.status();
  model.absent = checkpoint.status();
  LIME_ASSIGN_OR_RETURN(model.spec, DescribeModel(call.config, "the model's config.json"));
  return model;
}

std::string Printable(absl::string_view text) {
  std::string plain(text);
  std::ranges::replace_if(
      plain, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return plain;
}

class SelfProfile {
 public:
  SelfProfile(const EngineSettings& settings, const std::string& weights, const std::string& store, const ProfileCall& call, const Say& say,
              const std::atomic<bool>& cancelled)
      : settings_(settings), weights_(weights), store_(store), call_(call), say_(say), cancelled_(cancelled) {}

  absl::StatusOr<MeasuredDevice> Run() {
    LIME_ASSIGN_OR_RETURN(const Model model, OpenModel(call_, call_.weights.empty() ? weights_ : call_.weights));
    const Bytes free = AvailableMemory(), runtime = ProcessResidentBytes();
    room_ = settings_.memory > 0 ? std::min(free / 2, settings_.memory - runtime) : free / 2;
    if (room_ < kMiB) return NoRoom(runtime);
    measured_.memory = settings_.memory > 0 ? settings_.memory : runtime + static_cast<Bytes>(kPlannedShare * static_cast<double>(free));
    measured_.profile = EmptyProfile(settings_.num_threads > 0 ? settings_.num_threads : UsableCores());
    say_({.what = "memory", .share = 0});
    MeasureRates(call_.seconds / 2, std::min(kMeasuredBytes, room_ / kMiB * kMiB), measured_.profile);
    if (cancelled_) return absl::CancelledError("interrupted");
    LIME_RETURN_IF_ERROR(ReadDisk(model));
    LIME_RETURN_IF_ERROR(ComputeBlocks(model));
    ReturnFreedMemory();
    BeginPeakAnew();
    measured_.runtime = ProcessResidentBytes();
    return std::move(measured_);
  }

 private:
  absl::Status NoRoom(Bytes runtime) const {
    if (settings_.memory > 0 && settings_.memory - runtime < kMiB) {
      return absl::ResourceExhaustedError(absl::StrCat("its budget of ", FormatBytes(settings_.memory), " is less than the ",
                                                       FormatBytes(runtime), " that limed itself needs; give it ",
                                                       BudgetAtLeast(runtime + kMeasuringRoom), " or more"));
    }
    return absl::ResourceExhaustedError("less than 1 MiB of memory is free for measuring; end other programs");
  }

  // Shares of the whole, by time: memory 1/7, disk 2/7, blocks 4/7.
  auto Progress(const char* what, double before, double after) {
    return [this, what, before, after](double done, double total) {
      if (total > 0) say_({.what = what, .share = std::clamp(before + (after - before) * done / total, 0.0, 1.0)});
    };
  }

  // If there is nothing to read and no room to write, reports that and measures the rest.
  absl::Status ReadDisk(const Model& model) {
    const std::string folder = SampleFolder(model);
    if (folder.empty() && model.checkpoint) return ReadWeights(*model.checkpoint);
    const absl::Status read = folder.empty() ? model.absent : ReadSample(folder);
    if (cancelled_) return absl::CancelledError("interrupted");
    measured_.disk_problem = Printable(read.message());
    return absl::OkStatus();
  }

  // The folder for a file to measure with. Empty if the weights can be read: files with pushed
  // blocks have holes where blocks are missing.
  std::string SampleFolder(const Model& model) const {
    if (!model.checkpoint) return store_;
    std::vector<BlockId> blocks;
    for (const BlockSpec& block : model.spec.blocks) blocks.push_back(block.id);
    return model.checkpoint->CheckHolds(blocks).ok() ? "" : model.checkpoint->dir();
  }

  // The points to measure. In little time: small and large requests, one and eight in flight.
  MeasureDiskOptions DiskPoints() const {
    if (call_.seconds >= kLittleTime) return {};
    return {.read_bytes = {64 * kKiB, 4 * kMiB}, .depths = {1, 8}};
  }

  absl::Status ReadSample(const std::string& folder) {
    LIME_ASSIGN_OR_RETURN(
        const DiskSample sample,
        DiskSample::Write(folder, {.seconds = call_.seconds, .progress = Progress("disk", 1.0 / 7, 2.0 / 7), .cancelled = &cancelled_}));
    MeasureDiskOptions options = DiskPoints();
    options.progress = Progress("disk", 2.0 / 7, 3.0 / 7);
    return Measure({sample.path()}, std::move(options));
  }

  absl::Status ReadWeights(const Checkpoint& checkpoint) {
    const Bytes bytes = checkpoint.FileBytes();
    MeasureDiskOptions options = DiskPoints();
    options.progress = Progress("disk", 1.0 / 7, 3.0 / 7);
    if (bytes < kSmallDisk) options.read_bytes = {64 * kKiB, 256 * kKiB}, options.depths = {2}, options.spread = 2 * kMiB;
    return bytes < 256 * kKiB ? absl::OkStatus() : Measure(checkpoint.FilePaths(), options);
  }

  absl::Status Measure(const std::vector<std::string>& files, MeasureDiskOptions options) {
    options.seconds = call_.seconds;
    options.memory = room_ / 2;
    options.cancelled = &cancelled_;
    LIME_ASSIGN_OR_RETURN(std::vector<DiskPoint> disk, MeasureDisk(files, options));
    LIME_ASSIGN_OR_RETURN(const std::optional<BurstCost> bursts,
                          MeasureBursts(files, {.seconds = std::min(MeasureBurstsOptions().seconds, call_.seconds / 2),
                                                .memory = room_ / 2,
                                                .cancelled = &cancelled_}));
    measured_.profile.SetDisk(std::move(disk), bursts);
    return absl::OkStatus();
  }

  absl::Status ComputeBlocks(const Model& model) {
    const ScopedCoreBinding binding(settings_.cores);
    LIME_ASSIGN_OR_RETURN(ModelCompute compute, MeasureCompute(model.spec, {.num_threads = static_cast<int>(measured_.profile.threads),
                                                                            .seconds = 2 * call_.seconds,
                                                                            .memory = room_,
                                                                            .backend = settings_.backend,
                                                                            .numerics = settings_.numerics,
                                                                            .progress = Progress("blocks", 3.0 / 7, 1),
                                                                            .numerics_id = &measured_.numerics_id,
                                                                            .cancelled = &cancelled_}));
    compute.name = model.name;
    measured_.profile.SetModel(std::move(compute));
    return absl::OkStatus();
  }

  const EngineSettings& settings_;
  const std::string &weights_, &store_;
  const ProfileCall& call_;
  const Say& say_;
  const std::atomic<bool>& cancelled_;
  Bytes room_ = 0;
  MeasuredDevice measured_;
};

}  // namespace

Profiler MakeEngineProfiler(const EngineSettings& settings, const std::string& weights, const std::string& store) {
  return [=](const ProfileCall& call, const Say& say, const std::atomic<bool>& cancelled) {
    return SelfProfile(settings, weights, store, call, say, cancelled).Run();
  };
}

}  // namespace lime
