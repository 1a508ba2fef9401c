#include "planner/demand/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "planner/base/random.h"
#include "planner/demand/route_log.h"

namespace lime {
namespace {

using nlohmann::json;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAreArray;

// Neurons 0 to 3 take turns; neuron 5 is always active.
std::vector<SequenceMasks> Turns() {
  const SequenceMasks one = {{0, 5}, {1, 5}, {2, 5}, {3, 5}, {0, 5}, {1, 5}, {2, 5}, {3, 5}};
  const SequenceMasks other = {{2, 5}, {3, 5}, {0, 5}, {1, 5}, {2, 5}, {3, 5}, {0, 5}, {1, 5}};
  return {one, other};
}

LayerCalibration OfTurns() {
  return CalibrateLayer(3, Turns(), {.neurons = 8, .masks = 2}).value();
}

TEST(CalibrationTest, CountsWhatIsActiveInUnionsAndNew) {
  const LayerCalibration layer = OfTurns();
  EXPECT_EQ(layer.layer, 3);
  EXPECT_THAT(layer.unions, ElementsAre(2.0 / 8, 3.0 / 8));
  EXPECT_EQ(layer.rows_needed, 3);
  EXPECT_EQ(layer.fresh, 1.0 / 8) << "a neuron comes back after 4 steps, the window has 2";
  ASSERT_THAT(layer.batches, SizeIs(2)) << "there are 2 sequences";
  EXPECT_EQ(layer.batches[0].active, 2.0 / 8);
  EXPECT_EQ(layer.batches[1].active, 3.0 / 8);
}

TEST(CalibrationTest, MoreNeuronRowsLoadLess) {
  const LayerCalibration layer = OfTurns();
  EXPECT_EQ(LoadShare(layer, 0, 1), 2.0 / 8) << "all that is active";
  EXPECT_EQ(LoadShare(layer, 3, 1), 1.0 / 8);
  EXPECT_EQ(LoadShare(layer, 5, 1), 0) << "all that ever is active is in memory";
  EXPECT_EQ(LoadShare(layer, 8, 1), 0);
  EXPECT_EQ(LoadShare(layer, 100, 2), 0);
  for (int64_t rows = 0; rows < 8; ++rows) EXPECT_GE(LoadShare(layer, rows, 1), LoadShare(layer, rows + 1, 1)) << rows;
}

TEST(CalibrationTest, ShorterWindowsThanMemoryHasRoomForLoadMore) {
  const LayerCalibration layer = OfTurns();
  EXPECT_EQ(WindowLoadShare(layer, 8, 2, 1), 0) << "memory alone bounds it: two masks were counted";
  EXPECT_THAT(WindowLoadShare(layer, 8, 1, 1), DoubleNear(3.0 / 8 - 2.0 / 8, 1e-12)) << "a step adds the second mask's new neuron";
  EXPECT_EQ(WindowLoadShare(layer, 0, 1, 1), 2.0 / 8) << "never more than all that is active";
  EXPECT_THAT(WindowLoadShare(layer, 8, 1, 2), DoubleNear(36.0 / 64 - 25.0 / 64, 1e-12)) << "two sequences share few neurons";
}

TEST(CalibrationTest, LargerBatchesThanMeasuredCountAsIndependent) {
  const LayerCalibration layer = OfTurns();
  EXPECT_EQ(ActiveShare(layer, 1), 2.0 / 8);
  EXPECT_EQ(ActiveShare(layer, 2), 3.0 / 8);
  EXPECT_THAT(ActiveShare(layer, 4), DoubleNear(1 - 25.0 / 64, 1e-12));
  EXPECT_THAT(LoadShare(layer, 8, 4), DoubleNear(1 - 25.0 / 64 - 3.0 / 8, 1e-12)) << "only what 2 sequences need is found in memory";
}

TEST(CalibrationTest, NeuronsThatAreActiveTogetherLieSideBySide) {
  Random random(7);
  std::vector<SequenceMasks> masks(1);
  for (int step = 0; step < 200; ++step) {
    const int32_t group = random.Below(8);  // neurons group, group + 8, ... are active together
    masks[0].push_back({group, group + 8, group + 16, group + 24});
  }
  const LayerCalibration layer = CalibrateLayer(0, masks, {.neurons = 32, .masks = 1}).value();
  std::vector<int32_t> all(32);
  for (int32_t i = 0; i < 32; ++i) all[static_cast<size_t>(i)] = i;
  EXPECT_THAT(layer.places, UnorderedElementsAreArray(all));
  EXPECT_EQ(layer.neurons_per_read, 1);
  EXPECT_EQ(layer.path_neurons_per_read, 4);
}

TEST(CalibrationTest, EveryPartOfTheWorkEndsSoonWhenItIsAskedTo) {
  const SequenceMasks masks = {{1, 2}, {1, 3}, {2, 3}, {0, 1}};
  const std::vector<SequenceMasks> sequences = {masks, masks};
  int asked = 0;
  CalibrateOptions options{.neurons = 8, .masks = 2, .ends = [&] { return ++asked, false; }};
  ASSERT_TRUE(CalibrateLayer(0, sequences, options).ok());
  for (int most = 1, all = asked; most <= all; ++most) {
    asked = 0;
    options.ends = [&] { return ++asked == most; };
    EXPECT_TRUE(absl::IsCancelled(CalibrateLayer(0, sequences, options).status())) << most;
    EXPECT_EQ(asked, most);
  }
}

// Sequences of different lengths, with masks of different sizes.
std::vector<SequenceMasks> RandomSequences(int32_t neurons, uint64_t seed) {
  Random random(seed);
  std::vector<SequenceMasks> sequences(7);
  for (SequenceMasks& sequence : sequences) {
    const int steps = random.Below(40);
    for (int step = 0; step < steps; ++step) {
      sequence.emplace_back();
      const int chance = random.Below(50);
      for (int32_t neuron = 0; neuron < neurons; ++neuron) {
        if (random.Chance(chance)) sequence.back().push_back(neuron);
      }
    }
  }
  sequences.push_back({{0}, {1}});
  return sequences;
}

TEST(CalibrationTest, PiecesOnAnyThreadsAndInAnyOrderGiveTheSameBits) {
  const ForEach backwards = [](int64_t count, const auto& body) {
    for (int64_t i = count; i-- > 0;) body(i);
  };
  const ForEach on_threads = [](int64_t count, const auto& body) {
    std::vector<std::thread> threads;
    for (int64_t first = 0; first < 3; ++first) {
      threads.emplace_back([first, count, &body] {
        for (int64_t i = first; i < count; i += 3) body(i);
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const std::vector<SequenceMasks> sequences = RandomSequences(60, seed);
    const LayerCalibration in_turn = CalibrateLayer(0, sequences, {.neurons = 60, .masks = 9}).value();
    EXPECT_EQ(CalibrateLayer(0, sequences, {.neurons = 60, .masks = 9, .for_each = backwards}).value(), in_turn) << seed;
    EXPECT_EQ(CalibrateLayer(0, sequences, {.neurons = 60, .masks = 9, .for_each = on_threads}).value(), in_turn) << seed;
  }
}

TEST(CalibrationTest, MasksThatAreNotOfTheLayerAreRefused) {
  const auto error = [](std::vector<SequenceMasks> sequences, const CalibrateOptions& options) {
    return std::string(CalibrateLayer(0, sequences, options).status().message());
  };
  EXPECT_THAT(error({{{1}, {9}}}, {.neurons = 8}), HasSubstr("9"));
  EXPECT_THAT(error({{{1}}}, {.neurons = 8}), HasSubstr("give a longer text"));
  EXPECT_THAT(error(Turns(), {.neurons = 8, .masks = 0}), HasSubstr("masks"));
  EXPECT_THAT(error(Turns(), {.neurons = 8, .batches = {2}}), HasSubstr("begin with 1"));
}

// ---- The file

Calibration OfFile() {
  return {.model = "key#1", .text_xxh3 = "0123456789abcdef", .tokens = 16, .context = 8, .masks = 2, .layers = {OfTurns()}};
}

TEST(CalibrationTest, AFileIsReadAsItWasWritten) {
  const absl::StatusOr<Calibration> read = ParseCalibration(EncodeCalibration(OfFile()), "c.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, OfFile());
  EXPECT_EQ(OfLayer(*read, 3), &read->layers[0]);
  EXPECT_EQ(OfLayer(*read, 0), nullptr);
}

Calibration WithCopy() {
  Calibration calibration = OfFile();
  CopiedLayer copy{.bits = 6, .directions = 3, .unproven = OfTurns()};
  copy.unproven.places.clear();
  calibration.copies = {copy};
  calibration.frames_xxh3 = "00112233445566aa";
  return calibration;
}

TEST(CalibrationTest, CopiesAreReadAsTheyWereWrittenAndWrongOnesAreRefused) {
  const absl::StatusOr<Calibration> read = ParseCalibration(EncodeCalibration(WithCopy()), "c.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, WithCopy());
  EXPECT_EQ(CopyOfLayer(*read, 3), &read->copies[0]);
  EXPECT_EQ(CopyOfLayer(*read, 0), nullptr);
  EXPECT_THAT(EncodeCalibration(OfFile()), testing::Not(HasSubstr("copies"))) << "as before there were copies";
  const json good = json::parse(EncodeCalibration(WithCopy()));
  const auto error = [&](const char* pointer, const json& value) {
    json wrong = good;
    wrong[json::json_pointer(pointer)] = value;
    return std::string(ParseCalibration(wrong.dump(), "c.json").status().message());
  };
  EXPECT_EQ(error("/copies/0/bits", 8), "");
  EXPECT_THAT(error("/copies", json::array()), HasSubstr("\"copies\" is empty"));
  EXPECT_THAT(error("/copies", json::array({3})), HasSubstr("copies[0]: is not an object"));
  EXPECT_THAT(error("/copies", json::array({good["copies"][0], good["copies"][0]})), HasSubstr("layer 3 follows layer 3"));
  EXPECT_THAT(error("/copies/0/layer", 2), HasSubstr("is of layer 2 with 8 neurons, which \"layers\" does not have"));
  EXPECT_THAT(error("/copies/0/neurons", 100), HasSubstr("which \"layers\" does not have"));
  EXPECT_THAT(error("/copies/0/bits", 17), HasSubstr("bits"));
  EXPECT_THAT(error("/copies/0/directions", 0), HasSubstr("directions"));
  EXPECT_THAT(error("/copies/0/batches", json::array()), HasSubstr("copies[0]: \"batches\" is empty"));
  EXPECT_THAT(error("/frames_xxh3", "x"), HasSubstr("hexadecimal"));
}

// The best form is small, but leaves few more neurons than others.
TEST(CalibrationTest, TheBestCopyProvesNearlyAsMuchAsAnyInTheFewestBytes) {
  const auto best = [](std::vector<ProvenShare> proofs) {
    const ProvenShare* const form = BestCopy(proofs, 1024);
    return form == nullptr ? 0 : form->bits;
  };
  EXPECT_EQ(best({}), 0);
  EXPECT_EQ(best({{.bits = 5, .directions = 64, .zeros = 0.95, .proven = 0.91},
                  {.bits = 6, .directions = 64, .zeros = 0.95, .proven = 0.93},
                  {.bits = 8, .directions = 64, .zeros = 0.95, .proven = 0.94}}),
            6);
  EXPECT_EQ(best({{.bits = 5, .directions = 64, .zeros = 0.7, .proven = 0.4}, {.bits = 8, .directions = 64, .zeros = 0.7, .proven = 0.69}}),
            8);
  EXPECT_EQ(best({{.bits = 8, .directions = 64, .zeros = 0.6, .proven = 0.45}}), 0) << "most neurons are left";
}

TEST(CalibrationTest, OtherMasksAreMeasuredInAGivenOrder) {
  std::vector<int32_t> places = {7, 6, 5, 4, 3, 2, 1, 0};
  const LayerCalibration layer = CalibrateLayer(3, Turns(), {.neurons = 8, .masks = 2, .places = places}).value();
  EXPECT_EQ(layer.places, places);
  EXPECT_EQ(layer.path_neurons_per_read, layer.neurons_per_read) << "an order that is reversed has the same neighbours";
}

TEST(CalibrationTest, TheLargestFileThatIsAllowedCanBeRead) {
  const std::vector<int64_t> of_opt(96, 49152);
  EXPECT_TRUE(CheckCalibrationBytes(of_opt, {.masks = 256}).ok()) << "OPT-175B";
  const CalibrateOptions options{.masks = 256};
  std::vector<int64_t> neurons = {kMostRouteUnits};
  while (CheckCalibrationBytes(neurons, options).ok()) neurons.push_back(kMostRouteUnits);
  EXPECT_THAT(std::string(CheckCalibrationBytes(neurons, options).message()), HasSubstr("such a model cannot be calibrated"));
  neurons.pop_back();
  LayerCalibration layer{.neurons = kMostRouteUnits, .unions = std::vector<double>(256, 1.0 / 30000), .fresh = 1.0 / 30000};
  for (int32_t neuron = 0; neuron < kMostRouteUnits; ++neuron) layer.places.push_back(kMostRouteUnits - 1 - neuron);
  for (const int32_t batch : options.batches) {
    layer.batches.push_back({.batch = batch, .active = 1.0 / 30000});
    for (int32_t i = 0; i < 24; ++i) layer.batches.back().points.push_back({.rows = 100'000 + i, .loads = 1.0 / 30000});
  }
  for (size_t i = 0; i < kMostProofs; ++i)
    layer.proofs.push_back({.bits = 8, .directions = 4096, .zeros = 1.0 / 30000, .proven = 1.0 / 30000});
  Calibration calibration = OfFile();
  calibration.masks = 256;
  calibration.layers.clear();
  for (; calibration.layers.size() < neurons.size(); ++layer.layer) calibration.layers.push_back(layer);
  const std::string text = EncodeCalibration(calibration);
  EXPECT_GT(std::ssize(text), kMostCalibrationBytes * 5 / 6) << "the bound before the run counts more digits than there are";
  const absl::StatusOr<Calibration> read = ParseCalibration(text, "c.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(*read == calibration);
}

TEST(CalibrationTest, WrongFilesAreRefusedInOneSentence) {
  const json good = json::parse(EncodeCalibration(OfFile()));
  const auto error = [&](const char* pointer, const json& value) {
    json wrong = good;
    wrong[json::json_pointer(pointer)] = value;
    return std::string(ParseCalibration(wrong.dump(), "c.json").status().message());
  };
  const std::string text = good.dump(), damaged(ParseCalibration(text.substr(0, text.size() / 2), "c.json").status().message());
  EXPECT_THAT(damaged, MatchesRegex("c.json: is not valid JSON in UTF-8 at byte [0-9]+; `lime calibrate` writes a new one"));
  EXPECT_THAT(std::string(ParseCalibration("{}", "c.json").status().message()), HasSubstr("no calibration; `lime calibrate` writes"));
  EXPECT_THAT(error("/lime_calibration", 2), HasSubstr("version 2"));
  EXPECT_THAT(error("/text_xxh3", "x"), HasSubstr("hexadecimal"));
  EXPECT_THAT(error("/masks", 3), HasSubstr("\"unions\" has 2 shares, need 3"));
  EXPECT_THAT(error("/layers", json::array()), HasSubstr("\"layers\" is empty"));
  EXPECT_THAT(error("/layers/0/neurons", 0), HasSubstr("neurons"));
  EXPECT_THAT(error("/layers/0/neurons", 9), HasSubstr("\"places\" has 8 entries"));
  EXPECT_THAT(error("/layers/0/unions", {0.5, 0.25}), HasSubstr("do not decrease"));
  EXPECT_THAT(error("/layers/0/fresh", -1), HasSubstr("fresh"));
  EXPECT_THAT(error("/layers/0/places/1", 0), HasSubstr("place 0 twice"));
  EXPECT_THAT(error("/layers/0/places/1", 8), HasSubstr("places"));
  EXPECT_THAT(error("/layers/0/batches", json::array()), HasSubstr("\"batches\" is empty"));
  EXPECT_THAT(error("/layers/0/batches/0/batch", 2), HasSubstr("begins with batch 1"));
  EXPECT_THAT(error("/layers/0/batches/1/active", 1.5), HasSubstr("active"));
  EXPECT_THAT(error("/layers/0/batches/0/loads", json::array()), HasSubstr("\"loads\" is empty"));
  EXPECT_THAT(error("/layers/0/batches/0/loads/1", 4), HasSubstr("not [rows, share]"));
  EXPECT_THAT(error("/layers/0/batches/0/loads/1", {99, 0.1}), HasSubstr("99 rows"));
  EXPECT_THAT(error("/layers/0/batches/0/loads/1", {1, 0.0}), HasSubstr("ascend"));
  EXPECT_THAT(error("/layers/0/batches/0/loads/1", {2, 0.9}), HasSubstr("do not increase"));
  EXPECT_THAT(error("/layers/0/batches/0/loads/1", {2, nullptr}), HasSubstr("not [rows, share]"));
  json proof = {{"bits", 5}, {"directions", 2}, {"zeros", 0.5}, {"proven", 0.5}};
  EXPECT_EQ(error("/layers/0/proofs", json::array({proof})), "");
  EXPECT_THAT(error("/layers/0/proofs", json::array({3})), HasSubstr("proofs[0]: is not an object"));
  EXPECT_THAT(error("/layers/0/proofs", json(json::array_t(kMostProofs + 1, proof))), HasSubstr("proofs"));
  proof["proven"] = 0.6;
  EXPECT_THAT(error("/layers/0/proofs", json::array({proof})), HasSubstr("\"proven\" is 0.6, which is more than \"zeros\", 0.5"));
  proof.erase("bits");
  EXPECT_THAT(error("/layers/0/proofs", json::array({proof})), HasSubstr("bits"));
}

}  // namespace
}  // namespace lime
