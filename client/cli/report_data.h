// What a report says about one artifact: read once from manifest and weights, then only drawn.
//
// A manifest's `calibration` (docs/fit.md) and `evidence.details` (docs/evidence.md) are free
// objects: whatever is missing or of another type is left out here, never an error.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/artifact/artifact.h"
#include "core/evidence/bootstrap.h"

namespace kvbridge::cli {

using Matrix = std::vector<std::vector<std::optional<double>>>;
using Fields = std::vector<std::pair<std::string, std::string>>;  // name, text

struct VariantFigures {
  std::optional<evidence::Estimate> kl;  // nats
  std::optional<double> kl_p05;
  std::optional<double> kl_p50;
  std::optional<double> kl_p95;
  std::optional<double> kl_max;
  std::optional<evidence::Estimate> top1;
  std::optional<evidence::Estimate> nll;
  std::optional<evidence::Estimate> gap;
  std::optional<evidence::Estimate> context;
  std::optional<evidence::Estimate> nearer_than_none;  // KL saved against having no prefix
};

struct DomainFigures {
  int64_t sequences = 0;
  std::map<std::string, VariantFigures> variants;
  std::map<std::string, std::vector<double>> cosine;  // by variant and layer
  std::map<int64_t, VariantFigures> lengths;          // mapped, by prefix length
};

struct CheckFigures {
  std::string domain;
  std::string rule;
  std::optional<double> bound;
  std::optional<evidence::Estimate> measured;
  std::string outcome;
  std::string why;
};

// R² on the rows that were fitted on, and on those that chose.
struct FitScore {
  std::optional<double> in_sample;
  std::optional<double> held_out;
};

// K or V of one target layer.
struct LayerFit {
  std::string support;
  std::vector<mapper::SourcePlane> sources;  // in feature order
  FitScore r2;
  std::vector<std::optional<double>> heads;  // held-out R² of each target head
};

struct SweepPoint {
  std::string support;
  double k = 0;
  std::optional<double> bytes;
  FitScore key;
  FitScore value;
};

struct ArtifactReport {
  std::string name;  // its folder's
  std::string digest;
  std::string source;
  std::string target;
  artifact::Verdict verdict = artifact::Verdict::kUnproven;
  std::optional<artifact::Evidence> evidence;
  int64_t native_tail = 1;  // that the verdict is about
  std::map<std::string, DomainFigures> domains;
  std::vector<CheckFigures> checks;
  int32_t source_layers = 0;
  std::vector<LayerFit> keys;  // by target layer
  std::vector<LayerFit> values;
  Matrix key_probe;  // [target layers][source layers] R²; empty where not recorded
  Matrix value_probe;
  std::vector<SweepPoint> sweep;
  std::string choice;  // the sentence that says why this fit
  uint64_t bytes = 0;
  std::string dtype;
  int64_t parameters = 0;
  double flops_per_token = 0;
  int64_t bytes_in_per_token = 0;
  int64_t bytes_out_per_token = 0;
  Fields provenance;
};

ArtifactReport CollectReport(const std::string& name, const artifact::Artifact& artifact);

}  // namespace kvbridge::cli
