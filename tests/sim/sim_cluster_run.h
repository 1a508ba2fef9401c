// One run of a simulated cluster (sim_cluster.h). sim_cluster.cc has its beginning, its orders and its
// end, sim_cluster_plans.cc installs plans, changes them and recovers, sim_cluster_faults.cc has the
// faults.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/plan.h"
#include "tests/sim/sim_cluster.h"
#include "tests/sim/sim_guesses.h"

namespace lime {

class SimCluster {
 public:
  explicit SimCluster(const SimOptions& options);
  SimResult Run();

 private:
  struct Device {
    std::string name;
    bool alive = true;
    bool gone = false;
    bool refuses = false;
    std::unique_ptr<SimDisk> disk;
    std::unique_ptr<SimStage> stage;
    int64_t epoch = 0;  // of the stage
    std::unique_ptr<SimChannel> orders, news;
    // KV that a plan has left here, and its epoch.
    std::unique_ptr<SimKvHandover> left;
    int64_t left_epoch = 0;
  };
  enum class Phase { kInstalling, kRunning, kDraining, kRecovering, kEnded };
  using Installed = std::function<void(const absl::Status& status, const std::string& device)>;

  // ---- Beginning
  absl::Status Begin();
  void AddDevice();
  absl::Status Ask(double after_ms);
  // Its prompt begins as an earlier prompt and its answer do, or is the same.
  void BeginLikeAnother(Request& request);
  // The planted bugs: one token less, or an end token that is forgotten.
  Request AsItIsAdded(Request request);
  std::vector<std::string> Names() const;
  Device& Named(const std::string& name);
  OrderWriter::Options OrdersFor(const SimPlan& plan) const;
  static bool Lends(const Plan& plan) { return std::ranges::any_of(plan.devices, HasKvOnHost); }
  static Recovery::Devices Uses(const Plan& plan);

  // ---- Faults
  void DrawFaults();
  void Happen(SimFault fault);
  void Crash(Device& device, double comes_back_ms);
  // A device notices that one of its links is lost.
  void LoseStage(Device& device, const absl::Status& lost);
  void LoseLink();
  SimChannel& AnyLink();
  void StopAny();

  // ---- Plans on devices
  // In this epoch.
  template <typename What>
  void Later(double ms, What what) {
    world_.clock.After(ms, [this, epoch = epoch_, what = std::move(what)] {
      if (epoch == epoch_) what();
    });
  }
  void Install(Plan plan, const SimStage::Takeover& takeover, const Installed& done);
  absl::Status InstallOn(Device& device, int32_t index, const SimStage::Takeover& takeover);
  void SendNews(int64_t epoch, Device& device, std::function<void()> what);
  void Send(int64_t epoch, int32_t from, int32_t to, ActivationMessage message);
  // A stage that has stopped answers with the reason; one that runs takes all that peers and the
  // coordinator send.
  void CheckAccepted(const Device& device, const char* what, const absl::Status& stopped, const absl::Status& answer);
  // What one device refuses is unloaded from the others.
  void Unload();
  // Devices unload the plan by themselves, soon, and keep its KV.
  void Abandon();

  // ---- Running
  void GoOn();
  // Devices have room for the rows that the coordinator orders ahead, so it waits for a guess.
  void SendOrders();
  void SendOrder(const decltype(Order::what)& what);
  void Count(const Order& order);
  void OnSampled(int64_t device_step, const std::vector<SampledToken>& tokens);
  void OnStepEnded();
  void AfterNews();

  // ---- Another plan while all is well
  void MayChangePlan();
  // Requests go on with their KV. Where devices do not take it over, the same plan is installed and
  // it is computed again.
  absl::Status InstallTakingOver(const SimPlan& plan, const SimKvHandover& handover);
  // What is known of the requests is computed again.
  void InstallAgain(const SimPlan& plan, const Installed& done);
  void OnChanged(const SimPlan& plan, const absl::Status& status, const std::string& device);
  std::vector<std::string> Alive() const;

  // ---- After a failure
  void OnFailure(const std::string& device, const absl::Status& why);
  void Recover(const Recovery::Event& event);
  // The KV of the plan that failed, if all its devices have kept it. Once for a failure.
  std::optional<SimKvHandover> TakeLeft();
  void InstallInterrupted(const SimPlan& plan, const SimKvHandover& left, const Installed& done);
  // Only where a device is gone for good, or it is one loss after another. A command ends then; a
  // server ends the requests.
  void OnGiveUp(const absl::Status& why);

  // ---- The end
  bool AllOver() const { return to_ask_ == 0 && std::ranges::all_of(asked_, &SimRequest::over); }
  // Nothing will happen any more: no request waits, and nothing is kept of one.
  void CheckRest();
  std::string WhoWaits() const;
  SimResult Result();

  const SimOptions options_;
  SimWorld world_;
  const ModelSpec spec_;
  Random cache_random_;  // so that a seed without it stays the same run
  Bytes prompt_cache_ = 0;
  std::vector<std::vector<int32_t>> prompts_;  // of the requests so far, if they share KV
  std::set<int32_t> idle_;                     // slots that keep KV
  SimPlanShape shape_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::map<std::pair<int32_t, int32_t>, std::unique_ptr<SimChannel>> links_, patient_links_;  // of the plan in use, by device of it
  std::set<std::tuple<int64_t, int32_t, int32_t>> lost_;                                      // by epoch
  std::optional<Plan> plan_;                                                                  // in use
  SimGuesses guesses_;
  int64_t next_order_ = 0;                 // number of an order to the devices
  std::optional<Plan> failed_;             // since its failure no plan was installed
  std::optional<SimPlan> first_, newest_;  // that Recovery speaks of
  std::optional<SimPlan> change_;          // to be made once nothing is under way
  std::optional<OrderWriter> writer_;
  std::optional<Recovery> recovery_;
  std::optional<SimWatcher> watcher_;
  std::vector<SimRequest> asked_;  // by request
  int to_ask_ = 0;
  int64_t epoch_ = 0;
  Phase phase_ = Phase::kInstalling;
  SimResult result_;
};

}  // namespace lime
