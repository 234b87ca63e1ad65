#include "core/engine/dispatcher.h"

#include <limits>
#include <utility>

namespace kvbridge::engine {

Dispatcher::Dispatcher(base::WorkerPool* pool, const base::Clock* clock,
                       Scheduler::WeightOf weight_of, int64_t pass_tokens)
    : pool_(*pool), clock_(*clock), pass_tokens_(pass_tokens), scheduler_(std::move(weight_of)) {}

Scheduler::Place Dispatcher::Enter(absl::string_view tenant, double seconds,
                                   double until_deadline) {
  base::MutexLock lock(&mutex_);
  return scheduler_.Enter(tenant, seconds, until_deadline);
}

void Dispatcher::Leave(absl::string_view tenant) {
  base::MutexLock lock(&mutex_);
  scheduler_.Leave(tenant);
}

size_t Dispatcher::queued() const {
  base::MutexLock lock(&mutex_);
  return scheduler_.queued();
}

Scheduler::Ticket Dispatcher::Queue(const std::shared_ptr<Sweep>& sweep) {
  Entry entry = {sweep, sweep->NextPass(), sweep->tokens()};
  base::MutexLock lock(&mutex_);
  const Scheduler::Ticket ticket = scheduler_.Push(sweep->tenant(), sweep->place());
  entries_.emplace(ticket, std::move(entry));
  return ticket;
}

absl::Status Dispatcher::Submit(const std::shared_ptr<Sweep>& sweep) {
  sweep->Offer(1);
  const Scheduler::Ticket ticket = Queue(sweep);
  const absl::Status submitted = pool_.Submit([self = shared_from_this()] { self->RunPass(); });
  if (submitted.ok()) return submitted;
  base::MutexLock lock(&mutex_);
  const bool kept = scheduler_.PopIf([ticket](Scheduler::Ticket t) { return t == ticket; }).empty();
  if (kept) return absl::OkStatus();  // Somebody else's job has taken it already.
  entries_.erase(ticket);
  return submitted;
}

// For units that follow others, from inside a job.
void Dispatcher::QueueMore(const std::shared_ptr<Sweep>& sweep) {
  for (int32_t n = sweep->Offer(std::numeric_limits<int32_t>::max()); n > 0; --n) {
    Queue(sweep);
    pool_.Resubmit([self = shared_from_this()] { self->RunPass(); });
  }
}

Dispatcher::Entry Dispatcher::Claim(Scheduler::Ticket ticket) {
  const auto it = entries_.find(ticket);
  Entry entry = std::move(it->second);
  entries_.erase(it);
  return entry;
}

std::vector<Dispatcher::Entry> Dispatcher::TakePass() {
  std::vector<Entry> taken;
  base::MutexLock lock(&mutex_);
  const std::optional<Scheduler::Ticket> first = scheduler_.Pop();
  if (!first.has_value()) return taken;
  taken.push_back(Claim(*first));
  const Sweep::Pass pass = taken.front().pass;
  int64_t tokens = taken.front().tokens;
  if (pass.resident == nullptr || tokens >= pass_tokens_) return taken;
  const auto fits = [&](Scheduler::Ticket ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Entry& entry = entries_.find(ticket)->second;
    if (entry.pass != pass || tokens + entry.tokens > pass_tokens_) return false;
    tokens += entry.tokens;
    return true;
  };
  for (const Scheduler::Ticket ticket : scheduler_.PopIf(fits)) taken.push_back(Claim(ticket));
  return taken;
}

void Dispatcher::RunPass() {
  const std::vector<Entry> entries = TakePass();
  std::vector<Running> running;
  for (const Entry& entry : entries) {
    if (auto started = Start(entry, entries.size() - 1)) running.push_back(*std::move(started));
  }
  if (!running.empty()) Map(running);
}

std::optional<Dispatcher::Running> Dispatcher::Start(const Entry& entry, size_t others) {
  const std::optional<Sweep::Unit> unit = entry.sweep->Take();
  if (!unit.has_value()) return std::nullopt;
  {
    base::MutexLock lock(&mutex_);
    scheduler_.Charge(entry.sweep->tenant(), entry.sweep->SecondsOf(*unit, others));
  }
  QueueMore(entry.sweep);
  const auto part = entry.sweep->Open(*unit);
  if (part.ok() && part->has_value()) return Running{entry.sweep, *unit, **part};
  if (part.ok()) {
    entry.sweep->Close(*unit, device::TileChecks(), absl::ZeroDuration(), 1);
  } else {
    entry.sweep->Close(*unit, part.status(), absl::ZeroDuration(), 1);
  }
  QueueMore(entry.sweep);
  return std::nullopt;
}

void Dispatcher::Map(const std::vector<Running>& running) {
  std::vector<device::TilePart> parts;
  int64_t tokens = 0;
  for (const Running& one : running) {
    parts.push_back(one.part);
    tokens += one.unit.tokens;
  }
  const Sweep& first = *running.front().sweep;
  const int32_t at_start = passes_running_.fetch_add(1) + 1;
  const absl::Time start = clock_.Now();
  const auto answers =
      first.backend().MapTogether(first.resident(), running.front().unit.layers, parts);
  const absl::Duration took = clock_.Now() - start;
  const int32_t at_end = passes_running_.fetch_sub(1);
  const double pace = 2.0 / (at_start + at_end);
  for (size_t i = 0; i < running.size(); ++i) {
    const auto& [sweep, unit, part] = running[i];
    const double share = static_cast<double>(unit.tokens) / static_cast<double>(tokens);
    sweep->Close(unit, answers[i], took * share, pace);
    QueueMore(sweep);
  }
}

void Dispatcher::ExpelRefused() {
  // Where the queue is full, the units' own jobs come by and find the refusal.
  (void)pool_.Submit([self = shared_from_this()] { self->EndRefused(); });
}

void Dispatcher::EndRefused() {
  std::vector<Entry> ended;
  {
    base::MutexLock lock(&mutex_);
    const auto refused = [this](Scheduler::Ticket ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return entries_.find(ticket)->second.sweep->refused();
    };
    for (const Scheduler::Ticket ticket : scheduler_.PopIf(refused)) {
      ended.push_back(Claim(ticket));
    }
  }
  for (const Entry& entry : ended) entry.sweep->Abort();
}

}  // namespace kvbridge::engine
