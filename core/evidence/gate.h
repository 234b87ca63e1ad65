// A gate: what an artifact must show on held-out text before it may serve. It is written before the
// run whose figures it judges, and the verdict names its digest.
//
// A gate file is YAML or JSON, an object of
//   schema           "kvbridge-gate/1"
//   name             for people
//   native_tail      the target reads the prompt's last N tokens itself; the verdict is about that
//   N min_sequences    fewer of a domain prove nothing; at least 2 identity_kl_max  nats; more, and
//   the harness itself is wrong domains          {name: rules}; each must have been run. Rules of
//   "*" are for the run's others.
// and rules are an object of any of
//   kl_mean_max, kl_p95_max      nats per token, over sequences
//   top1_min                     share of tokens
//   gap_min                      share of the source-to-target gap in NLL
//   context_min                  share of the prefix's worth in NLL
//   worst_layer_cosine_min       of attention outputs
//   nearer_than                  {control: share}: KL is less than the control's by that share of
//   it
// Each is judged by its 95 % interval over sequences (judge.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvbridge::evidence {

struct DomainRules {
  std::optional<double> kl_mean_max;
  std::optional<double> kl_p95_max;
  std::optional<double> top1_min;
  std::optional<double> gap_min;
  std::optional<double> context_min;
  std::optional<double> worst_layer_cosine_min;
  std::map<std::string, double> nearer_than;
};

struct Gate {
  std::string digest;  // SHA-256 of the file's bytes
  std::string name;
  int64_t native_tail = 1;
  int64_t min_sequences = 0;
  double identity_kl_max = 0;
  std::map<std::string, DomainRules> domains;

  // The rules for a domain, "*" included; none where it isn't judged.
  const DomainRules* Find(const std::string& domain) const;
};

// INVALID_ARGUMENT names the field, what was expected and what came; `what` names the file. A gate
// without a domain, or a domain without a rule, is refused: it would let anything pass.
absl::StatusOr<Gate> ParseGate(absl::string_view text, absl::string_view what);

}  // namespace kvbridge::evidence
