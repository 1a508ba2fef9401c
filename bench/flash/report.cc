// The report of the benchmark for people, and as JSON.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/flash/flash.h"
#include "nlohmann/json.hpp"

namespace lime::flash {
namespace {

using nlohmann::json;

json ToJson(const RungFigures& figures) {
  return {
      {"held_gb", figures.held_gb},     {"read_mb", figures.read_mb}, {"gb_per_s", figures.gb_per_s},         {"neurons", figures.neurons},
      {"reads", figures.reads},         {"io_ms", figures.io_ms},     {"predicted_ms", figures.predicted_ms}, {"ratio", figures.ratio},
      {"manage_ms", figures.manage_ms}, {"moves", figures.moves}};
}

json ToJson(const MeasuredRung& rung) {
  json root = ToJson(rung.figures);
  root["name"] = rung.rule.name;
  root["rows"] = rung.rule.window ? rung.memory.rows : 0;
  root["streamed_bytes"] = rung.rule.neurons ? rung.memory.streamed : 0;
  const PaperFigures& paper = rung.rule.paper;
  root["paper"] = nullptr;
  if (paper.io_ms > 0)
    root["paper"] = {{"memory_gb", paper.memory_gb}, {"read_gb", paper.read_gb}, {"gb_per_s", paper.gb_per_s}, {"io_ms", paper.io_ms}};
  return root;
}

json ToJson(const EngineRung& rung) {
  json root = {{"name", rung.name}, {"memory_bytes", rung.memory}};
  if (!rung.why_not.empty()) {
    root["why_not"] = rung.why_not;
    return root;
  }
  root.update({{"read_mb", rung.read_mb},
               {"reads", rung.reads},
               {"neurons", rung.neurons},
               {"io_ms", rung.io_ms},
               {"predicted_ms", rung.predicted_ms},
               {"whole_ms", rung.whole_ms}});
  return root;
}

std::string MasksText(const FlashReport& report) {
  const auto percent = [](double share) { return absl::StrFormat("%.1f %%", 100 * share); };
  std::string text = absl::StrCat("masks, ", report.of_text ? "the tokens of a text: " : "random tokens: ", percent(report.shares.active),
                                  " of the neurons are active (paper 3 %)");
  if (report.predictor_rank > 0)
    absl::StrAppend(&text, report.predictor.empty() ? "; a predictor of rank " : "; the trained predictor, of rank up to ",
                    report.predictor_rank, " names ", percent(report.shares.predicted), " (paper 9.6 %): it misses ",
                    percent(report.shares.missed), " of the active ones (5 %), and names ", percent(report.shares.false_positives),
                    " of the others (7 %)");
  if (report.shape.copies > 0)
    absl::StrAppend(&text, "; copies of the deciders (", FormatBytes(report.shape.copies), ") leave ", percent(report.shares.unproven),
                    " without a proof that they are zero");
  if (report.unions.size() == 6)
    absl::StrAppend(&text, "; ", percent(report.unions[4]), " in 5 tokens (24 %), ", percent(report.unions[5] - report.unions[4]),
                    " new in the next (2.4 %)");
  return text + "\n";
}

std::string LadderText(const FlashReport& report) {
  const double naive = report.ladder.front().figures.io_ms, paper_naive = report.ladder.front().rule.paper.io_ms;
  std::string text = absl::StrFormat("%-24s %7s %9s %6s %8s %9s %9s %6s %6s %9s   %s\n", "rung", "in GB", "read MB", "GB/s", "reads",
                                     "I/O ms", "predicted", "ratio", "gain", "whole ms", "paper: I/O ms, GB/s, gain");
  for (const MeasuredRung& rung : report.ladder) {
    const RungFigures& f = rung.figures;
    absl::StrAppendFormat(&text, "%-24s %7.3f %9.2f %6.2f %8.0f %9.2f %9.2f %6.2f %5.1fx", rung.rule.name, f.held_gb, f.read_mb, f.gb_per_s,
                          f.reads, f.io_ms, f.predicted_ms, f.ratio, f.io_ms > 0 ? naive / f.io_ms : 0);
    absl::StrAppend(&text, report.computing_ms > 0 ? absl::StrFormat(" %9.2f", WholeMs(rung.rule, f, report.computing_ms))
                                                   : absl::StrFormat(" %9s", "-"));
    const PaperFigures& paper = rung.rule.paper;
    if (paper.io_ms > 0) absl::StrAppendFormat(&text, "   %.0f, %.2f, %.1fx", paper.io_ms, paper.gb_per_s, paper_naive / paper.io_ms);
    absl::StrAppend(&text, "\n");
  }
  return text;
}

std::string EngineText(const FlashReport& report) {
  if (report.engine.empty()) return "";
  std::string text = absl::StrFormat("%-34s %9s %9s %8s %9s %9s %6s %9s\n", "the engine itself", "memory", "read MB", "reads", "I/O ms",
                                     "predicted", "ratio", "whole ms");
  for (const EngineRung& rung : report.engine) {
    absl::StrAppendFormat(&text, "%-34s %9s ", rung.name, rung.memory > 0 ? FormatBytes(rung.memory) : "-");
    if (!rung.why_not.empty())
      absl::StrAppend(&text, rung.why_not, "\n");
    else
      absl::StrAppendFormat(&text, "%9.2f %8.0f %9.2f %9.2f %6.2f %9.2f\n", rung.read_mb, rung.reads, rung.io_ms, rung.predicted_ms,
                            rung.predicted_ms > 0 ? rung.io_ms / rung.predicted_ms : 0, rung.whole_ms);
  }
  return text + "\n";
}

std::string RatesText(const FlashReport& report) {
  if (report.rates.empty()) return "";
  std::string text = "GB/s of random reads, by size and reads in flight; fit: of long bursts\n         KiB";
  std::vector<Bytes> sizes;
  for (const RatePoint& point : report.rates) {
    if (std::ranges::find(sizes, point.bytes) == sizes.end()) sizes.push_back(point.bytes);
  }
  for (const Bytes bytes : sizes) absl::StrAppendFormat(&text, " %6d", bytes / kKiB);
  int depth = 0;
  for (const RatePoint& point : report.rates) {
    if (point.depth != depth) absl::StrAppendFormat(&text, "\n  depth %4d", depth = point.depth);
    absl::StrAppendFormat(&text, " %6.2f", point.gb_per_s);
  }
  absl::StrAppend(&text, "\n         fit");
  for (const Bytes bytes : sizes) {
    const auto size = static_cast<double>(bytes);
    absl::StrAppendFormat(&text, " %6.2f", size / (report.burst.read_ms + size / report.burst.bytes_per_ms) / 1e6);
  }
  return text + "\n";
}

std::string MemoryText(const FlashReport& report) {
  std::string text;
  if (!report.sweep.empty()) text = "memory, of the weights: I/O ms of the rung \"+ path, joined reads\", beside its prediction\n";
  for (const MeasuredMemory& point : report.sweep) {
    const RungFigures& f = point.rung.figures;
    absl::StrAppendFormat(&text, "  %3.0f %%  %6d neurons a layer  %9.2f MB  %9.2f ms  %9.2f  %5.2f\n", 100 * point.share,
                          point.rung.memory.rows, f.read_mb, f.io_ms, f.predicted_ms, f.ratio);
  }
  return text;
}

std::string PlacementsText(const FlashReport& report) {
  std::string text;
  for (const MeasuredPlacement& placement : report.placements) {
    const RungFigures& f = placement.figures;
    absl::StrAppendFormat(&text, "memory management, %-7s  %7.3f ms a token (%.1f %% of its I/O), %.0f copies of %s\n", placement.placement,
                          f.manage_ms, f.io_ms > 0 ? 100 * f.manage_ms / f.io_ms : 0, f.moves, FormatBytes(placement.row_bytes));
  }
  return text;
}

}  // namespace

std::string TextOf(const FlashReport& report) {
  const FlashShape& shape = report.shape;
  return absl::StrCat(shape.layers, " layers of ", shape.neurons, " neurons, ", FormatBytes(shape.weights), " of weights, ",
                      FormatBytes(shape.mlps), " in MLPs, bundles of ", FormatBytes(report.bundle_bytes), "; ", report.disk, "\n",
                      MasksText(report)) +
         absl::StrFormat(
             "burst of n reads of s bytes: %.3f ms + n (%.1f us + s / %.2f GB/s), mean error %.1f %%; one after another: %.2f GB/s\n\n",
             report.burst.burst_ms, 1e3 * report.burst.read_ms, report.burst.bytes_per_ms / 1e6, 100 * report.fit_error,
             report.sequential_gb_per_s) +
         absl::StrFormat("memory of the rungs with a window: %s; a neuron stays for %d tokens at most\n", FormatBytes(report.memory),
                         report.window) +
         LadderText(report) + "\n" + EngineText(report) + PlacementsText(report) + MemoryText(report) + RatesText(report);
}

nlohmann::json JsonOf(const FlashReport& report) {
  const FlashShape& shape = report.shape;
  nlohmann::json root = {{"disk", report.disk},
                         {"layers", shape.layers},
                         {"neurons", shape.neurons},
                         {"weight_bytes", shape.weights},
                         {"mlp_bytes", shape.mlps},
                         {"bundle_bytes", report.bundle_bytes},
                         {"memory_bytes", report.memory},
                         {"window", report.window},
                         {"predictor_bytes", shape.predictor},
                         {"copy_bytes", shape.copies},
                         {"ids", report.of_text ? "text" : "random"},
                         {"masks",
                          {{"rank", report.predictor_rank},
                           {"xxh3", report.predictor.empty() ? nlohmann::json() : nlohmann::json(report.predictor)},
                           {"active", report.shares.active},
                           {"predicted", report.shares.predicted},
                           {"unproven", report.shares.unproven},
                           {"missed", report.shares.missed},
                           {"false_positives", report.shares.false_positives},
                           {"unions", report.unions}}},
                         {"burst",
                          {{"burst_ms", report.burst.burst_ms},
                           {"read_ms", report.burst.read_ms},
                           {"bytes_per_ms", report.burst.bytes_per_ms},
                           {"mean_error", report.fit_error}}},
                         {"sequential_gb_per_s", report.sequential_gb_per_s},
                         {"bursts", nlohmann::json::array()},
                         {"rates", nlohmann::json::array()},
                         {"ladder", nlohmann::json::array()},
                         {"engine", nlohmann::json::array()},
                         {"computing_ms", nullptr},
                         {"memory", nlohmann::json::array()},
                         {"placements", nlohmann::json::array()}};
  if (report.computing_ms > 0) root["computing_ms"] = report.computing_ms;
  for (const BurstPoint& point : report.bursts)
    root["bursts"].push_back({{"reads", point.reads}, {"bytes", point.bytes}, {"ms", point.ms}});
  for (const RatePoint& point : report.rates)
    root["rates"].push_back({{"bytes", point.bytes}, {"depth", point.depth}, {"gb_per_s", point.gb_per_s}});
  for (const MeasuredRung& rung : report.ladder) {
    root["ladder"].push_back(ToJson(rung));
    root["ladder"].back()["whole_ms"] = nullptr;
    if (report.computing_ms > 0) root["ladder"].back()["whole_ms"] = WholeMs(rung.rule, rung.figures, report.computing_ms);
  }
  for (const EngineRung& rung : report.engine) root["engine"].push_back(ToJson(rung));
  for (const MeasuredMemory& point : report.sweep) {
    nlohmann::json row = ToJson(point.rung);
    row["share"] = point.share;
    root["memory"].push_back(std::move(row));
  }
  for (const MeasuredPlacement& placement : report.placements) {
    nlohmann::json row = ToJson(placement.figures);
    row["placement"] = placement.placement;
    root["placements"].push_back(std::move(row));
  }
  return root;
}

}  // namespace lime::flash
