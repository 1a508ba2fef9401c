// Models for the integration tests: an engine over a folder, the folders beside the project, tiny random ones made here.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/cli/score.h"
#include "daemon/engine/engine.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "testbed/make_model/make_model.h"
#include "tests/temp_dir.h"

namespace lime {

inline std::string SharedModel(const std::string& name) {
  return std::string(LIME_SHARED_DIR) + "/models/" + name;
}

inline std::vector<std::string> SharedModels() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(LIME_SHARED_DIR) + "/models", error)) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

// A model that the project ships.
inline std::string ShippedModel(const std::string& name) {
  return std::string(LIME_SOURCE_DIR) + "/models/" + name;
}

inline nlohmann::json ReadJson(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
}

// How one run computes; none of it may change a bit.
struct RunShape {
  LoaderKind loader = LoaderKind::kRead;
  int threads = 2;
  int64_t chunk = 512;
  std::vector<std::vector<int32_t>> companions;  // sequences computed beside
  std::string backend = kCpuBackend;             // but for these two, which name the bits
  std::string numerics = "auto";
  // What stays in memory; all of it where no share is given.
  std::optional<double> resident;
  Placement placement = Placement::kAuto;
  std::optional<int64_t> ring_pieces;
  Bytes piece_bytes = kPieceBytes;
};

inline absl::StatusOr<std::unique_ptr<Engine>> OpenEngine(const std::string& dir, const RunShape& shape, int64_t context) {
  Engine::Options options;
  options.loader = shape.loader;
  options.num_threads = shape.threads;
  options.max_sequences = 1 + static_cast<int64_t>(shape.companions.size());
  options.max_rows = shape.chunk * options.max_sequences;
  options.max_logit_rows = shape.chunk;
  options.context = context;
  options.backend = shape.backend;
  options.numerics = shape.numerics;
  options.resident_share = shape.resident;
  options.placement = shape.placement;
  options.ring_pieces = shape.ring_pieces;
  options.piece_bytes = shape.piece_bytes;
  return Engine::Create(dir, options);
}

// Scores `ids` and returns the hash of all logits.
inline uint64_t LogitsHashOf(Engine& engine, const RunShape& shape, const std::vector<int32_t>& ids) {
  cli::ScoreOptions options;
  options.chunk = shape.chunk;
  options.companions = shape.companions;
  cli::Scorer scorer(engine, options);
  std::vector<cli::ScoredPosition> positions;
  const absl::Status status = scorer.Score(ids, positions);
  EXPECT_TRUE(status.ok()) << status;
  return scorer.hash();
}

inline uint64_t LogitsHashOf(const std::string& dir, const RunShape& shape, const std::vector<int32_t>& ids) {
  int64_t context = static_cast<int64_t>(ids.size());
  for (const auto& companion : shape.companions) context = std::max<int64_t>(context, static_cast<int64_t>(companion.size()));
  auto engine = OpenEngine(dir, shape, context);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? LogitsHashOf(**engine, shape, ids) : 0;
}

}  // namespace lime
