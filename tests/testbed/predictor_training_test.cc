// Training of predictors: the start is the best copy of its rank, training lowers the loss, and a seed gives
// one result.
#include "testbed/train/predictor_training.h"

#include "gtest/gtest.h"
#include "tests/temp_dir.h"

namespace lime::train {
namespace {

// Inputs with a mean in `rank` directions and a little in all others; a tenth of the neurons are active.
PredictorJob MakeJob(int64_t rank, double rest, int64_t tokens = 2000) {
  constexpr int64_t kCols = 24, kNeurons = 75;
  at::manual_seed(1);
  PredictorJob job;
  job.inputs = (at::mm(at::randn({tokens, rank}), at::randn({rank, kCols})) + rest * at::randn({tokens, kCols}) + 0.5).contiguous();
  job.decider = at::randn({kNeurons, kCols});
  at::Tensor z = at::mm(job.inputs, job.decider.t());
  job.bias = -std::get<0>(at::kthvalue(z, tokens * 9 / 10, 0)).contiguous();
  const at::Tensor active = (z + job.bias) > 0;
  job.masks = at::zeros({tokens, (kNeurons + 7) / 8}, at::kByte);
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t i = 0; i < kNeurons; ++i) {
      if (active[token][i].item<bool>()) job.masks[token][i / 8] += 1 << (i % 8);
    }
  }
  return job;
}

TEST(PredictorTrainingTest, TheStartOfFullRankIsTheDecider) {
  const PredictorJob job = MakeJob(4, /*rest=*/0);
  const double loss = PredictorLoss(job, StartPredictor(job, 4));
  EXPECT_LT(loss, 0.1);
  EXPECT_GT(PredictorLoss(job, StartPredictor(job, 2)), 2 * loss) << "half of the directions say less";
}

TEST(PredictorTrainingTest, TrainingLowersTheLossAndASeedGivesOneResult) {
  const PredictorJob job = MakeJob(6, /*rest=*/0.3);
  const PredictorOptions options{.rank = 5, .epochs = 3, .seed = 3};
  const double start = PredictorLoss(job, StartPredictor(job, 5));
  const TrainedPredictor once = TrainPredictor(job, options), again = TrainPredictor(job, options);
  EXPECT_LT(PredictorLoss(job, once), 0.9 * start);
  EXPECT_TRUE(at::equal(once.a, again.a) && at::equal(once.b, again.b) && at::equal(once.c, again.c));
  PredictorOptions other = options;
  other.seed = 4;
  EXPECT_FALSE(at::equal(TrainPredictor(job, other).b, once.b));
}

TEST(PredictorTrainingTest, WhatIsWrittenHasTheNamesThatCalibrationReads) {
  TempDir dir;
  const PredictorJob job = MakeJob(3, 0.1, 50);
  ASSERT_TRUE(WritePredictor(dir / "p", StartPredictor(job, 3)).ok());
  EXPECT_FALSE(ReadPredictorJob(dir / "p").ok()) << "it is no job";
  EXPECT_FALSE(ReadPredictorJob(dir / "none").ok());
}

}  // namespace
}  // namespace lime::train
