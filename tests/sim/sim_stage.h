// One device's part of a plan in a simulated cluster: the daemon's own StageLogic, ResidencyLogic
// and KvBook, driven with simulated time, disk and memory, and a HashModel in the place of a
// backend.
//
// It checks every action against the plan: the size of the ring, the number of pages, one owner for
// each page, and that reads return the written data.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "common/activation.h"
#include "common/order.h"
#include "daemon/kv/hosting/hosted_kv.h"
#include "daemon/kv/hosting/lent_kv.h"
#include "daemon/logic/byte_ring.h"
#include "daemon/logic/residency_logic.h"
#include "daemon/logic/stage_logic.h"
#include "daemon/units/asked_units.h"
#include "daemon/units/hosted_units.h"
#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan.h"
#include "tests/sim/hash_backend.h"
#include "tests/sim/hash_model.h"
#include "tests/sim/sim_world.h"

namespace lime {

// KV that a plan hands over, by layer and slot: one value for each position. Of a layer with a state:
// the values of the state, then of each snapshot.
using SimKvHandover = std::map<std::pair<int32_t, int32_t>, std::vector<uint64_t>>;

class SimStage {
 public:
  struct Peers {
    std::function<void(int32_t device, ActivationMessage message)> send;
    std::function<void(int64_t step, const std::vector<SampledToken>& tokens)> sampled;
    std::function<void(int64_t step)> step_ended;
    std::function<void(const absl::Status& why)> failed;
  };
  // The state that continues from the previous plan.
  struct Takeover {
    std::vector<KvSequence> sequences;
    const SimKvHandover* handover = nullptr;
  };

  // REQUIRES: all outlive this.
  static absl::StatusOr<std::unique_ptr<SimStage>> Install(SimWorld& world, SimDisk& disk, const ModelSpec& spec, const Plan& plan,
                                                           int32_t device, Peers peers, const Takeover& takeover);

  void Begin();
  absl::Status OnOrder(const Order& order);
  absl::Status OnActivation(ActivationMessage message);
  // A message from a host of this device, or from a device whose host this one is.
  absl::Status OnHosting(int32_t from, const std::vector<std::byte>& message);
  // Ends the plan here, for example because a link was lost.
  void Fail(const absl::Status& why);
  // Other programs of the machine need this share of the memory that can be freed; 0: no longer.
  void Press(double share);
  // Adds the KV of this device, in the middle of a step, too. False if the device has failed by itself.
  bool HandOver(SimKvHandover& handover);

  // An error: the stage has stopped for good.  REQUIRES: begun
  const absl::Status& health() const { return logic_->health(); }
  int64_t steps() const { return steps_; }
  // Call it last, when all requests have ended and no event is left. Describes memory that a
  // request still holds; empty if there is none. `kept`: of idle slots, by slot.
  // REQUIRES: begun
  struct Kept {
    int64_t positions = 0;
    std::vector<int64_t> snapshots;  // their positions
  };
  std::string LeftOver(const std::map<int32_t, Kept>& kept);
  // The event that the stage waits for, for messages.
  std::string Waiting() const;

 private:
  using Piece = std::vector<std::byte>;
  struct OnDisk {
    int64_t life = -1;
    Piece piece;
  };
  struct Load {
    int64_t number = 0;
    int32_t part = 0;
    Bytes place = 0, bytes = 0;  // in the ring
    bool ended = false;
    HashModel::Weights weights;
    // For a KV part, by slot: the life of the slot at the time of the read, and the pieces that
    // were read.
    std::vector<int64_t> lives;
    std::vector<std::vector<Piece>> pieces;
  };

  SimStage(SimWorld& world, SimDisk& disk, const ModelSpec& spec, const Plan& plan, int32_t device, Peers peers);
  KvBook::Shape ShapeOf() const;
  absl::Status OpenKv();
  absl::Status TakeOver(const Takeover& takeover);
  absl::Status TakeOverStates(const KvSequence& sequence, const SimKvHandover& handover);
  std::span<uint64_t> StateAt(int32_t sequence, int64_t copy, int32_t layer);
  void AllocateMemory(std::vector<Program> programs);

  void CarryOut();
  void CarryResidency();
  void FollowBook();
  void CheckHolders();
  void NoteCuts();
  void MayShowTwice(int32_t sequence);
  void WriteLayer(KvAway::Piece piece, int64_t layer);
  void EndWrite(const KvAway::Piece& piece, const absl::Status& status);

  void Carry(const ProgramRunner::StartCompute& start);
  void Carry(const ProgramRunner::StartLoad& start);
  void Carry(const ProgramRunner::Release& release);
  void Carry(const ProgramRunner::StartSend& start);
  void Carry(const ProgramRunner::StartAskKv& start);
  void Carry(const ProgramRunner::StartAskUnits& start);
  void Carry(const ProgramRunner::StartAskHost& start);
  void Carry(const StageLogic::HostedReady& ready);
  void Carry(const ProgramRunner::StartComputeUnits&) {}  // StageLogic answers with StartUnits
  void Carry(const StageLogic::StartUnitRead& start);
  void Carry(const StageLogic::CancelUnitRead& cancel);
  void Carry(const StageLogic::FreePlace& free);
  void Carry(const StageLogic::StartNeuronReads& start);
  void Carry(const StageLogic::StartPieceRead& start);
  void Carry(const StageLogic::StartUnits& start);
  void Carry(const ProgramRunner::Waited&) {}
  void Carry(const ProgramRunner::StepEnded& ended);
  void Carry(const ProgramRunner::Border&);
  void Carry(const StageLogic::Admitted&) {}
  void Carry(const StageLogic::Retired&);
  void Carry(const StageLogic::RolledBack&) {}
  void Carry(const StageLogic::ChangeResidency& change);
  void Carry(const StageLogic::StepBegun&) {}
  void Carry(const StageLogic::Failed& failed);

  void Carry(const ResidencyLogic::Prepare& prepare);
  void Carry(const ResidencyLogic::ChangeWeights& change);
  void Carry(const ResidencyLogic::MakeRoom& make);
  void Carry(const ResidencyLogic::SetPlaces& set);
  void Carry(const ResidencyLogic::Resident&) {}
  void Carry(const ResidencyLogic::Most&) {}
  void Carry(const ResidencyLogic::Report&) {}
  void Compile(const ResidencyLogic::Prepare& prepare);
  void CheckBudget();
  bool StreamsIn(int32_t part, int64_t step) const { return (step < border_ ? streamed_before_ : streamed_)[static_cast<size_t>(part)]; }

  absl::Status Compute(const ProgramRunner::StartCompute& start, const std::vector<std::byte>& input);
  absl::Status ComputePart(int32_t part, int64_t step, const MicroBatch& batch);
  void Sample(const MicroBatch& batch);
  void MakeRing(Bytes ring);
  std::optional<Bytes> PlaceInRing(Bytes bytes);
  void StartResidentLoad(const ProgramRunner::StartLoad& start);
  void EndLoad(int64_t number, bool good);
  void ReadPieces(Load& load) const;
  const Load* OldestLoad(int32_t part) const;
  HashModel::Weights WeightsAt(int32_t part, int64_t step);
  void GuessUnits(int32_t part);
  void SetPlaces(const PartPlaces& to);
  void FreeMemoryOf(int32_t part, int32_t place);
  Bytes FreedOf(int32_t part) const;  // bytes of its places
  HashModel::Weights WeightsOfUnit(int32_t part, const UnitInPlace& unit);
  absl::Status AttendToDisk(int32_t part, const MicroBatch& batch);
  void SendToPeer(int32_t to, std::vector<std::byte> message, bool may_wait);
  void AnswerOthers();
  void OpenUnits();
  absl::Status OnUnits(int32_t from, const std::vector<std::byte>& message);
  void ComputeForOthers();
  int32_t UnitOf(int32_t part, int32_t expert) const;
  void AskNeurons(int32_t part, int32_t microbatch);
  SparseVisits::LastMasks LastMasks(int32_t part);
  void CopyNeurons(int32_t part);
  void ReadNeurons(int32_t part, std::vector<NeuronWindow::Load> loads, bool again);
  void ComputeSparse(const StageLogic::StartUnits& start);
  absl::Status ComputeNeurons(int32_t part, const std::vector<UnitInPlace>& units);
  absl::Status ComputePieces(int32_t part, const std::vector<UnitInPlace>& units);

  template <typename What>
  void After(double ms, What what) {
    world_.clock.After(ms, [alive = std::weak_ptr(alive_), what = std::move(what)] {
      if (!alive.expired()) what();
    });
  }
  int64_t LayerIndex(int32_t layer) const;
  const PlanDevice& device() const { return plan_.devices[static_cast<size_t>(device_)]; }

  SimWorld& world_;
  SimDisk& disk_;
  const ModelSpec& spec_;
  const Plan plan_;
  const int32_t device_;
  const Peers peers_;
  const std::vector<int32_t> layers_;
  const std::shared_ptr<int> alive_ = std::make_shared<int>();
  HashBackend backend_;
  KvBook book_;
  std::unique_ptr<LentKv> lent_;      // null: no host has KV of this device
  std::unique_ptr<HostedKv> hosted_;  // null: this device is no host
  std::unique_ptr<AskedUnits> asked_units_;
  std::unique_ptr<HostedUnits> hosted_units_;
  bool computes_for_others_ = false;
  std::optional<ResidencyLogic> residency_;
  ResidencyLogic::Actions changes_;
  std::optional<StageLogic> logic_;
  StageLogic::Actions actions_;
  bool dead_ = false;
  bool lost_ = false;  // ended by Fail
  int64_t steps_ = 0;

  // Memory.
  std::deque<Load> loads_;  // begun and not released, oldest first
  Bytes in_ring_ = 0;
  Bytes ring_ = 0;                                // present size
  ByteRing places_{0};                            // in it
  std::vector<bool> in_memory_;                   // by part of this device
  std::vector<bool> streamed_before_, streamed_;  // by part: in steps before border_, and from it on
  int64_t border_ = 0;
  int64_t present_pages_ = 0;
  std::map<std::tuple<int64_t, int32_t, int64_t>, OnDisk> on_disk_;  // by layer of the device, slot, piece
  std::vector<int64_t> lives_;                                       // by slot, as FollowBook saw them
  std::optional<std::pair<KvAway::Piece, int64_t>> lending_;         // piece and layer in flight to the host

  // Places of parts on demand: what was read into them.
  struct Place {
    int32_t unit = -1;
    bool reading = false;
    bool computing = false;
    bool ahead = false;    // it was read ahead, and not computed since
    bool freed = false;    // it has no memory
    uint64_t content = 0;  // of a row of a sparse part: of its neuron, as it was read
  };
  std::map<std::pair<int32_t, int32_t>, Place> unit_places_;  // by part and place
  std::set<int64_t> cancelled_reads_;
  std::array<Place, SparseVisits::kPieces> piece_places_;  // of all sparse parts
  std::vector<int32_t> ages_;                              // of LastMasks
  int64_t units_left_ = 0;                                 // to compute of the current part
  bool may_guess_ = false;                                 // units have been chosen, and none of them is computed

  // The visit under way.
  std::vector<SampledToken> sampled_;
};

}  // namespace lime
