// From moments to a mapper: which source layers, which support, how much ridge, which bytes.
//
// Nothing is read but the moments. The same moments and options give the same mapper and the same
// record, whatever the number of threads. docs/fit.md says what each step does.
//
// Thread contract: Solve blocks; it uses OpenBLAS, whose thread count it changes meanwhile, so one
// Solve runs at a time in a process. Not from inside a pool job.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "core/artifact/manifest.h"
#include "core/base/strict_json.h"
#include "core/fit/curve.h"
#include "core/fit/moments.h"
#include "core/fit/ridge.h"
#include "core/mapper/mapper.h"
#include "core/tensor/dtype.h"

namespace kvbridge::fit {

enum class Order : uint8_t { kForward, kProbe };
enum class SupportRule : uint8_t { kAuto, kFull, kHeadLocal };
enum class ChoiceRule : uint8_t {
  kBest,    // each layer's and component's least error
  kFixed,   // `k` source layers everywhere; with SupportRule::kAuto, the bytes of full-head k
  kSweep,   // the best k for all
  kBudget,  // at most `budget_bytes` of weights and biases
};

struct SolveOptions {
  Order order = Order::kForward;
  bool joint_lists = false;  // one list for K and V of a target layer
  bool cross = true;         // read the other component too, where the moments are joint
  SupportRule support = SupportRule::kAuto;
  ChoiceRule choice = ChoiceRule::kBest;
  int32_t k = 4;
  int64_t budget_bytes = 0;
  int32_t max_k = 8;  // full-head layers that a list may hold; head-local ones: times the heads
  std::optional<Lambda> lambda;  // none = chosen for each layer and component
  Lambda probe_lambda{.value = 1e-3};
  bool probe_in_sample = false;
  std::array<double, 2> component_weight = {1, 1};
  bool refit = true;
  tensor::DType dtype = tensor::DType::kBf16;  // or kF32
  mapper::KeyNorm key_norm;
  base::Json moments_record = base::Json::object();  // into the record, as it is

  int threads = 0;           // 0 = one per CPU
  int64_t memory_bytes = 0;  // for weights and workspaces, not the moments; 0 = no bound
  std::stop_token stop;
  std::function<void(absl::string_view, double)> progress;  // see Loops
};

// The Python prototype's: probes on the rows fitted on, lambda 0.01 on the raw Gram, joint lists,
// full-head, F32.
SolveOptions PrototypeOptions(int32_t k);

struct Solution {
  mapper::Mapper mapper;            // no digest yet
  artifact::Provenance provenance;  // calibration as in docs/fit.md; no evidence
};

// INVALID_ARGUMENT: options or moments that contradict themselves, naming the field.
// FAILED_PRECONDITION: the moments lack what was asked for, or a system stays singular.
// RESOURCE_EXHAUSTED: the budget or the memory is too small, with what is needed. CANCELLED.
absl::StatusOr<Solution> Solve(const Moments& moments, const SolveOptions& options);

// Workspace of one thread that solves `features` columns for `targets` columns.
int64_t WorkspaceBytes(int64_t features, int64_t targets);

}  // namespace kvbridge::fit
