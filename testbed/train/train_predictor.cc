// train_predictor: trains the predictor of one layer. `lime calibrate --predictor` calls it.
#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "testbed/train/predictor_training.h"

namespace lime::train {
namespace {

int Main(int argc, char** argv) {
  std::string job_path, out;
  PredictorOptions options;
  CLI::App app("Trains a predictor of the active neurons of one layer");
  app.add_option("job", job_path, "What the layer has seen: a file of `lime calibrate`")->required();
  app.add_option("out", out, "File to write")->required();
  app.add_option("--rank", options.rank)->required()->check(CLI::Range(int64_t{1}, int64_t{4096}));
  app.add_option("--epochs", options.epochs)->check(CLI::Range(0, 1000))->capture_default_str();
  app.add_option("--rate", options.rate)->check(CLI::Range(0.0, 1.0))->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const absl::StatusOr<PredictorJob> job = ReadPredictorJob(job_path);
  absl::Status status = job.status();
  if (job.ok() && options.rank > job->inputs.size(1))
    status = absl::InvalidArgumentError("--rank is larger than the columns of the inputs");
  if (status.ok()) status = WritePredictor(out, TrainPredictor(*job, options));
  if (status.ok()) return 0;
  std::fprintf(stderr, "train_predictor: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace lime::train

int main(int argc, char** argv) {
  try {
    return lime::train::Main(argc, argv);
  } catch (const std::exception& error) {  // of libtorch
    std::fprintf(stderr, "train_predictor: %s\n", error.what());
    return 1;
  }
}
