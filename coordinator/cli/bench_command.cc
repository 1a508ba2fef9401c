#include "coordinator/cli/bench_command.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/limits.h"
#include "coordinator/cli/command.h"
#include "coordinator/cli/model_session.h"
#include "daemon/engine/process_memory.h"
#include "kernels/cpu/linear.h"
#include "planner/base/median.h"

namespace lime::cli {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int64_t kMaxBatch = 16;

struct BenchFlags {
  ModelFlags model;
  int64_t prompt = 512;
  int64_t position = 128;  // where decoding is measured
  int64_t batch = 4;
  int rounds = 15;
  Bytes limit_bytes = 512 * kMiB;
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

// Runs figures and limits in turn, so that both see the same noise.
class ModelBench {
 public:
  ModelBench(Engine& engine, const BenchFlags& flags, int threads)
      : engine_(engine),
        flags_(flags),
        numerics_(engine.numerics_id() == cpu::NumericsId(cpu::Numerics::kPortable) ? cpu::Numerics::kPortable : cpu::Numerics::kAuto),
        pool_(threads),
        memory_(flags.limit_bytes) {}

  absl::StatusOr<Measured> Run() {
    for (int32_t slot = 0; slot < flags_.batch; ++slot) LIME_RETURN_IF_ERROR(engine_.StartSequence(slot, engine_.context()));
    for (int32_t slot = 0; slot < flags_.batch; ++slot) LIME_RETURN_IF_ERROR(Prefill(slot, flags_.position));
    Measured measured;
    for (int round = -1; round < flags_.rounds; ++round) {  // the first one warms up
      if (Interrupted()) return absl::CancelledError("interrupted");
      LIME_RETURN_IF_ERROR(Round(measured));
      if (round < 0) measured = {};
    }
    return measured;
  }

 private:
  absl::Status Round(Measured& measured) {
    absl::Status status;
    const auto timed = [&](auto&& fn) { return SecondsOf([&] { status.Update(fn()); }); };
    measured.read_rate.push_back(static_cast<double>(memory_.bytes()) / bench::ReadSeconds(pool_, memory_.data(), memory_.bytes()));
    measured.decode.push_back(timed([&] { return Decode(1); }));
    measured.read_rate.push_back(static_cast<double>(memory_.bytes()) / bench::ReadSeconds(pool_, memory_.data(), memory_.bytes()));
    measured.batched.push_back(timed([&] { return Decode(flags_.batch); }));
    if (measured.prefill.size() * 3 > measured.decode.size()) return status;  // prefill is long: every third round
    measured.flops.push_back(bench::Bf16Rate(pool_, numerics_));
    measured.prefill.push_back(timed([&] { return Prefill(0, flags_.prompt); }));
    measured.flops.push_back(bench::Bf16Rate(pool_, numerics_));
    return status;
  }

  // The same positions again each time: a steady state without end.
  absl::Status Decode(int64_t sequences) {
    batch_.Clear();
    for (int32_t slot = 0; slot < sequences; ++slot) AddRow(slot, flags_.position, true);
    return engine_.Step(batch_).status();
  }

  absl::Status Prefill(int32_t slot, int64_t tokens) {
    batch_.Clear();
    for (int64_t i = 0; i < tokens; ++i) AddRow(slot, i, i + 1 == tokens);
    return engine_.Step(batch_).status();
  }

  void AddRow(int32_t slot, int64_t position, bool wants_logits) {
    const int64_t token = (7919 * (position + 1) + slot) % engine_.spec().config.vocab_size;
    batch_.rows.push_back(
        {.sequence = slot, .token = static_cast<int32_t>(token), .position = static_cast<int32_t>(position), .wants_logits = wants_logits});
  }

  Engine& engine_;
  const BenchFlags& flags_;
  const cpu::Numerics numerics_;  // of the engine, whose prefill is compared with their peak
  cpu::ThreadPool pool_;
  const bench::HugeMemory memory_;
  MicroBatch batch_;
};

// Multiply-adds of the linear layers of a prompt, counting two; only the last token meets the head.
double PrefillOperations(const ModelSpec& spec, int64_t tokens) {
  const ModelConfig& c = spec.config;
  const double q = static_cast<double>(c.num_heads * c.head_dim), kv = static_cast<double>(c.num_kv_heads * c.head_dim),
               hidden = static_cast<double>(c.hidden_size);
  const double layer = hidden * (2 * q + 2 * kv) + (c.gated_mlp() ? 3 : 2) * hidden * static_cast<double>(c.intermediate_size);
  return 2 * (static_cast<double>(c.num_layers * tokens) * layer + hidden * static_cast<double>(c.vocab_size));
}

struct Row {
  std::string figure;
  double ms = 0;
  double value = 0, limit = 0;
  std::string unit;
};

std::vector<Row> Rows(const Engine& engine, const BenchFlags& flags, const Measured& measured) {
  const double read = Median(measured.read_rate), flops = Median(measured.flops);
  const auto reading = [&](const std::string& name, const std::vector<double>& seconds, int64_t sequences) {
    const double step = Median(seconds);
    return Row{name, step * 1e3, static_cast<double>(engine.BytesPerStep(sequences, flags.position)) / step / 1e9, read / 1e9, "GB/s"};
  };
  const double prefill = Median(measured.prefill);
  return {reading("decode", measured.decode, 1),
          reading(absl::StrCat("decode, batch of ", flags.batch), measured.batched, flags.batch),
          {absl::StrCat("prefill of ", flags.prompt), prefill * 1e3, PrefillOperations(engine.spec(), flags.prompt) / prefill / 1e9,
           flops / 1e9, "GFLOP/s"}};
}

absl::Status Bench(const BenchFlags& flags) {
  LIME_RETURN_IF_ERROR(flags.model.Check());
  if (flags.batch < 1 || flags.batch > kMaxBatch) return WrongCall(absl::StrCat("--batch ", flags.batch, " is outside 1 to ", kMaxBatch));
  if (flags.rounds < 1 || flags.rounds > 10000) return WrongCall(absl::StrCat("--rounds ", flags.rounds, " is outside 1 to 10000"));
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, LoadModelSpec(flags.model.model));
  const int64_t context = std::max(flags.prompt, flags.position + 1);
  if (flags.prompt < 1 || flags.position < 1 || context > spec.config.max_positions) {
    return WrongCall(absl::StrCat("--prompt and --position must be from 1 to the model's ", spec.config.max_positions, " positions"));
  }
  LIME_ASSIGN_OR_RETURN(const auto session, ModelSession::Open(flags.model, {.max_rows = std::max(context, flags.batch),
                                                                             .max_logit_rows = flags.batch,
                                                                             .max_sequences = flags.batch,
                                                                             .context = context,
                                                                             .planned_steps = flags.rounds * 4,
                                                                             .expected_positions = flags.position}));
  const int threads = flags.model.threads > 0 ? flags.model.threads : UsableCores();
  ModelBench bench(session->engine(), flags, threads);
  LIME_ASSIGN_OR_RETURN(const Measured measured, bench.Run());
  const std::vector<Row> rows = Rows(session->engine(), flags, measured);
  const double batch_cost = Median(measured.batched) / Median(measured.decode);
  if (flags.model.json) {
    json root = session->Describe();
    root["batch_cost"] = batch_cost;
    for (const Row& row : rows)
      root["rows"].push_back({{"figure", row.figure},
                              {"ms", row.ms},
                              {"value", row.value},
                              {"limit", row.limit},
                              {"unit", row.unit},
                              {"ratio", row.value / row.limit}});
    std::cout << root.dump() << std::endl;
    return absl::OkStatus();
  }
  absl::PrintF("%s\n%-20s %10s %12s %12s %7s\n", session->LoadLine(), "figure", "ms", "reached", "limit", "ratio");
  for (const Row& row : rows)
    absl::PrintF("%-20s %10.2f %7.1f %-7s %7.1f %-7s %4.2f\n", row.figure, row.ms, row.value, row.unit, row.limit, row.unit,
                 row.value / row.limit);
  absl::PrintF("a batch of %d costs %.2f times one\n", flags.batch, batch_cost);
  return absl::OkStatus();
}

}  // namespace

void AddBenchCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = app.add_subcommand("bench", "Decode and prefill of a model beside the limits of this machine, measured in turn");
  flags->model.AddTo(*command);
  command->add_option("--prompt", flags->prompt, "Tokens of the prefill")->capture_default_str();
  command->add_option("--position", flags->position, "Position at which decoding is measured")->capture_default_str();
  command->add_option("--batch", flags->batch, "Sequences of the batched decode")->capture_default_str();
  command->add_option("--rounds", flags->rounds, "Rounds; medians are printed")->capture_default_str();
  command->callback([flags, &exit_code] { exit_code = Finish(Bench(*flags)); });
}

}  // namespace lime::cli
