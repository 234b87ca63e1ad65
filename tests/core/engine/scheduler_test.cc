// The scheduler on a simulated machine: workers that are always busy with some unit, and a clock
// that only they move.
#include "core/engine/scheduler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvbridge::engine {
namespace {

using ::testing::ElementsAre;
constexpr double kNever = std::numeric_limits<double>::infinity();

// Transfers of equal units, each with one unit queued or running at a time.
class Machine {
 public:
  Machine(int workers, std::map<std::string, double> weights)
      : scheduler_([weights = std::move(weights)](absl::string_view tenant) {
          const auto it = weights.find(std::string(tenant));
          return it == weights.end() ? 1.0 : it->second;
        }),
        free_at_(workers, 0) {}

  void Submit(const std::string& tenant, double seconds, double deadline = kNever,
              double unit = 0.005) {
    transfers_.push_back({tenant, seconds, std::min(unit, seconds), now_,
                          scheduler_.Enter(tenant, seconds, deadline - now_)});
    Queue(transfers_.size() - 1);
  }
  // Until `until`, or until nothing is queued.
  void Run(double until) {
    for (;;) {
      const auto worker = std::min_element(free_at_.begin(), free_at_.end());
      // Whoever runs a unit until then gives it back first.
      while (!running_.empty() && running_.begin()->first <= *worker) GiveBack();
      if (scheduler_.queued() == 0) {
        if (running_.empty()) return;
        *worker = running_.begin()->first;
        continue;
      }
      now_ = *worker;
      if (now_ >= until) return;
      const size_t index = units_.at(*scheduler_.Pop());
      Transfer& transfer = transfers_[index];
      const double seconds = std::min(transfer.unit, transfer.left);
      scheduler_.Charge(transfer.tenant, seconds);
      transfer.left -= seconds;
      served[transfer.tenant] += seconds;
      *worker = now_ + seconds;
      running_.emplace(*worker, index);
    }
  }
  double now() const { return now_; }
  // Seconds from submission to end; none yet: infinite.
  double Latency(size_t transfer) const {
    return transfers_[transfer].ended - transfers_[transfer].came;
  }
  size_t submitted() const { return transfers_.size(); }
  bool ended(size_t transfer) const { return transfers_[transfer].ended < kNever; }

  std::map<std::string, double> served;
  std::function<void(size_t)> on_end = [](size_t) {};

 private:
  struct Transfer {
    std::string tenant;
    double left;
    double unit;
    double came;
    Scheduler::Place place;
    double ended = kNever;
  };
  void Queue(size_t index) {
    units_[scheduler_.Push(transfers_[index].tenant, transfers_[index].place)] = index;
  }
  void GiveBack() {
    const auto [when, index] = *running_.begin();
    running_.erase(running_.begin());
    if (transfers_[index].left > 1e-12) return Queue(index);
    transfers_[index].ended = when;
    scheduler_.Leave(transfers_[index].tenant);
    const double before = std::exchange(now_, when);
    on_end(index);
    now_ = before;
  }

  Scheduler scheduler_;
  std::vector<double> free_at_;
  double now_ = 0;
  std::vector<Transfer> transfers_;
  std::map<Scheduler::Ticket, size_t> units_;
  std::multimap<double, size_t> running_;
};

TEST(SchedulerTest, BackloggedTenantsShareByWeightWhateverTheirUnits) {
  for (const int workers : {1, 2, 7}) {
    Machine machine(workers, {{"gold", 4}, {"silver", 2}, {"bronze", 1}});
    for (int i = 0; i < 20; ++i) {
      machine.Submit("gold", 1000, kNever, 0.004);
      machine.Submit("silver", 1000, kNever, 0.011);
      machine.Submit("bronze", 1000, kNever, 0.001);
    }
    machine.Run(100);
    const double all = 100.0 * workers;
    EXPECT_NEAR(machine.served["gold"] / all, 4.0 / 7, 0.01) << workers;
    EXPECT_NEAR(machine.served["silver"] / all, 2.0 / 7, 0.01) << workers;
    EXPECT_NEAR(machine.served["bronze"] / all, 1.0 / 7, 0.01) << workers;
  }
}

// Each tenant always has six transfers of random length, from 10 ms to 5 s.
TEST(SchedulerTest, SharesHoldWhileTransfersComeAndGoAndNoneStarves) {
  std::mt19937 rng(3);
  std::uniform_real_distribution<double> log_length(std::log(0.01), std::log(5.0));
  Machine machine(4, {{"a", 3}, {"b", 1}, {"c", 1}});
  std::vector<std::string> tenant_of;
  const auto submit = [&](const std::string& tenant) {
    tenant_of.push_back(tenant);
    machine.Submit(tenant, std::exp(log_length(rng)));
  };
  machine.on_end = [&](size_t i) { submit(std::string(tenant_of[i])); };
  for (int i = 0; i < 6; ++i) {
    for (const char* tenant : {"a", "b", "c"}) submit(tenant);
  }
  machine.Run(600);
  EXPECT_NEAR(machine.served["a"] / 2400, 0.6, 0.03);
  EXPECT_NEAR(machine.served["b"] / 2400, 0.2, 0.02);
  EXPECT_NEAR(machine.served["c"] / 2400, 0.2, 0.02);
  // Whoever came in the first half has left.
  size_t alive = 0;
  for (size_t i = 0; i < machine.submitted() / 2; ++i) alive += machine.ended(i) ? 0 : 1;
  EXPECT_EQ(alive, 0u);
}

TEST(SchedulerTest, AShortTransferWaitsForAboutOneUnitBehindLongOnes) {
  Machine machine(2, {});
  for (int i = 0; i < 8; ++i) machine.Submit("a", 40);
  machine.Run(10);
  for (const char* tenant : {"a", "b"}) {
    const size_t short_one = machine.submitted();
    machine.Submit(tenant, 0.02);
    machine.Run(machine.now() + 1);
    ASSERT_TRUE(machine.ended(short_one));
    EXPECT_LE(machine.Latency(short_one), 0.02 + 2 * 0.005) << tenant;
  }
}

TEST(SchedulerTest, DeadlinesNearerThanPatienceGoFirstEarliestFirst) {
  Scheduler scheduler({});
  std::map<Scheduler::Ticket, std::string> names;
  const auto add = [&](const char* name, double seconds, double deadline) {
    names[scheduler.Push("t", scheduler.Enter("t", seconds, deadline))] = name;
  };
  add("no deadline", 10, kNever);
  add("late", 10, 20);
  add("early", 10, 11);
  add("between", 10, 15);
  add("far", 10, 1000);
  std::vector<std::string> order;
  while (const auto ticket = scheduler.Pop()) order.push_back(names[*ticket]);
  EXPECT_THAT(order, ElementsAre("early", "between", "late", "no deadline", "far"));
}

// A stream of short transfers that alone would fill the machine.
TEST(SchedulerTest, ALongTransferEndsThoughShortOnesNeverStopComing) {
  Machine machine(1, {});
  machine.Submit("a", 1);
  for (double t = 0; t < 60 && !machine.ended(0); t += 0.02) {
    machine.Submit("a", 0.02);
    machine.Run(t + 0.02);
  }
  EXPECT_TRUE(machine.ended(0));
  EXPECT_LE(machine.Latency(0), 30);
}

TEST(SchedulerTest, AnIdleTenantSavesNothingUp) {
  Machine machine(1, {});
  machine.Submit("busy", 1000);
  machine.Run(100);
  machine.Submit("idle", 1000);
  machine.Run(110);
  EXPECT_NEAR(machine.served["idle"], 5, 0.02);
}

TEST(SchedulerTest, ATenantThatComesBackOwesWhatItTookBeyondItsShare) {
  Scheduler scheduler([](absl::string_view t) { return t == "light" ? 0.01 : 1.0; });
  const Scheduler::Place heavy = scheduler.Enter("heavy", 1, kNever);
  // One unit, for which a tenant of this weight has to wait a hundred times as long.
  scheduler.Push("light", scheduler.Enter("light", 1, kNever));
  ASSERT_TRUE(scheduler.Pop().has_value());
  scheduler.Charge("light", 0.01);
  scheduler.Leave("light");
  const Scheduler::Ticket again = scheduler.Push("light", scheduler.Enter("light", 1, kNever));
  for (int i = 0; i < 99; ++i) {
    scheduler.Push("heavy", heavy);
    EXPECT_NE(scheduler.Pop(), again) << i;
    scheduler.Charge("heavy", 0.01);
  }
  for (int i = 0; i < 3; ++i) {
    scheduler.Push("heavy", heavy);
    if (scheduler.Pop() == again) return;
    scheduler.Charge("heavy", 0.01);
  }
  ADD_FAILURE() << "its turn never came";
}

// By its share alone, 20 ms would take this tenant 20 ms * (1 + 99).
TEST(SchedulerTest, AShortTransferDoesNotWaitForItsTenantsTurn) {
  Machine machine(2, {{"light", 1}, {"heavy", 99}});
  for (int i = 0; i < 8; ++i) {
    machine.Submit("heavy", 1000);
    machine.Submit("light", 1000);
  }
  machine.Run(10);
  const size_t short_one = machine.submitted();
  machine.Submit("light", 0.02);
  machine.Run(machine.now() + 1);
  ASSERT_TRUE(machine.ended(short_one));
  EXPECT_LE(machine.Latency(short_one), 0.02 + 2 * 0.005);
}

TEST(SchedulerTest, ShortTransfersBorrowOnceAndNoMore) {
  Machine machine(1, {{"short", 1}, {"long", 3}});
  for (int i = 0; i < 4; ++i) machine.Submit("long", 1000);
  machine.on_end = [&](size_t) { machine.Submit("short", 0.05); };
  for (int i = 0; i < 4; ++i) machine.Submit("short", 0.05);
  machine.Run(100);
  const double share = 25, lead = machine.served["short"] - share;
  // While it borrows its share goes on: what it leads by, the others have not had.
  EXPECT_NEAR(lead, Scheduler::kBorrowed * 3 / 4, 0.1);
}

TEST(SchedulerTest, UnitsTakenOutOfTurnAreGoneFromTheQueue) {
  Scheduler scheduler({});
  std::vector<Scheduler::Ticket> tickets;
  for (const char* tenant : {"a", "b", "a"}) {
    tickets.push_back(scheduler.Push(tenant, scheduler.Enter(tenant, 1, kNever)));
  }
  const auto taken = scheduler.PopIf([&](Scheduler::Ticket t) { return t != tickets[1]; });
  EXPECT_THAT(taken, ElementsAre(tickets[0], tickets[2]));
  EXPECT_EQ(scheduler.queued(), 1u);
  EXPECT_EQ(scheduler.Pop(), tickets[1]);
  EXPECT_EQ(scheduler.Pop(), std::nullopt);
}

}  // namespace
}  // namespace kvbridge::engine
