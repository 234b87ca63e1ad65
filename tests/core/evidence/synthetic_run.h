// Runs without models: scores drawn around stated means, for tests of what judges them.
#pragma once

#include <map>
#include <random>
#include <string>

#include "core/evidence/run.h"

namespace kvbridge::evidence {

// Mean KL of a variant; its NLL is own's plus that.
struct SyntheticRun {
  int sequences = 40;
  double own_nll = 3.0;
  double noise = 0.02;  // standard deviation between sequences
  std::map<std::string, double> kl = {{"own", 0},     {"identity", 1e-5}, {"mapped", 0.1},
                                      {"none", 0.6},  {"raw", 0.8},       {"random", 3.0},
                                      {"source", 0.5}};
  std::map<std::string, double> top1 = {{"mapped", 0.9}};
  double worst_cosine = 0.9;  // of layer 1 of 3; the others are near 1

  EvidenceRun Make(const std::vector<std::string>& domains = {"general"}) const {
    EvidenceRun run{
        .digest = std::string(64, 'd'), .artifact = std::string(64, 'a'), .prefix_tokens = 383};
    std::mt19937 random(5);
    std::normal_distribution<double> normal(0, noise);
    for (const std::string& domain : domains) {
      run.texts[domain] = {sequences, std::string(64, 'e')};
      for (int i = 0; i < sequences; ++i) {
        SequenceScores scores{.domain = domain, .sequence = i, .prefix_tokens = 383, .tokens = 128};
        const double common = normal(random);
        for (const auto& [name, mean] : kl) {
          const bool exact = name == "own" || name == "identity";
          const double value = exact ? mean : std::max(0.0, mean + normal(random));
          const auto share = top1.find(name);
          scores.variants[name] = {.kl = value,
                                   .top1 = share == top1.end() ? 1 / (1 + mean) : share->second,
                                   .nll = own_nll + common + value};
        }
        scores.layer_cosine["mapped"] = {0.99, worst_cosine + normal(random) / 10, 0.98};
        run.sequences.push_back(std::move(scores));
      }
    }
    return run;
  }
};

}  // namespace kvbridge::evidence
