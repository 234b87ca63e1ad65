// Puts a verdict and its figures where guard and routes read them: into the artifact's manifest.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "absl/status/statusor.h"

#include "core/artifact/artifact.h"
#include "core/base/worker_pool.h"
#include "core/evidence/gate.h"
#include "core/evidence/judge.h"
#include "core/evidence/run.h"
#include "core/evidence/summary.h"

namespace kvbridge::evidence {

// The headline figures are of all judged domains' sequences together, at the gate's native tail;
// `details` has schema "kvbridge-evidence/1" (docs/evidence.md).
artifact::Evidence MakeEvidence(const Gate& gate, const EvidenceRun& run, const RunSummary& summary,
                                const Judgement& judgement);

// FAILED_PRECONDITION unless the run measured this artifact, or one that differs from it only by
// the evidence that a run wrote before.
absl::Status CheckMeasured(const artifact::Artifact& artifact, const EvidenceRun& run);

struct RecordOptions {
  base::WorkerPool* pool = nullptr;             // required
  std::function<absl::Status()> before_commit;  // an error abandons it; none = go on
};

// Rewrites a native artifact with this evidence, atomically; returns its new digest. The same
// evidence gives the same bytes. On any error the folder is as it was before. FAILED_PRECONDITION
// for another format, which has no place for evidence.
absl::StatusOr<std::string> RecordEvidence(const std::filesystem::path& dir, const EvidenceRun& run,
                                           const artifact::Evidence& evidence,
                                           const RecordOptions& options);

}  // namespace kvbridge::evidence
