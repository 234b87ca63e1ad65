// kvbridge plan: is a transfer worth it, and what a fit would take.
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "client/cli/commands.h"
#include "client/cli/flag_file.h"
#include "client/cli/local_models.h"
#include "client/cli/spec_convert.h"
#include "client/cli/table.h"
#include "client/cpp/reason_words.h"
#include "core/base/file.h"
#include "core/base/status_macros.h"
#include "core/base/units.h"
#include "core/plan/fit_plan.h"
#include "core/plan/transfer_plan.h"

namespace kvbridge::cli {
namespace {

void Fill(const plan::Estimate& from, v1::Estimate* to) {
  if (from.value) to->set_value(*from.value);
  to->set_source(std::string(plan::Name(from.provenance)));
}

void FillEvidence(const artifact::Provenance& provenance, int64_t native_tail,
                  v1::EvidenceSummary* to) {
  to->set_verdict(std::string(artifact::Name(provenance.verdict())));
  const auto fill = [](const std::optional<double>& value, v1::Estimate* estimate) {
    Fill({value, value ? plan::Provenance::kMeasured : plan::Provenance::kUnmeasured}, estimate);
  };
  const artifact::Quality quality = artifact::QualityAt(provenance, native_tail);
  fill(quality.kl_nats, to->mutable_kl_nats());
  fill(quality.gap_recovered, to->mutable_gap_recovered());
  if (provenance.evidence) to->set_provenance(provenance.evidence->provenance);
}

// The same message that a server answers with, so that both print alike.
absl::StatusOr<v1::PlanResponse> PlanLocally(const PlanFlags& flags) {
  KVB_ASSIGN_OR_RETURN(auto pool, base::WorkerPool::Create({}));
  KVB_ASSIGN_OR_RETURN(const artifact::Artifact loaded,
                       LoadLocalArtifact(flags.artifact, flags.configs, true, pool.get()));
  const artifact::Provenance& provenance = loaded.provenance;
  plan::TransferPlanInput input;
  input.prompt_tokens = flags.prompt_tokens;
  input.native_tail = flags.native_tail;
  input.prefill_tokens_per_second = flags.prefill_rate;
  input.proven = provenance.verdict() == artifact::Verdict::kPass;
  KVB_ASSIGN_OR_RETURN(const plan::TransferPlan plan,
                       plan::MakeTransferPlan(input, *loaded.mapper, {}));
  v1::PlanResponse response;
  response.set_worth_it(plan.worth_it);
  response.set_reason(static_cast<v1::Reason>(plan.reason));
  response.set_detail(plan.detail);
  response.set_covered_tokens(plan.covered_tokens);
  response.set_bytes_in(plan.bytes_in);
  response.set_bytes_out(plan.bytes_out);
  response.set_map_flops(plan.map_flops);
  Fill(plan.map_seconds, response.mutable_map_seconds());
  Fill(plan.move_seconds, response.mutable_move_seconds());
  Fill(plan.total_seconds, response.mutable_total_seconds());
  Fill(plan.prefill_seconds, response.mutable_prefill_seconds());
  Fill(plan.break_even_tokens, response.mutable_break_even_tokens());
  FillEvidence(provenance, input.native_tail, response.mutable_evidence());
  response.set_artifact_digest(loaded.mapper->digest);
  return response;
}

absl::StatusOr<v1::PlanResponse> AskServer(const PlanFlags& flags) {
  KVB_ASSIGN_OR_RETURN(auto client, Connect(flags.server));
  v1::PlanRequest request;
  request.set_route(flags.route);
  request.set_prompt_tokens(flags.prompt_tokens);
  request.set_native_tail(flags.native_tail);
  request.set_prefill_tokens_per_second(flags.prefill_rate);
  return client->Plan(request, flags.server.Timeout());
}

std::string Seconds(const v1::Estimate& estimate) {
  if (!estimate.has_value()) return estimate.source();
  return absl::StrFormat("%.4g s (%s)", estimate.value(), estimate.source());
}

// "PASS: KL 0.14 nats, 80 % of the gap".
std::string EvidenceText(const v1::EvidenceSummary& evidence) {
  std::string text = evidence.verdict();
  if (evidence.kl_nats().has_value()) {
    absl::StrAppendFormat(&text, ": KL %.3g nats", evidence.kl_nats().value());
  }
  if (evidence.gap_recovered().has_value()) {
    absl::StrAppendFormat(&text, ", %.0f %% of the gap", 100 * evidence.gap_recovered().value());
  }
  return text;
}

std::string PlanText(const v1::PlanResponse& plan) {
  const v1::Estimate& break_even = plan.break_even_tokens();
  return RenderFields(
      {{"worth it", plan.worth_it() ? "yes" : "no"},
       {"reason", client::ReasonWord(plan.reason())},
       {"detail", plan.detail()},
       {"covered", absl::StrCat(plan.covered_tokens(), " tokens")},
       {"bytes", absl::StrCat(base::HumanBytes(static_cast<uint64_t>(plan.bytes_in())), " in, ",
                              base::HumanBytes(static_cast<uint64_t>(plan.bytes_out())), " out")},
       {"map",
        absl::StrFormat("%.4g GFLOP, %s", plan.map_flops() / 1e9, Seconds(plan.map_seconds()))},
       {"move", Seconds(plan.move_seconds())},
       {"total", Seconds(plan.total_seconds())},
       {"prefill", Seconds(plan.prefill_seconds())},
       {"break-even",
        break_even.has_value()
            ? absl::StrFormat("%.0f tokens (%s)", break_even.value(), break_even.source())
            : break_even.source()},
       {"evidence", EvidenceText(plan.evidence())},
       {"artifact", plan.artifact_digest().substr(0, 12)}});
}

absl::StatusOr<ExitCode> PlanFit(const PlanFlags& flags, const Output& output) {
  constexpr uint64_t kMaxBytes = uint64_t{1} << 20;
  KVB_ASSIGN_OR_RETURN(const std::string text,
                       InFile(flags.fit, base::ReadFile(flags.fit, kMaxBytes)));
  KVB_ASSIGN_OR_RETURN(const plan::FitPlanInput input, plan::ParseFitPlanInput(text));
  KVB_ASSIGN_OR_RETURN(const plan::FitPlan plan, plan::MakeFitPlan(input));
  const base::Json document = {
      {"schema", "kvbridge.fit-plan/v1"},
      {"name", plan.name},
      {"observations", plan.observations},
      {"mapper_parameters", plan.mapper_parameters},
      {"mapper_gib", plan.mapper_gib},
      {"fit_block_working_set_gib", plan.fit_block_working_set_gib},
      {"selection_block_working_set_gib", plan.selection_block_working_set_gib},
      {"calibration_cache_pair_gib", plan.calibration_cache_pair_gib},
      {"calibration_data_passes", plan.calibration_data_passes},
      {"mapper_load_ms_pcie25", plan.mapper_load_ms_pcie25},
      {"mapper_load_ms_pcie50", plan.mapper_load_ms_pcie50}};
  KVB_RETURN_IF_ERROR(output.Emit(document, [&](bool) {
    const auto gib = [](double value) { return absl::StrFormat("%.3f GiB", value); };
    return RenderFields({{"name", plan.name},
                         {"observations", absl::StrCat(plan.observations)},
                         {"parameters", absl::StrCat(plan.mapper_parameters)},
                         {"mapper", gib(plan.mapper_gib)},
                         {"fit working set", gib(plan.fit_block_working_set_gib)},
                         {"selection working set", gib(plan.selection_block_working_set_gib)},
                         {"caches of a sequence", gib(plan.calibration_cache_pair_gib)},
                         {"passes over data", absl::StrCat(plan.calibration_data_passes)}});
  }));
  return ExitCode::kOk;
}

}  // namespace

absl::StatusOr<ExitCode> RunPlan(const PlanFlags& flags, const Output& output) {
  if (!flags.fit.empty()) return PlanFit(flags, output);
  KVB_ASSIGN_OR_RETURN(const v1::PlanResponse response,
                       flags.server.address.empty() ? PlanLocally(flags) : AskServer(flags));
  KVB_ASSIGN_OR_RETURN(const base::Json document, ToDocument("kvbridge.plan/v1", response));
  KVB_RETURN_IF_ERROR(output.Emit(document, [&](bool) { return PlanText(response); }));
  return ExitCode::kOk;
}

}  // namespace kvbridge::cli
