#include "core/evidence/judge.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvbridge::evidence {
namespace {

using base::Json;

// The rules of one domain, applied one after the other.
class DomainJudge {
 public:
  DomainJudge(const Gate& gate, const EvidenceRun& run, std::string domain,
              std::vector<Check>* checks)
      : gate_(gate), run_(run), domain_(std::move(domain)), checks_(*checks) {}

  void Apply(const DomainRules& rules, const DomainSummary& summary) {
    CheckSequences(summary);
    CheckIdentity(summary);
    const std::string name = WithTail("mapped", gate_.native_tail);
    const auto it = summary.variants.find(name);
    if (it == summary.variants.end() || !it->second.kl || !it->second.top1) {
      return Open("mapped", absl::StrCat("no KL of ", name, " in every sequence"));
    }
    const VariantSummary& mapped = it->second;
    AtMost("kl_mean_max", rules.kl_mean_max, mapped.kl->mean);
    AtMost("kl_p95_max", rules.kl_p95_max, mapped.kl->p95);
    AtLeast("top1_min", rules.top1_min, mapped.top1);
    CheckGap(rules, summary, mapped);
    AtLeast("context_min", rules.context_min, mapped.context,
            "the prefix helps too little, or \"none\" is missing");
    CheckLayers(rules, summary);
    for (const auto& [control, share] : rules.nearer_than) CheckControl(control, share, mapped);
  }

  void Open(const std::string& rule, std::string why) {
    checks_.push_back({.domain = domain_, .rule = rule, .why = std::move(why)});
  }

 private:
  void Add(const std::string& rule, double bound, const Estimate& measured, bool held,
           bool broken) {
    checks_.push_back({.domain = domain_,
                       .rule = rule,
                       .bound = bound,
                       .measured = measured,
                       .outcome = held     ? Outcome::kHeld
                                  : broken ? Outcome::kBroken
                                           : Outcome::kOpen,
                       .why = held || broken ? "" : "the interval spans the bound"});
  }
  void AtMost(const std::string& rule, const std::optional<double>& bound, const Estimate& e) {
    if (bound) Add(rule, *bound, e, e.high <= *bound, e.low > *bound);
  }
  void AtLeast(const std::string& rule, const std::optional<double>& bound,
               const std::optional<Estimate>& e, const std::string& missing = "not measured") {
    if (!bound) return;
    if (!e) return Open(rule, missing);
    Add(rule, *bound, *e, e->low >= *bound, e->high < *bound);
  }

  void CheckSequences(const DomainSummary& summary) {
    const int64_t planned = run_.texts.at(domain_).sequences;
    const int64_t needed = std::max(planned, gate_.min_sequences);
    const auto got = static_cast<double>(summary.sequences);
    const bool enough = summary.sequences >= needed;
    checks_.push_back({.domain = domain_,
                       .rule = "sequences",
                       .bound = static_cast<double>(needed),
                       .measured = Estimate{got, got, got},
                       .outcome = enough ? Outcome::kHeld : Outcome::kOpen,
                       .why = enough                        ? ""
                              : summary.sequences < planned ? "the run is not complete"
                                                            : "too few sequences"});
  }

  // A harness that can't give a model its own cache back measures nothing else.
  void CheckIdentity(const DomainSummary& summary) {
    const auto it = summary.variants.find("identity");
    if (it == summary.variants.end() || !it->second.kl) {
      return Open("identity_kl_max", "the control \"identity\" is missing");
    }
    const Spread& kl = *it->second.kl;
    const bool good = kl.max <= gate_.identity_kl_max;
    checks_.push_back({.domain = domain_,
                       .rule = "identity_kl_max",
                       .bound = gate_.identity_kl_max,
                       .measured = kl.mean,
                       .outcome = good ? Outcome::kHeld : Outcome::kOpen,
                       .why = good ? "" : "the target does not go on from its own cache"});
  }

  void CheckGap(const DomainRules& rules, const DomainSummary& summary,
                const VariantSummary& mapped) {
    if (!rules.gap_min) return;
    if (summary.source_excess && summary.source_excess->high <= 0) {
      checks_.push_back({.domain = domain_,
                         .rule = "gap_min",
                         .bound = rules.gap_min,
                         .outcome = Outcome::kHeld,
                         .why = "the source predicts this text better: no gap to recover"});
      return;
    }
    AtLeast("gap_min", rules.gap_min, mapped.gap,
            "the source is not surely worse than the target, or \"source\" is missing");
  }

  void CheckLayers(const DomainRules& rules, const DomainSummary& summary) {
    std::optional<Estimate> worst;
    const auto it = summary.layers.find("mapped");
    if (it != summary.layers.end()) worst = it->second.worst_cosine;
    AtLeast("worst_layer_cosine_min", rules.worst_layer_cosine_min, worst,
            "attention outputs were not measured");
  }

  void CheckControl(const std::string& control, double share, const VariantSummary& mapped) {
    const std::string rule = absl::StrCat("nearer_than.", control);
    const auto it = mapped.nearer_than.find(control);
    if (it != mapped.nearer_than.end()) return AtLeast(rule, share, it->second);
    const auto why = run_.not_applicable.find(control);
    if (control != "raw" || why == run_.not_applicable.end()) {
      return Open(rule, absl::StrCat("the control \"", control, "\" is missing"));
    }
    checks_.push_back({.domain = domain_,
                       .rule = rule,
                       .bound = share,
                       .outcome = Outcome::kHeld,
                       .why = absl::StrCat("does not exist: ", why->second)});
  }

  const Gate& gate_;
  const EvidenceRun& run_;
  const std::string domain_;
  std::vector<Check>& checks_;
};

artifact::Verdict VerdictOf(const std::vector<Check>& checks) {
  const auto any = [&checks](Outcome outcome) {
    return std::any_of(checks.begin(), checks.end(),
                       [outcome](const Check& check) { return check.outcome == outcome; });
  };
  if (any(Outcome::kBroken)) return artifact::Verdict::kFail;
  if (checks.empty() || any(Outcome::kOpen)) return artifact::Verdict::kUnproven;
  return artifact::Verdict::kPass;
}

}  // namespace

absl::string_view Name(Outcome outcome) {
  constexpr absl::string_view kNames[] = {"held", "open", "broken"};
  return kNames[static_cast<int>(outcome)];
}

Judgement Judge(const Gate& gate, const EvidenceRun& run, const RunSummary& summary) {
  Judgement out;
  for (const auto& [domain, rules] : gate.domains) {
    if (domain == "*" || run.texts.count(domain) != 0) continue;
    DomainJudge(gate, run, domain, &out.checks).Open("domain", "the run has no text of it");
  }
  for (const auto& [domain, planned] : run.texts) {
    const DomainRules* rules = gate.Find(domain);
    if (rules == nullptr) continue;
    DomainJudge judge(gate, run, domain, &out.checks);
    const auto it = summary.domains.find(domain);
    if (it == summary.domains.end()) {
      judge.Open("sequences", "none was scored");
    } else {
      judge.Apply(*rules, it->second);
    }
  }
  out.verdict = VerdictOf(out.checks);
  return out;
}

Json ToJson(const Check& check) {
  return {{"domain", check.domain},
          {"rule", check.rule},
          {"bound", check.bound ? Json(*check.bound) : Json(nullptr)},
          {"measured", check.measured ? ToJson(*check.measured) : Json(nullptr)},
          {"outcome", std::string(Name(check.outcome))},
          {"why", check.why}};
}

}  // namespace kvbridge::evidence
