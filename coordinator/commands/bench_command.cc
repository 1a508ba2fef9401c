#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/commands/bench_flash.h"
#include "coordinator/commands/commands.h"
#include "coordinator/commands/single_steps.h"
#include "coordinator/sessions/local_session.h"
#include "daemon/profile/limits.h"
#include "daemon/profile/measure_disk.h"
#include "daemon/weights/checkpoint.h"
#include "kernels/cpu/linear/linear.h"
#include "planner/base/median.h"
#include "planner/plan/plan_rows.h"
#include "planner/problem/plan_problem.h"

namespace lime::cli {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

struct BenchFlags {
  std::string what;  // empty, or flash
  ModelFlags model;
  FlashFlags flash;
  int64_t prompt = 512;
  int64_t cached = 0;      // positions before the prompt
  int64_t position = 128;  // where decoding is measured
  int64_t batch = 4;
  int rounds = 15;
  Bytes limit_bytes = 512 * kMiB;

  // The whole prompt in one step, and cached positions in few.
  int64_t chunk() const { return std::max({prompt, batch, std::min<int64_t>(cached, 512)}); }
  int64_t expected_positions() const { return cached > 0 ? std::max(position, cached + prompt) : position; }
  std::string prefill() const {
    return cached > 0 ? absl::StrCat("prefill of ", prompt, " behind ", cached) : absl::StrCat("prefill of ", prompt);
  }
};

template <typename Fn>
double SecondsOf(Fn&& fn) {
  const Clock::time_point start = Clock::now();
  fn();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Measured {
  std::vector<double> read_rate, flops;          // limits, bytes/s and operations/s
  std::vector<double> decode, batched, prefill;  // seconds of one step
};

// A step of a model that streams.
struct Sweep {
  std::string figure;
  double seconds = 0;
  double bytes = 0;  // streamed
};

// The disk's rate for reads of the size and depth that streaming uses, or smaller reads if the
// files are smaller.
absl::StatusOr<double> DiskRate(const Checkpoint& checkpoint) {
  const Bytes read = checkpoint.FileBytes() >= 16 * kMiB ? kDiskRead : 4 * kKiB;
  LIME_ASSIGN_OR_RETURN(const std::vector<DiskPoint> points,
                        MeasureDisk(checkpoint.FilePaths(), {.seconds = 1, .read_bytes = {read}, .depths = {kDiskDepth}}));
  return points.front().bytes_per_second;
}

// Layers with scales have most of the weights of a model that has any.
bool HasPackedLayer(const ModelSpec& spec) {
  const auto is_scales = [](const TensorSpec& tensor) { return tensor.part == TensorPart::kScales; };
  return std::ranges::any_of(spec.blocks, [&](const BlockSpec& block) { return std::ranges::any_of(block.tensors, is_scales); });
}

// Measures figures and limits in turn, so that both see the same noise. Every step computes the same
// positions, so the state is steady. If the model streams, the
// disk reads during the computation and ahead for the next step. Then steps of one kind follow each
// other, with no other measurement between them.
class ModelBench {
 public:
  ModelBench(LocalSession& session, const BenchFlags& flags)
      : session_(session),
        flags_(flags),
        numerics_(session.numerics_id() == cpu::NumericsId(cpu::Numerics::kPortable) ? cpu::Numerics::kPortable : cpu::Numerics::kAuto),
        packed_(HasPackedLayer(session.spec())),
        steps_(session.device()),
        pool_(session.threads()) {}

  absl::StatusOr<std::vector<Sweep>> RunStreaming() {
    LIME_RETURN_IF_ERROR(FillSequences());
    std::vector<Sweep> sweeps;
    LIME_ASSIGN_OR_RETURN(sweeps.emplace_back(), Sweeps("decode", flags_.rounds, [&] { return Decode(1); }));
    LIME_ASSIGN_OR_RETURN(sweeps.emplace_back(),
                          Sweeps(absl::StrCat("decode, batch of ", flags_.batch), flags_.rounds, [&] { return Decode(flags_.batch); }));
    LIME_ASSIGN_OR_RETURN(sweeps.emplace_back(), Sweeps(flags_.prefill(), (flags_.rounds + 2) / 3, [&] { return Prefill(); }));
    return sweeps;
  }

  absl::StatusOr<Measured> Run() {
    LIME_RETURN_IF_ERROR(FillSequences());
    memory_.emplace(flags_.limit_bytes);
    Measured measured;
    for (int round = -1; round < flags_.rounds; ++round) {  // the first one warms up
      if (Interrupted()) return absl::CancelledError("interrupted");
      LIME_RETURN_IF_ERROR(Round(measured));
      if (round < 0) measured = {};
    }
    return measured;
  }

 private:
  absl::Status FillSequences() {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < session_.plan().context; ++i) ids.push_back(TokenAt(0, i));
    LIME_RETURN_IF_ERROR(steps_.Open(ids));
    for (int32_t slot = 0; slot < flags_.batch; ++slot) LIME_RETURN_IF_ERROR(Compute(slot, 0, flags_.position));
    return Compute(0, flags_.position, flags_.cached);
  }

  // The median time of several steps, after two that fill the ring. Bytes are the mean, because a
  // step also reads ahead for the next one.
  template <typename Step>
  absl::StatusOr<Sweep> Sweeps(const std::string& figure, int rounds, Step&& step) {
    std::vector<double> seconds;
    Bytes before = 0;
    for (int round = -2; round < rounds; ++round) {
      if (Interrupted()) return absl::CancelledError("interrupted");
      if (round == 0) before = session_.statistics().bytes_read;
      absl::Status status;
      const double elapsed = SecondsOf([&] { status = step(); });
      LIME_RETURN_IF_ERROR(status);
      if (round >= 0) seconds.push_back(elapsed);
    }
    const Bytes bytes = session_.statistics().bytes_read - before;
    return Sweep{figure, Median(seconds), static_cast<double>(bytes) / static_cast<double>(rounds)};
  }

  double ReadRate() { return static_cast<double>(memory_->bytes()) / bench::ReadSeconds(pool_, memory_->data(), memory_->bytes()); }

  absl::Status Round(Measured& measured) {
    absl::Status status;
    const auto timed = [&](auto&& fn) { return SecondsOf([&] { status.Update(fn()); }); };
    measured.read_rate.push_back(ReadRate());
    measured.decode.push_back(timed([&] { return Decode(1); }));
    measured.read_rate.push_back(ReadRate());
    measured.batched.push_back(timed([&] { return Decode(flags_.batch); }));
    if (measured.prefill.size() * 3 > measured.decode.size()) return status;  // prefill: each third
    measured.flops.push_back(bench::Bf16Rate(pool_, numerics_, packed_));
    measured.prefill.push_back(timed([&] { return Prefill(); }));
    measured.flops.push_back(bench::Bf16Rate(pool_, numerics_, packed_));
    if (HasState(session_.plan())) status.Update(Compute(0, 0, flags_.position));  // decoding goes on there
    return status;
  }

  // Computes the same positions each time, for a steady state. If the model keeps a state, which
  // takes every position once, the next positions.
  absl::Status Decode(int64_t sequences) {
    batch_.Clear();
    for (int32_t slot = 0; slot < sequences; ++slot) AddRow(slot, HasState(session_.plan()) ? next_[slot]++ : flags_.position, true);
    return steps_.Step(batch_);
  }

  absl::Status Prefill() { return Compute(0, flags_.cached, flags_.cached + flags_.prompt); }

  // The positions [begin, end) of a sequence, as few steps as chunks allow.
  absl::Status Compute(int32_t slot, int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t chunk_end = std::min(begin + flags_.chunk(), end);
      batch_.Clear();
      for (; begin < chunk_end; ++begin) AddRow(slot, begin, begin + 1 == end);
      LIME_RETURN_IF_ERROR(steps_.Step(batch_));
      next_[slot] = end;
    }
    return absl::OkStatus();
  }

  void AddRow(int32_t slot, int64_t position, bool wants_logits) {
    batch_.rows.push_back(
        {.sequence = slot, .token = TokenAt(slot, position), .position = static_cast<int32_t>(position), .wants_logits = wants_logits});
  }
  int32_t TokenAt(int32_t slot, int64_t position) const {
    return static_cast<int32_t>((7919 * (position + 1) + slot) % session_.spec().config.vocab_size);
  }

  LocalSession& session_;
  const BenchFlags& flags_;
  const cpu::Numerics numerics_;  // of the plan; prefill is compared with their peak
  const bool packed_;             // the weights
  SingleSteps steps_;
  cpu::ThreadPool pool_;
  std::optional<bench::HugeMemory> memory_;  // read to measure the memory rate of a resident model
  MicroBatch batch_;
  std::map<int32_t, int64_t> next_;  // by slot: the position after the last one
};

// Weights of the matrices of a layer's attention half.
int64_t AttentionWeights(const ModelConfig& c, int64_t layer) {
  if (c.latent_attention) {
    const LatentAttentionConfig& latent = *c.latent_attention;
    return c.hidden_size * (latent.query_rank + latent.kv_cols() + c.attended_cols(layer)) +
           c.num_heads * (latent.query_rank * (latent.plain + latent.rotated) + latent.rank * (latent.plain + latent.value_dim));
  }
  const int64_t kv_cols = c.layer(layer).takes_kv ? 0 : 2 * c.kv_cols(layer);
  if (c.layer(layer).has_kv()) return c.hidden_size * ((c.attention_gate ? 3 : 2) * c.q_cols(layer) + kv_cols);
  const LinearAttentionConfig& linear = *c.linear_attention;
  return c.hidden_size * (linear.conv_cols() + 2 * linear.value_cols() + 2 * linear.value_heads);
}

// The same of its MLP half; of experts, the weights that compute one row.
int64_t MlpWeights(const ModelConfig& c, int64_t layer) {
  if (!c.layer(layer).experts) return (c.gated_mlp ? 3 : 2) * c.hidden_size * c.layer(layer).intermediate_size;
  return c.hidden_size *
         (c.experts->count + 3 * (c.experts->per_token * c.experts->intermediate_size + c.experts->shared_intermediate_size));
}

// Operations of the linear layers for a prompt; a multiply-add counts as two. Only the last token
// goes through the head.
double PrefillOperations(const ModelSpec& spec, int64_t tokens) {
  const ModelConfig& c = spec.config;
  double layers = 0;
  for (int64_t layer = 0; layer < c.num_layers(); ++layer) layers += static_cast<double>(AttentionWeights(c, layer) + MlpWeights(c, layer));
  return 2 * (static_cast<double>(tokens) * layers + static_cast<double>(c.hidden_size) * static_cast<double>(c.vocab_size));
}

struct Row {
  std::string figure;
  double ms = 0;
  double value = 0, limit = 0;
  std::string unit;
  std::string limited_by = {};
};

// Bytes that a decode step reads from memory: the weights once, of experts those that some sequence
// chooses, and of each sequence its state and KV of `positions` positions.
Bytes BytesPerStep(const ModelSpec& spec, int64_t sequences, int64_t positions) {
  Bytes bytes = sequences * positions * spec.KvBytesPerToken();
  for (int64_t layer = 0; layer < spec.config.num_layers(); ++layer) bytes += sequences * spec.StateBytes(layer);
  for (const BlockSpec& block : spec.blocks) {
    if (block.id.kind == BlockKind::kEmbedding) continue;
    bytes += static_cast<Bytes>(static_cast<double>(block.bytes) * ReadShare(spec, block.id, sequences));
  }
  return bytes;
}

std::vector<Row> ResidentRows(const ModelSpec& spec, const BenchFlags& flags, const Measured& measured) {
  const double read = Median(measured.read_rate), flops = Median(measured.flops);
  const auto reading = [&](const std::string& name, const std::vector<double>& seconds, int64_t sequences) {
    const double step = Median(seconds);
    return Row{name,       step * 1e3, static_cast<double>(BytesPerStep(spec, sequences, flags.position)) / step / 1e9,
               read / 1e9, "GB/s",     "memory"};
  };
  const double prefill = Median(measured.prefill);
  return {reading("decode", measured.decode, 1),
          reading(absl::StrCat("decode, batch of ", flags.batch), measured.batched, flags.batch),
          {flags.prefill(), prefill * 1e3, PrefillOperations(spec, flags.prompt) / prefill / 1e9, flops / 1e9, "GFLOP/s", "dot products"}};
}

// The measurements with the model loaded. Rows without a limit get the disk's rate as theirs.
struct Report {
  std::vector<Row> rows;
  double batch_cost = 0;
  json description;
  std::string load_line;
};

absl::StatusOr<Report> MeasureModel(const BenchFlags& flags, int64_t context) {
  ModelFlags whole = flags.model;
  whole.chunk = flags.chunk();
  whole.no_kv_spill = true;  // KV on the disk is not written again
  LIME_ASSIGN_OR_RETURN(const std::unique_ptr<LocalSession> session,
                        LocalSession::Open(whole, {.context = context,
                                                   .expected_positions = flags.expected_positions(),
                                                   .sequences = static_cast<int32_t>(flags.batch),
                                                   .prompt_tokens = context,
                                                   .new_tokens = int64_t{flags.rounds} * 4}));
  ModelBench bench(*session, flags);
  const LoadSummary load = session->load();
  Report report;
  if (load.bytes > 0) report.rows.push_back({"load", load.seconds * 1e3, static_cast<double>(load.bytes) / load.seconds / 1e9, 0, "GB/s"});
  if (session->streams()) {
    LIME_ASSIGN_OR_RETURN(const std::vector<Sweep> sweeps, bench.RunStreaming());
    for (const Sweep& sweep : sweeps)
      report.rows.push_back({sweep.figure, sweep.seconds * 1e3, sweep.bytes / sweep.seconds / 1e9, 0, "GB/s"});
    report.batch_cost = sweeps[1].seconds / sweeps[0].seconds;
  } else {
    LIME_ASSIGN_OR_RETURN(const Measured measured, bench.Run());
    for (Row& row : ResidentRows(session->spec(), flags, measured)) report.rows.push_back(std::move(row));
    report.batch_cost = Median(measured.batched) / Median(measured.decode);
  }
  report.description = session->Describe();
  report.load_line = session->LoadLine();
  return report;
}

absl::Status PrintReport(const Report& report, const BenchFlags& flags) {
  if (flags.model.json) {
    json root = report.description;
    root["batch_cost"] = report.batch_cost;
    for (const Row& row : report.rows)
      root["rows"].push_back({{"figure", row.figure},
                              {"ms", row.ms},
                              {"value", row.value},
                              {"limit", row.limit},
                              {"unit", row.unit},
                              {"limited_by", row.limited_by},
                              {"ratio", row.value / row.limit}});
    return Answered(root, /*as_json=*/true);
  }
  absl::PrintF("%s\n%-32s %10s %12s %12s %7s  %s\n", report.load_line, "figure", "ms", "reached", "limit", "ratio", "limit is");
  for (const Row& row : report.rows)
    absl::PrintF("%-32s %10.2f %7.2f %-7s %7.2f %-7s %4.2f  %s\n", row.figure, row.ms, row.value, row.unit, row.limit, row.unit,
                 row.value / row.limit, row.limited_by);
  absl::PrintF("a batch of %d takes %.2f times as long as one sequence\n", flags.batch, report.batch_cost);
  return absl::OkStatus();
}

absl::Status Bench(const BenchFlags& flags) {
  LIME_RETURN_IF_ERROR(flags.model.Check());
  if (flags.what == "flash") return BenchFlash(flags.model, flags.flash);
  if (!flags.what.empty()) return WrongCall(absl::StrCat("bench ", AsTyped(flags.what), " is unknown; use flash, or leave it out"));
  if (const std::string given = flags.flash.Given(); !given.empty())
    return WrongCall(absl::StrCat(given, " is for `lime bench flash`, and changes nothing without that word; leave it out"));
  if (flags.batch < 1 || flags.batch > kMaxBatch) return WrongCall(absl::StrCat("--batch ", flags.batch, " is outside 1 to ", kMaxBatch));
  if (flags.rounds < 1 || flags.rounds > 10000) return WrongCall(absl::StrCat("--rounds ", flags.rounds, " is outside 1 to 10000"));
  LIME_RETURN_IF_ERROR(CheckModelFolder(flags.model.model));
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, LoadModelSpec(flags.model.model));
  for (const auto& [name, value, most] : {std::tuple("--prompt", flags.prompt, spec.config.max_positions),
                                          std::tuple("--position", flags.position, spec.config.max_positions - 1)}) {
    if (value < 1 || value > most)
      return WrongCall(absl::StrCat(name, " ", value, " is outside 1 to ", most, ", the positions of the model"));
  }
  if (const int64_t most = spec.config.max_positions - flags.prompt; flags.cached < 0 || flags.cached > most)
    return WrongCall(absl::StrCat("--cached ", flags.cached, " is outside 0 to ", most, ": the model has ", spec.config.max_positions,
                                  " positions, and --prompt takes ", flags.prompt));
  const bool has_state = spec.NumKvLayers() < spec.config.num_layers();
  if (has_state && flags.cached > 0)
    return WrongCall("--cached is not for models with linear attention: their state cannot go back to a position; leave --cached out");
  const int64_t decoded = has_state ? 2 * (flags.rounds + 2) : 1;
  const int64_t context = std::max(flags.cached + flags.prompt, std::min(flags.position + decoded, spec.config.max_positions));
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(flags.model.model));
  LIME_ASSIGN_OR_RETURN(const double before, DiskRate(checkpoint));
  LIME_ASSIGN_OR_RETURN(Report report, MeasureModel(flags, context));
  LIME_ASSIGN_OR_RETURN(const double after, DiskRate(checkpoint));
  for (Row& row : report.rows) {
    if (row.limit > 0) continue;
    row.limit = (before + after) / 2 / 1e9;
    row.limited_by = "disk";
  }
  return PrintReport(report, flags);
}

}  // namespace

void AddBenchCommand(Commands& commands) {
  const auto [command, flags] =
      commands.Add<BenchFlags>("bench",
                               "Measure load, decode and prefill of a model beside the limits of this machine: disk, memory and dot "
                               "products if the model is resident, the disk if it streams (--memory). `lime bench flash`: the reads of "
                               "sparse MLPs instead, rung by rung",
                               kFlashFooter, Bench);
  command.Add("what", &flags.what, "flash, for the ladder of \"LLM in a flash\"");
  flags.model.AddTo(command, /*clusters=*/false);  // it measures the limits of this machine
  // --prompt and --position set the first two. Repeated positions have no KV on disk.
  for (const char* other : {"--context", "--chunk", "--kv-dir", "--no-kv-spill"}) command.Remove(other);
  command.Add("--prompt", &flags.prompt, "Tokens of the prefill").Shown();
  command.Add("--cached", &flags.cached, "Positions before the prefill, as of a conversation in the prompt cache").Shown();
  command.Add("--position", &flags.position, "Position at which decoding is measured").Shown();
  command.Add("--batch", &flags.batch, "Sequences of the batched decode").Shown();
  command.Add("--rounds", &flags.rounds, "Rounds to measure; the medians are printed").Shown();
  flags.flash.AddTo(command);
}

}  // namespace lime::cli
