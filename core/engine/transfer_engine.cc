#include "core/engine/transfer_engine.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/base/units.h"
#include "core/engine/dispatcher.h"
#include "core/guard/pre_check.h"

namespace kvbridge::engine {
namespace {

using guard::Fallback;
using guard::Reason;
using guard::Refusal;

// Sizes come from a request: one that does not fit 64 bits becomes one that fits no limit.
uint64_t Times(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return base::CheckedMul(a, b, &product) ? product : std::numeric_limits<uint64_t>::max();
}
uint64_t Plus(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  return base::CheckedAdd(a, b, &sum) ? sum : std::numeric_limits<uint64_t>::max();
}

// A token is multiplied with every weight: bytes of weights that a machine gets through in a
// second, until it has been measured.
constexpr double kUsualBytesPerSecond = 5e11;
// Of a cache that is only moved.
constexpr double kUsualMoveBytesPerSecond = 5e9;

// The smallest stated bound on positions, 0 = none.
int64_t MaxPosition(const guard::TransferSpec& spec, const mapper::Mapper& mapper) {
  int64_t bound = 0;
  for (const model::ModelSpec* m : {&spec.source, &spec.target, &mapper.source, &mapper.target}) {
    const int64_t stated = m->rope.max_position;
    if (stated > 0 && (bound == 0 || stated < bound)) bound = stated;
  }
  return bound;
}

absl::StatusOr<kv::Positions> MakePositions(const guard::TransferSpec& spec,
                                            const mapper::Mapper& mapper) {
  const int64_t bound = MaxPosition(spec, mapper);
  return spec.position_list.empty()
             ? kv::Positions::CreateRange(spec.position_start, spec.tokens, bound)
             : kv::Positions::Create(spec.position_list, bound);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TransferEngine>> TransferEngine::Create(const Options& options,
                                                                       const Deps& deps) {
  if (deps.pool == nullptr || deps.backend == nullptr || deps.clock == nullptr) {
    return absl::InvalidArgumentError("engine: expected a pool, a backend and a clock");
  }
  if (options.tile_tokens < 16 || options.tile_tokens > 4096) {
    return absl::InvalidArgumentError(
        absl::StrCat("engine.tile_tokens: expected 16 to 4096, got ", options.tile_tokens));
  }
  if (options.tiles_in_flight < 1 || options.tiles_in_flight > 64) {
    return absl::InvalidArgumentError(
        absl::StrCat("engine.tiles_in_flight: expected 1 to 64, got ", options.tiles_in_flight));
  }
  KVB_ASSIGN_OR_RETURN(std::shared_ptr<Admission> admission, Admission::Create(options.limits));
  return std::unique_ptr<TransferEngine>(new TransferEngine(options, deps, std::move(admission)));
}

TransferEngine::TransferEngine(const Options& options, const Deps& deps,
                               std::shared_ptr<Admission> admission)
    : options_(options),
      deps_(deps),
      admission_(std::move(admission)),
      dispatcher_(std::make_shared<Dispatcher>(deps.pool, deps.clock, options.tenant_weight,
                                               options.tile_tokens)) {}

size_t TransferEngine::queued_units() const { return dispatcher_->queued(); }

absl::Status TransferEngine::MeasureRate(const device::ResidentMapper& resident) {
  const mapper::Mapper& mapper = resident.mapper();
  const auto cache = [this](const model::KvGeometry& geometry, std::vector<std::byte>* bytes) {
    bytes->resize(static_cast<size_t>(geometry.token_bytes() * options_.tile_tokens));
    return kv::DenseTileView(bytes->data(), geometry.dtype, geometry.layers, options_.tile_tokens,
                             geometry.kv_heads, geometry.head_dim);
  };
  // The serving element type: FP8 would need scales, and costs about the same.
  model::KvGeometry from = mapper.source.geometry;
  model::KvGeometry to = mapper.target.geometry;
  from.dtype = to.dtype = tensor::DType::kBf16;
  std::vector<std::byte> source_bytes;
  std::vector<std::byte> target_bytes;
  const kv::KvView source = cache(from, &source_bytes);
  const kv::KvView target = cache(to, &target_bytes);
  const std::vector<int64_t> positions(static_cast<size_t>(options_.tile_tokens), 0);
  absl::Duration fastest = absl::InfiniteDuration();
  for (const bool warm : {false, true, true}) {
    const absl::Time start = deps_.clock->Now();
    KVB_ASSIGN_OR_RETURN(const std::unique_ptr<device::PreparedTile> tile,
                         deps_.backend->Prepare(resident, {.view = &source,
                                                           .tokens = {0, options_.tile_tokens},
                                                           .positions = positions}));
    KVB_RETURN_IF_ERROR(
        deps_.backend->MapLayers(resident, *tile, {0, to.layers}, target, 0, [] { return false; })
            .status());
    if (warm) fastest = std::min(fastest, deps_.clock->Now() - start);
  }
  rates_.Record(mapper.digest, options_.tile_tokens, fastest, deps_.clock->Now());
  return absl::OkStatus();
}

device::Backend& TransferEngine::BackendOf(const ArtifactPin& pin) {
  return pin.moves ? mover_ : *deps_.backend;
}

std::optional<double> TransferEngine::ExpectedSeconds(const ArtifactPin& pin, int64_t tokens,
                                                      absl::Time now) const {
  if (pin.moves) return std::nullopt;
  const std::optional<Rate> rate = rates_.Get(pin.resident->mapper().digest);
  if (!rate.has_value() || now - rate->measured_at > kRateLifetime) return std::nullopt;
  return rate->seconds_per_unit * static_cast<double>(tokens);
}

double TransferEngine::SecondsPerToken(const ArtifactPin& pin) const {
  const mapper::Mapper& mapper = pin.resident->mapper();
  if (pin.moves) {
    return static_cast<double>(mapper.target.geometry.token_bytes()) / kUsualMoveBytesPerSecond;
  }
  const std::optional<Rate> rate = rates_.Get(mapper.digest);
  if (rate.has_value()) return rate->seconds_per_unit;
  return static_cast<double>(pin.resident->resident_bytes()) / kUsualBytesPerSecond;
}

TransferEngine::Need TransferEngine::NeedOf(const guard::TransferSpec& spec, int64_t mapped_tokens,
                                            const ArtifactPin& pin) {
  const device::Backend& backend = BackendOf(pin);
  const device::ResidentMapper& mapper = *pin.resident;
  const uint64_t source_bytes = spec.source.geometry.token_bytes();
  const uint64_t target_bytes = spec.target.geometry.token_bytes();
  const int64_t tile = std::min<int64_t>(options_.tile_tokens, mapped_tokens);
  const int64_t all_tiles = (mapped_tokens + tile - 1) / tile;
  const int64_t tiles = std::min<int64_t>(options_.tiles_in_flight, all_tiles);
  const uint64_t buffered =
      (spec.source_buffered ? source_bytes : 0) + (spec.target_buffered ? target_bytes : 0);
  const uint64_t call = backend.CallBytes(mapper, tile);
  const uint64_t per_tile =
      Plus(Plus(backend.TileBytes(mapper, tile, device::SourceUse::kAtOnce), call),
           Times(tile, buffered));
  const uint64_t positions = Times(spec.tokens, sizeof(int64_t));
  Need need;
  need.claim = {.tenant = spec.tenant,
                .payload_bytes = Plus(Times(spec.tokens - spec.first_token, source_bytes),
                                      Times(mapped_tokens, target_bytes)),
                .buffer_bytes = Plus(Times(tiles, per_tile), positions)};
  if (buffered > 0) return need;
  const uint64_t swept =
      std::max<uint64_t>(1, backend.TileBytes(mapper, tile, device::SourceUse::kByLayer));
  const uint64_t sweep_tiles = std::min<uint64_t>(options_.sweep_bytes / swept, all_tiles);
  if (sweep_tiles < 2) return need;
  need.claim.wish_bytes =
      std::max(need.claim.buffer_bytes,
               Plus(Plus(Times(sweep_tiles, swept), Times(tiles, call)), positions));
  need.sweep_tokens = static_cast<int64_t>(sweep_tiles) * tile;
  return need;
}

std::variant<std::shared_ptr<Transfer>, Decision> TransferEngine::Begin(
    guard::TransferSpec spec, const guard::RoutePolicy& policy, ArtifactPin pin) {
  const mapper::Mapper& mapper = pin.resident->mapper();
  const absl::Time now = deps_.clock->Now();
  const auto checked = guard::PreCheck(spec, policy,
                                       {mapper.source, mapper.target, pin.proven,
                                        admission_->limits().max_tokens, now, mapper.digest});
  if (const auto* no = std::get_if<Refusal>(&checked)) return Refused(*no, spec);
  const auto& admissible = std::get<guard::Admissible>(checked);
  const int64_t mapped = admissible.covered_tokens - spec.first_token;

  const std::optional<absl::Duration> budget =
      spec.max_latency.has_value() ? spec.max_latency : policy.max_latency;
  const std::optional<double> expected = ExpectedSeconds(pin, mapped, now);
  if (budget.has_value() && expected.has_value() && absl::Seconds(*expected) > *budget) {
    return Refused(Fallback(Reason::kLatencyBudget,
                            absl::StrCat("max_latency: expected at least ",
                                         absl::FormatDuration(absl::Seconds(*expected)), ", got ",
                                         absl::FormatDuration(*budget))),
                   spec);
  }

  const Need need = NeedOf(spec, mapped, pin);
  auto reserved = admission_->Reserve(need.claim);
  if (const auto* no = std::get_if<Refusal>(&reserved)) return Refused(*no, spec);
  auto& reservation = std::get<Reservation>(reserved);
  const bool sweep = need.sweep_tokens > 0 && reservation.bytes() == need.claim.wish_bytes;
  const Transfer::Room room = sweep
                                  ? Transfer::Room{need.sweep_tokens, 1}
                                  : Transfer::Room{options_.tile_tokens, options_.tiles_in_flight};

  absl::StatusOr<kv::Positions> positions = MakePositions(spec, mapper);
  if (!positions.ok()) {
    return Refused(Fallback(Reason::kInvalidRequest, absl::StrCat("source_selection.positions: ",
                                                                  positions.status().message())),
                   spec);
  }
  if (positions->pads() >= admissible.covered_tokens) {
    return Refused(Fallback(Reason::kNotWorthIt, "covered tokens: all of them are padding"), spec);
  }
  absl::StatusOr<std::string> salt = CacheSalt(mapper.digest, policy.salt, spec.hops + 1);
  if (!salt.ok()) {
    return Refused(Fallback(Reason::kInternal, salt.status().message()), spec);
  }
  const Transfer::Env env{dispatcher_, &BackendOf(pin),      deps_.clock,
                          &rates_,     options_.tile_tokens, options_.tiles_in_flight};
  const absl::Time budget_end = now + budget.value_or(absl::InfiniteDuration());
  const double seconds_per_token = SecondsPerToken(pin);
  const Scheduler::Place place =
      dispatcher_->Enter(spec.tenant, seconds_per_token * static_cast<double>(mapped),
                         absl::ToDoubleSeconds(std::min(spec.deadline, budget_end) - now));
  return std::shared_ptr<Transfer>(new Transfer(
      env,
      {std::move(spec), policy, admissible, std::move(pin), std::move(reservation), room,
       *std::move(positions), *std::move(salt), budget_end, expected, seconds_per_token, place}));
}

}  // namespace kvbridge::engine
