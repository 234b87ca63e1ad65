// Who is served next. Units of work are a few milliseconds long, so whoever is chosen delays the
// others by no more than that.
//
// Between tenants: shares by weight, by start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996).
// A tenant that comes back after a pause starts level with the others: it has saved nothing up and
// owes nothing. Transfers that are short alone may borrow from their tenant's future share: until
// it has had kBorrowed seconds more than its due they need not wait for its turn, the shortest
// first (after borrowed virtual time, Duda and Cheriton, SOSP 1999). So a tenant whose long
// transfers use up its share still gets quick answers to its short ones, and the others lose no
// more than that.
//
// Within a tenant: earliest deadline first, in virtual time. A tenant's virtual time is what each
// of its transfers would have been given by now if all had shared its time equally. A transfer is
// due kPatience times its own length after it came, or at its caller's deadline if that is nearer.
// So a short transfer goes ahead of a long one that came before it, and no transfer waits for ever:
// whoever comes late enough is due later, however short (after the fair sojourn protocol, Friedman
// and Henderson, SIGMETRICS 2003).
//
// Time is in seconds of service. Nothing here reads a clock, and one thread at a time may use it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace kvbridge::engine {

class Scheduler {
 public:
  using Ticket = uint64_t;
  // Share of a tenant relative to the others'; above 0.
  using WeightOf = std::function<double(absl::string_view tenant)>;

  // Where a transfer's units stand in their tenant's queue.
  struct Place {
    double due;
    double seconds;  // of the transfer alone
  };

  static constexpr double kPatience = 4;
  static constexpr double kShort = 0.1;
  static constexpr double kBorrowed = 2;

  explicit Scheduler(WeightOf weight_of) : weight_of_(std::move(weight_of)) {}

  // A transfer comes: `seconds` is what it will take alone, `until_deadline` may be infinite.
  // Leave() once for each.
  Place Enter(absl::string_view tenant, double seconds, double until_deadline);
  void Leave(absl::string_view tenant);

  // Queues a unit of a transfer's work.
  Ticket Push(absl::string_view tenant, Place place);
  // Takes the unit to run next out of the queue.
  std::optional<Ticket> Pop();
  // Takes units out of turn, those due first first: all that `wanted` says true of.
  std::vector<Ticket> PopIf(absl::FunctionRef<bool(Ticket)> wanted);
  // `tenant` is given `seconds` of service.
  void Charge(absl::string_view tenant, double seconds);

  size_t queued() const { return queued_; }

 private:
  struct Tenant {
    double weight = 1;
    double tag = 0;  // service over weight, never behind the others' when it joins the queue
    double virtual_now = 0;  // inside the tenant
    int64_t entered = 0;
    uint64_t last_served = 0;
    std::map<std::pair<double, Ticket>, double> queue;  // by due, then by arrival: Place::seconds
  };
  using Turn = std::tuple<bool, double, uint64_t>;
  Tenant& Find(absl::string_view name);
  // Of a tenant that has something queued; the least is served next.
  Turn TurnOf(const Tenant& tenant) const;
  void ForgetIdle();

  const WeightOf weight_of_;
  absl::flat_hash_map<std::string, Tenant> tenants_;
  double tag_now_ = 0;       // the least of those that waited when a unit was last taken
  double virtual_base_ = 0;  // the latest virtual time of any tenant that was forgotten
  Ticket last_ticket_ = 0;
  uint64_t serves_ = 0;
  size_t queued_ = 0;
};

}  // namespace kvbridge::engine
