// The state machines as golden files: events, and what they answer; tests/golden/*.txt, to be read
// in review.
//
// To write them anew: sim_tests --files=transcript_test.cc --update_golden, then read the difference as
// you would read code.
#include <gtest/gtest.h>

#include <functional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/logic/order_writer.h"
#include "coordinator/logic/recovery.h"
#include "coordinator/logic/replanner.h"
#include "coordinator/logic/serve_queue.h"
#include "daemon/logic/residency_logic.h"
#include "daemon/logic/stage_logic.h"
#include "daemon/logic/stage_programs.h"
#include "planner/kv/kv_growth.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"
#include "planner/problem/plan_problem.h"
#include "tests/golden_file.h"
#include "tests/sim/action_text.h"
#include "tests/sim/sim_plans.h"

namespace lime {
namespace {

// Device 0 has the first layer and the head, device 1 the second layer; the MLP of the first layer
// streams.
absl::StatusOr<Plan> TwoDevices(const ModelSpec& spec, int64_t context) {
  std::vector<ClusterDevice> cluster;
  for (const char* name : {"a", "b"}) {
    ClusterDevice device{.name = name, .numerics_id = "hash", .budget = 64 * kMiB};
    device.profile.read_bytes_per_second = 10e9, device.profile.flops = 1e11;
    device.profile.disk = {{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 1e9, .latency_ms = 0.1}};
    cluster.push_back(std::move(device));
  }
  PlanRequest request{.model_name = "sim", .context = context, .sequences = 1, .prompt_tokens = 32, .chunks = {16}};
  request.part_bytes = 0;
  LIME_ASSIGN_OR_RETURN(const PlanProblem problem, MakePlanProblem(spec, cluster, request));
  PlanChoice choice{.stages = {.stages = {{0, 0, 2}, {1, 2, 4}, {0, 4, 5}}, .streamed = {1}}, .batch = 1};
  choice.first_token = {.feasible = true, .ms = 1, .chunk_rows = 16, .chunks = 2, .chunks_per_sweep = 1};
  return MakePlan(problem, choice);
}

// Rings for whatever streams.
void MakeElastic(Plan& plan) {
  Plan all = plan;
  for (PlanPart& part : all.parts) part.streamed = true;
  const std::vector<PlanNeed> needs = NeedsOf(all);
  for (size_t d = 0; d < needs.size(); ++d) {
    PlanMemory& memory = plan.devices[d].memory;
    memory.margin -= needs[d].ring - memory.ring;
    memory.ring = needs[d].ring;
  }
}

// 32 of 96 positions have KV.
absl::StatusOr<Plan> WithKvThatGrows(const ModelSpec& spec) {
  LIME_ASSIGN_OR_RETURN(Plan plan, TwoDevices(spec, 96));
  MakeElastic(plan);
  return WithResidency(plan, {.layer_pages = 2, .streamed = {1}});
}

// Device 1 keeps as little KV as it may; device 0 has the rest.
absl::StatusOr<Plan> WithKvOnHost(const ModelSpec& spec) {
  LIME_ASSIGN_OR_RETURN(Plan plan, TwoDevices(spec, 1100));
  LIME_ASSIGN_OR_RETURN(plan, CutForKv(plan, spec));
  plan.devices[1].max_layer_pages = WorkingPages(plan);
  plan.devices[1].kv_host = 0, plan.devices[1].ask_kv_ms = 0.1;
  MakeElastic(plan);
  return WithResidency(plan, {.layer_pages = FullLayerPages(plan), .streamed = ResidencyOf(plan).streamed});
}

int AskedPart(const Plan& plan) {
  int part = 0;
  while (!WaitsForKv(plan, part)) ++part;
  return part;
}

// A stage without a driver: what it is told, and what it answers.
class StageTranscript {
 public:
  StageTranscript(const Plan& plan, int32_t device)
      : plan_(plan),
        book_(plan_, {.device = device, .layers = 1}),
        residency_(plan_, *CompileAll(plan_, device), book_, {.device = device, .by_order = true, .layers = 1}),
        stage_(plan_, device, {.vocab_size = 900, .row_bytes = 8, .microbatches = residency_.programs().back().microbatches},
               residency_.programs(), book_),
        device_(device) {
    residency_.Start(stage_);
    Event("start");
    stage_.Start(actions_);
    Carry();
  }

  void Order(decltype(lime::Order::what) what, const std::string& text) {
    Event(absl::StrCat("order ", next_order_, ": ", text));
    Note(stage_.OnOrder({.number = next_order_++, .what = std::move(what)}));
    Carry();
  }
  void Hidden(int64_t step, int32_t stage, int64_t rows) {
    Event(absl::StrCat("hidden states of step ", step, " from stage ", stage));
    ActivationMessage message{.header = {.epoch = plan_.epoch, .step = step, .stage = stage, .bytes = rows * 8},
                              .payload = std::vector<std::byte>(static_cast<size_t>(rows * 8))};
    Note(stage_.OnActivation(std::move(message), 0, actions_));
    Carry();
  }
  void Computed(std::vector<SampledToken> sampled = {}) {
    Event("computed");
    stage_.OnComputed(sampled, 0, actions_);
    Carry();
  }
  void Loaded(int64_t load) {
    Event(absl::StrCat("load ", load, " ended"));
    stage_.OnLoaded(load, 0, actions_);
    Carry();
  }
  void KvArrived(int32_t part, int32_t microbatch) {
    Event(absl::StrCat("KV of part ", part, ", micro-batch ", microbatch, " has come from the host"));
    stage_.OnKvArrived(part, microbatch, 0, actions_);
    Carry();
  }
  void Fail(const absl::Status& why) {
    Event(absl::StrCat("fails: ", std::string(why.message())));
    stage_.Fail(why, actions_);
    Carry();
  }
  void Prepared(const Residency& to) {
    Event("prepared");
    const Plan after = *WithResidency(plan_, to);
    residency_.OnPrepared({after, *CompileAll(after, device_, &plan_), *CompileAll(after, device_)}, 0, changes_, actions_);
    CarryChanges();
    Carry();
  }
  void NothingEvicted() {
    Event("nothing leaves");
    residency_.OnNothingEvicted(changes_);
    CarryChanges();
  }
  void RoomMade() {
    Event("room made");
    residency_.OnRoomMade(0, changes_, actions_);
    CarryChanges();
    Carry();
  }

  const std::string& text() const { return text_; }

 private:
  void Event(const std::string& what) { absl::StrAppend(&text_, text_.empty() ? "" : "\n", what, "\n----\n"); }
  void Note(const absl::Status& status) {
    if (!status.ok()) absl::StrAppend(&text_, "refused: ", std::string(status.message()), "\n");
  }
  void Carry() {
    const auto carry = [this] {
      for (size_t i = 0; i < actions_.size(); ++i) {
        const StageLogic::Action action = actions_[i];
        absl::StrAppend(&text_, ActionText(action), "\n");
        if (const auto* start = std::get_if<ProgramRunner::StartCompute>(&action))
          stage_.inbox().PopInput({start->what.stage, start->what.microbatch});
        if (const auto* change = std::get_if<StageLogic::ChangeResidency>(&action)) residency_.OnOrder(change->order->to, changes_);
        if (std::holds_alternative<ProgramRunner::Border>(action)) residency_.OnBorder(changes_);
        if (std::holds_alternative<ProgramRunner::StepEnded>(action)) residency_.OnStepEnded(changes_);
        CarryChanges();
      }
      actions_.clear();
    };
    carry();
    while (stage_.HasOrder()) {
      stage_.NextOrder(residency_.memory(), 0, actions_);
      carry();
    }
  }
  void CarryChanges() {
    for (const ResidencyLogic::Action& action : changes_) absl::StrAppend(&text_, ActionText(action), "\n");
    changes_.clear();
  }

  const Plan plan_;
  KvBook book_;
  ResidencyLogic residency_;
  StageLogic stage_;
  const int32_t device_;
  StageLogic::Actions actions_;
  ResidencyLogic::Actions changes_;
  int64_t next_order_ = 0;
  std::string text_;
};

StepOrder Rows(int32_t position, int count, int32_t token) {
  StepOrder step{.microbatches = {{}}};
  for (int i = 0; i < count; ++i)
    step.microbatches[0].rows.push_back({.token = token, .position = position + i, .wants_logits = i + 1 == count});
  return step;
}

AdmitOrder Admit() {
  return {.sequence = 0, .request = 7, .positions = 40, .prompt = {5, 5, 5}};
}

TEST(TranscriptTest, AStageOfAPipeline) {
  const ModelSpec spec = SimModel(2);
  const absl::StatusOr<Plan> plan = WithKvThatGrows(spec);
  ASSERT_TRUE(plan.ok()) << plan.status();
  StageTranscript first(*plan, 0);
  first.Order(Admit(), "admit request 7");
  first.Order(Rows(0, 3, 5), "a prompt of 3 tokens");
  first.Order(Rows(3, 1, kSampledToken), "a token that is not known yet");
  first.Computed();  // the embedding
  first.Computed();  // attention 0
  first.Loaded(0);
  first.Computed();  // mlp 0
  first.Loaded(1);
  first.Hidden(0, 1, 3);
  first.Hidden(0, 1, 3);
  first.Computed({{.sequence = 0, .position = 3, .token = 9}});  // the head
  first.Computed();
  first.Order(RetireOrder{0}, "retire slot 0, behind the step under way");
  first.Order(RetireOrder{4}, "retire a slot that is not there");
  ExpectGolden("stage_logic.txt", first.text());
}

TEST(TranscriptTest, AStageWhoseSlotKeepsKv) {
  const ModelSpec spec = SimModel(2);
  const absl::StatusOr<Plan> plan = WithKvThatGrows(spec);
  ASSERT_TRUE(plan.ok()) << plan.status();
  StageTranscript first(*plan, 0);
  AdmitOrder admit = Admit();
  admit.prompt.assign(20, 5);
  first.Order(admit, "admit request 7");
  first.Order(Rows(0, 16, 5), "the first 16 of its 20 tokens");
  first.Order(RetireOrder{.sequence = 0, .kept = 16}, "retire slot 0, which keeps a page, behind the step under way");
  first.Computed();  // the embedding
  first.Computed();  // attention 0
  first.Loaded(0);
  first.Computed();  // mlp 0
  first.Loaded(1);
  first.Hidden(0, 1, 16);
  first.Computed({{.sequence = 0, .position = 16, .token = 9}});  // the head
  admit.computed = 16;
  first.Order(admit, "request 7 again, with the KV of the slot");
  first.Order(RetireOrder{.sequence = 0, .kept = 16}, "retire slot 0, which keeps a page");
  admit.prompt.assign(33, 5), admit.computed = 32;
  first.Order(admit, "a request with more KV than the slot has");
  ExpectGolden("stage_shared.txt", first.text());
}

TEST(TranscriptTest, AStageThatLendsItsKvAndFails) {
  const ModelSpec spec = SimModel(2);
  const absl::StatusOr<Plan> plan = WithKvOnHost(spec);
  ASSERT_TRUE(plan.ok()) << plan.status();
  StageTranscript stage(*plan, 1);
  stage.Order(Admit(), "admit request 7");
  stage.Order(Rows(0, 3, 5), "a prompt of 3 tokens");
  stage.Hidden(0, 0, 3);
  stage.Computed();  // attention 1, up to its queries
  stage.KvArrived(AskedPart(*plan), 0);
  stage.Computed();  // what the host has
  stage.Order(Rows(3, 1, kSampledToken), "a token that is not known yet");
  stage.Fail(absl::UnavailableError("the host is lost"));
  stage.Computed();
  stage.Hidden(1, 0, 1);
  ExpectGolden("stage_kv.txt", stage.text());
}

TEST(TranscriptTest, ResidencyThatChanges) {
  const ModelSpec spec = SimModel(2);
  const absl::StatusOr<Plan> plan = WithKvThatGrows(spec);
  ASSERT_TRUE(plan.ok()) << plan.status();
  StageTranscript second(*plan, 1);
  const Residency more{.layer_pages = 6, .streamed = {1, 3}};
  second.Order(Admit(), "admit request 7");
  second.Order(Rows(0, 3, 5), "a prompt of 3 tokens");
  second.Order(ResidencyOrder{more}, "more pages, and the second MLP streams");
  second.Hidden(0, 0, 3);
  second.Computed();  // attention 1
  second.Computed();  // mlp 1
  second.Order(Rows(3, 1, kSampledToken), "a step that begins before the change");
  second.Prepared(more);
  second.Hidden(1, 0, 1);
  second.Computed();
  second.Computed();
  second.RoomMade();
  second.Order(Rows(4, 1, kSampledToken), "a step behind the border");
  second.Loaded(0);
  second.Hidden(2, 0, 1);
  second.Computed();
  second.Computed();
  ExpectGolden("residency_logic.txt", second.text());
}

// ---- The coordinator's

std::string OrderText(const Order& order) {
  if (const auto* admit = std::get_if<AdmitOrder>(&order.what)) {
    return absl::StrCat("admit request ", admit->request, " to slot ", admit->sequence, ", ", admit->positions, " positions",
                        admit->computed > 0 ? absl::StrCat(", with KV of ", admit->computed) : "",
                        admit->source >= 0 ? absl::StrCat(" copied from slot ", admit->source) : "");
  }
  if (const auto* retire = std::get_if<RetireOrder>(&order.what))
    return absl::StrCat("retire slot ", retire->sequence, retire->kept > 0 ? absl::StrCat(", which keeps KV of ", retire->kept) : "");
  if (const auto* residency = std::get_if<ResidencyOrder>(&order.what))
    return absl::StrCat("residency with ", residency->to.layer_pages, " pages");
  std::string text = "step";
  for (const MicroBatch& batch : std::get<StepOrder>(order.what).microbatches) {
    absl::StrAppend(&text, " [",
                    absl::StrJoin(batch.rows, " ",
                                  [](std::string* out, const BatchRow& row) {
                                    absl::StrAppend(out, row.sequence, ":", row.position, row.token == kSampledToken ? "?" : "",
                                                    row.wants_logits ? "*" : "");
                                  }),
                    "]");
  }
  return text;
}

class WriterTranscript {
 public:
  explicit WriterTranscript(const OrderWriter::Options& options) : writer(options) {}

  void Order(const std::string& event) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", event, "\n----\n");
    for (const lime::Order& each : writer.NextOrders()) {
      absl::StrAppend(&text, each.number, ": ", OrderText(each), "\n");
      if (const auto* step = std::get_if<StepOrder>(&each.what)) steps_.push_back(*step);
    }
  }
  // The oldest step makes a token for each row that asks for one.
  void EndStep() {
    std::vector<SampledToken> tokens;
    for (const MicroBatch& batch : steps_.at(static_cast<size_t>(ended_)).microbatches) {
      for (const BatchRow& row : batch.rows) {
        if (row.wants_logits) tokens.push_back({.sequence = row.sequence, .position = row.position + 1, .token = 1});
      }
    }
    EXPECT_TRUE(writer.OnTokens(ended_, tokens).ok());
    EXPECT_TRUE(writer.OnStepEnded(ended_).ok());
    Order(absl::StrCat("step ", ended_++, " ended with ", tokens.size(), " tokens"));
  }

  OrderWriter writer;
  std::string text;

 private:
  std::vector<StepOrder> steps_;
  int64_t ended_ = 0;
};

TEST(TranscriptTest, OrdersOfTwoRequests) {
  WriterTranscript orders({.sequences = 2,
                           .context = 64,
                           .batch = 1,
                           .microbatches = 2,
                           .max_rows = 4,
                           .chunk = 4,
                           .levels = {{.layer_pages = 4}, {.layer_pages = 8}}});
  ASSERT_TRUE(orders.writer.Add({.prompt = {1, 2, 3, 4, 5, 6}, .max_new_tokens = 3}).ok());
  ASSERT_TRUE(orders.writer.Add({.prompt = {1, 2}, .max_new_tokens = 40}).ok());
  orders.Order("two requests, of 6 and 2 tokens");
  for (int step = 0; step < 6; ++step) orders.EndStep();
  orders.writer.Stop(1);
  orders.Order("request 1 is stopped");
  ExpectGolden("order_writer.txt", orders.text);
}

TEST(TranscriptTest, OrdersOfRequestsThatShareKv) {
  WriterTranscript orders({.sequences = 3,
                           .context = 64,
                           .batch = 3,
                           .max_rows = 16,
                           .chunk = 16,
                           .prompts_ahead = 1,
                           .cache = {.most_pages = 4, .unit = kPageTokens},
                           .copies_kv = true});
  const auto add = [&](int64_t length, int32_t last, int64_t tokens) {
    Request request{.max_new_tokens = tokens, .cache_prompt = true};
    request.prompt.assign(static_cast<size_t>(length), 1);
    request.prompt.back() = last;
    ASSERT_TRUE(orders.writer.Add(std::move(request)).ok());
  };
  for (int choice = 0; choice < 2; ++choice) add(20, 1, 14);
  orders.Order("two choices of 20 tokens and 14 more");
  for (int step = 0; step < 15; ++step) orders.EndStep();
  add(36, 2, 1);
  orders.Order("the next turn: 36 tokens");
  orders.EndStep();
  add(20, 3, 40);
  add(30, 4, 4);
  add(30, 5, 4);
  orders.Order("three requests that begin like it");
  for (int step = 0; step < 6; ++step) orders.EndStep();
  ExpectGolden("order_writer_shared.txt", orders.text);
}

TEST(TranscriptTest, RecoveryFromACrash) {
  Recovery recovery({}, {"a", "b"});
  std::string text;
  absl::Time now = absl::UnixEpoch();
  const auto note = [&](const std::string& what, const Recovery::Event& event, absl::Duration after = absl::ZeroDuration()) {
    now += after;
    const Recovery::Answer answer = recovery.OnEvent(event, now);
    const char* const actions[] = {"nothing", "ask", "make a plan", "install", "go on", "give up"};
    absl::StrAppend(&text, text.empty() ? "" : "\n", absl::FormatDuration(now - absl::UnixEpoch()), " ", what, "\n----\n",
                    actions[answer.action.index()], answer.say.empty() ? "" : ": ", answer.say, "\n");
  };
  const absl::Status lost = absl::UnavailableError("b is lost");
  note("b is lost", Recovery::Failed{"b", lost});
  note("a answers", Recovery::Answered{{"a"}});
  note("a answers", Recovery::Answered{{"a"}}, absl::Seconds(11));
  note("there is no plan for it", Recovery::NoPlan{absl::ResourceExhaustedError("a is too small")});
  note("a and c answer", Recovery::Answered{{"a", "c"}}, absl::Seconds(1));
  note("there is one for a and c", Recovery::Planned{{"a", "c"}});
  note("c does not take it", Recovery::InstallFailed{"c", absl::UnavailableError("c is lost")});
  note("all answer", Recovery::Answered{{"a", "b", "c"}});
  note("installed", Recovery::Installed{});
  note("a token", Recovery::NewToken{});
  note("a person takes the plan away", Recovery::Failed{"a", absl::UnauthenticatedError("taken away")});
  ExpectGolden("recovery.txt", text);
}

TEST(TranscriptTest, ALinkThatSlowsDownAndKvThatGrows) {
  const RateKey link = LinkKey("a", "b");
  Replanner replanner({}, {{link, 12.5e6}, {DiskKey("a"), 1}});
  std::string text;
  absl::Time now = absl::UnixEpoch();
  const auto event = [&](const std::string& what, const std::string& answer, absl::Duration after) {
    now += after;
    absl::StrAppend(&text, text.empty() ? "" : "\n", absl::FormatDuration(now - absl::UnixEpoch()), " ", what, "\n----\n", answer, "\n");
  };
  const auto measure = [&](double mbit, absl::Duration after = absl::Seconds(1)) {
    const auto rates = replanner.OnRates({{link, mbit * 125e3}}, now + after);
    event(absl::StrCat("the link has ", mbit, " Mbit/s"), rates ? absl::StrCat("search: ", replanner.why()) : "nothing", after);
  };
  const auto find = [&](const std::optional<Replanner::Found>& found, const std::string& what, double steps) {
    const bool change = replanner.OnFound(found, steps, now);
    event(absl::StrCat(what, ", with ", steps, " steps to go"), change ? "change" : "stay", absl::ZeroDuration());
  };
  const Replanner::Found better{.current_ms = 100, .ms_per_step = 50, .pause_ms = 2000};
  measure(90);
  measure(20);
  measure(90);
  for (int second = 0; second < 4; ++second) measure(20);
  find(better, "50 instead of 100 ms, after a pause of 2 s", 20);
  for (int second = 0; second < 4; ++second) measure(5);
  measure(5, absl::Seconds(12));
  replanner.OnStale(now);
  event("what was found is for fewer positions", "nothing", absl::ZeroDuration());
  measure(5, absl::Seconds(15));
  find(better, "50 instead of 100 ms, after a pause of 2 s", 200);
  replanner.OnPlan({{link, 5 * 125e3}}, now);
  replanner.OnKv(10);
  event("the other plan is in use, with 10 pages of KV", "nothing", absl::ZeroDuration());
  replanner.OnKv(16);
  measure(5, absl::Seconds(5));
  measure(5, absl::Seconds(10));
  find(std::nullopt, "no other plan", 100);
  ExpectGolden("replanner.txt", text);
}

TEST(TranscriptTest, AQueueThatDrains) {
  ServeQueue queue({.most_waiting = 1, .most_wait = absl::Seconds(10)}, /*slots=*/1);
  std::string text;
  absl::Time now = absl::UnixEpoch();
  const auto event = [&](const std::string& what, const std::function<absl::Status()>& happens, absl::Duration after = absl::Seconds(1)) {
    now += after;
    absl::StrAppend(&text, text.empty() ? "" : "\n", absl::FormatDuration(now - absl::UnixEpoch()), " ", what, "\n----\n");
    if (const absl::Status answer = happens(); !answer.ok()) absl::StrAppend(&text, "refused: ", std::string(answer.message()), "\n");
    for (const ServeQueue::Ending& due : queue.Due(now))
      absl::StrAppend(&text, "end request ", due.request, ": ", std::string(due.why.message()), "\n");
    absl::StrAppend(&text, queue.running(), " run, ", queue.waiting(), " wait", queue.drained() ? ", drained" : "", "\n");
  };
  const auto arrive = [&](RequestId request) {
    event(absl::StrCat("request ", request, " comes"), [&, request] { return queue.Arrive(request, now); });
  };
  const auto note = [&](const std::string& what, const std::function<void()>& happens) {
    event(what, [&] { return happens(), absl::OkStatus(); });
  };
  arrive(0);
  note("request 0 has a slot", [&] { queue.Start(0); });
  arrive(1);
  arrive(2);
  event(
      "time passes", [] { return absl::OkStatus(); }, absl::Seconds(9));
  note("request 1 has ended", [&] { queue.End(1); });
  arrive(2);
  note("request 2 is left", [&] { queue.Cancel(2); });
  note("request 2 has ended", [&] { queue.End(2); });
  arrive(3);
  note("it drains", [&] { queue.Drain(); });
  note("request 3 has ended", [&] { queue.End(3); });
  arrive(4);
  note("request 0 has ended", [&] { queue.End(0); });
  note("it is closed", [&] { queue.Close(absl::UnavailableError("the server ends")); });
  arrive(5);
  ExpectGolden("serve_queue.txt", text);
}

}  // namespace
}  // namespace lime
