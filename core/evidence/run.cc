#include "core/evidence/run.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

#include "core/base/file.h"
#include "core/base/status_macros.h"
#include "core/crypto/sha256.h"

namespace kvbridge::evidence {
namespace {

using base::Json;

constexpr absl::string_view kSchema = "kvbridge-run/1";
constexpr uint64_t kMaxBytes = uint64_t{16} << 20;
constexpr int64_t kMaxCount = int64_t{1} << 32;

absl::StatusOr<Json> ReadJson(const std::filesystem::path& path) {
  KVB_ASSIGN_OR_RETURN(const std::string text, base::ReadFile(path, kMaxBytes));
  return base::ParseStrictJson(text, path.filename().string());
}

absl::Status TextsFromJson(const Json& json, EvidenceRun* run) {
  KVB_ASSIGN_OR_RETURN(const Json* texts, base::GetObject(json, "texts", "run"));
  for (const auto& [domain, text] : texts->items()) {
    const std::string path = absl::StrCat("run.texts.", domain);
    KVB_RETURN_IF_ERROR(base::GetObject(*texts, domain, "run.texts").status());
    KVB_RETURN_IF_ERROR(base::RefuseUnknownKeys(text, {"sequences", "sha256"}, path));
    PlannedText& planned = run->texts[domain];
    KVB_ASSIGN_OR_RETURN(planned.sequences, base::GetInt(text, "sequences", path, 1, kMaxCount));
    KVB_ASSIGN_OR_RETURN(planned.sha256, base::GetString(text, "sha256", path));
    if (auto digest = crypto::ParseDigest(planned.sha256); !digest.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ".sha256: ", digest.status().message()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<EvidenceRun> HeadFromJson(const Json& json) {
  if (!json.is_object()) return absl::InvalidArgumentError("run.json: expected an object");
  KVB_RETURN_IF_ERROR(base::RefuseUnknownKeys(
      json, {"schema", "artifact", "prefix_tokens", "texts", "not_applicable", "protocol"}, "run"));
  KVB_ASSIGN_OR_RETURN(const std::string schema, base::GetString(json, "schema", "run"));
  if (schema != kSchema) {
    return absl::InvalidArgumentError(
        absl::StrCat("run.schema: expected ", kSchema, ", got \"", schema.substr(0, 40), "\""));
  }
  EvidenceRun run;
  KVB_ASSIGN_OR_RETURN(run.artifact, base::GetString(json, "artifact", "run"));
  KVB_ASSIGN_OR_RETURN(run.prefix_tokens, base::GetInt(json, "prefix_tokens", "run", 1, kMaxCount));
  KVB_RETURN_IF_ERROR(TextsFromJson(json, &run));
  KVB_ASSIGN_OR_RETURN(const Json* missing, base::GetObject(json, "not_applicable", "run"));
  for (const auto& [variant, why] : missing->items()) {
    KVB_ASSIGN_OR_RETURN(run.not_applicable[variant],
                         base::GetString(*missing, variant, "run.not_applicable"));
  }
  KVB_ASSIGN_OR_RETURN(const Json* protocol, base::GetObject(json, "protocol", "run"));
  run.protocol = *protocol;
  return run;
}

auto Place(const SequenceScores& s) { return std::tie(s.domain, s.prefix_tokens, s.sequence); }

absl::Status ReadScores(const std::filesystem::path& dir, EvidenceRun* run) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(dir, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() != ".json") continue;
    const std::string name = absl::StrCat("scores/", it->path().filename().string());
    KVB_ASSIGN_OR_RETURN(const Json json, ReadJson(it->path()));
    if (!json.is_object()) return absl::InvalidArgumentError(name + ": expected an object");
    KVB_ASSIGN_OR_RETURN(SequenceScores scores, SequenceScoresFromJson(json, name));
    if (run->texts.count(scores.domain) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ".domain: \"", scores.domain, "\" is none of run.texts"));
    }
    run->sequences.push_back(std::move(scores));
  }
  std::sort(run->sequences.begin(), run->sequences.end(),
            [](const auto& a, const auto& b) { return Place(a) < Place(b); });
  const auto twice =
      std::adjacent_find(run->sequences.begin(), run->sequences.end(),
                         [](const auto& a, const auto& b) { return Place(a) == Place(b); });
  if (twice == run->sequences.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("scores: sequence ", twice->sequence, " of ", twice->domain, " is there twice"));
}

}  // namespace

absl::StatusOr<EvidenceRun> ReadRun(const std::filesystem::path& dir) {
  KVB_ASSIGN_OR_RETURN(const Json json, ReadJson(dir / "run.json"));
  KVB_ASSIGN_OR_RETURN(EvidenceRun run, HeadFromJson(json));
  KVB_RETURN_IF_ERROR(ReadScores(dir / "scores", &run));
  Json everything = {{"run", json}, {"scores", Json::array()}};
  for (const SequenceScores& scores : run.sequences) {
    everything["scores"].push_back(ToJson(scores));
  }
  KVB_ASSIGN_OR_RETURN(run.digest, crypto::Sha256Hex(base::CanonicalJson(everything)));
  return run;
}

}  // namespace kvbridge::evidence
