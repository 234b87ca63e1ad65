#include "client/cli/app.h"

#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "CLI/CLI.hpp"
#include "client/cli/commands.h"
#include "client/cli/fit_flags.h"
#include "client/cli/number_checks.h"
#include "client/cli/suggest.h"
#include "client/cpp/transfer.h"
#include "core/usage/command_tree.h"
#include "proto/kvbridge/v1/traceparent.h"

namespace kvbridge::cli {
namespace {

constexpr char kFooter[] =
    "Exit codes: 0 ok; 1 a gate failed (fallback with --fail-on-fallback, not ready, slower\n"
    "than a baseline); 2 usage; 3 bad input or damaged artifact; 4 incompatible pair; 5 "
    "unreachable\n"
    "or timeout; 6 would not fit; 130 interrupted. stdout is data, stderr is everything else.";

// Everything that flags are read into; commands borrow it.
struct Flags {
  OutputOptions output;
  std::string format = "table";
  bool no_color = false;
  TransferFlags transfer;
  BenchFlags bench;
  InspectFlags inspect;
  PlanFlags plan;
  PairFlags pair;
  ServerFlags server;
  RouteFlags route;
  TopFlags top;
  DoctorFlags doctor;
  ConvertFlags convert;
  FitFlags fit;
  ValidateFlags validate;
  ScoreFlags score;
  ChooseFlags choose;
  RandomMapFlags random_map;
  ReportFlags report;
  ManFlags man;
  CompletionFlags completion;
  Command command;  // of the subcommand that was named
};

CLI::App* AddCommand(CLI::App& parent, Flags& flags, const char* name, const char* help,
                     Command command) {
  CLI::App* app = parent.add_subcommand(name, help);
  app->fallthrough();
  app->callback([&flags, command = std::move(command)] { flags.command = command; });
  return app;
}

void AddConfigFlags(CLI::App* app, ConfigFlags& configs) {
  app->add_option("--source-config", configs.source,
                  "Source model's config.json, where the artifact has no RoPE")
      ->type_name(usage::kFile);
  app->add_option("--target-config", configs.target, "Target model's config.json")
      ->type_name(usage::kFile);
}

void AddHandoff(CLI::App* app, HandoffFlags& f) {
  CLI::Option* artifact =
      app->add_option("--artifact", f.artifact, "Artifact folder: map in this process")
          ->type_name(usage::kFolder);
  CLI::Option* server = AddServerFlags(app, f.server)->excludes(artifact);
  app->add_option("--route", f.route, "The server's route, or its peer's")->needs(server);
  CLI::Option* peer =
      app->add_option("--peer", f.peer, "Map at this peer of the server, by its name there")
          ->needs(server);
  app->add_option("--target-spec", f.target_spec,
                  "Target's ModelSpec as JSON (`target` of inspect --format json), for a route "
                  "that only the peer has")
      ->type_name(usage::kFile)
      ->needs(peer);
  AddConfigFlags(app, f.configs);
  app->add_flag("--allow-unproven", f.allow_unproven,
                "Map with an artifact that has no passing evidence")
      ->needs(artifact);
  app->add_option("--plane", f.plane, "How bytes travel: shared memory, chunks, what there is")
      ->needs(server)
      ->check(CLI::IsMember({"auto", "region", "inline"}))
      ->capture_default_str();
  app->parse_complete_callback([&f] {
    if (f.artifact.empty() && f.server.address.empty()) {
      throw CLI::RequiredError("--artifact DIR or --server ADDR");
    }
    if (!f.server.address.empty() && f.route.empty()) throw CLI::RequiredError("--route");
  });
}

void AddTransfer(CLI::App& root, Flags& flags, const std::stop_token& stop) {
  TransferFlags& f = flags.transfer;
  CLI::App* app =
      AddCommand(root, flags, "transfer", "Map a cache file to the target model's",
                 [&f, stop](const Output& output) { return RunTransfer(f, output, stop); });
  AddHandoff(app, f.by);
  app->add_option("--in", f.in, "Source cache file (safetensors)")
      ->type_name(usage::kFile)
      ->required();
  app->add_option("--out", f.out, "Target cache file; written when applied")
      ->type_name(usage::kFile)
      ->required();
  HandoffRequest& r = f.request;
  app->add_option("--request-id", r.request_id, "For logs and sampling; default: random");
  app->add_option("--prompt-tokens", r.prompt_tokens, "Prompt length; 0 = the cache's tokens")
      ->check(NonNegative);
  app->add_option("--native-tail", r.native_tail, "Tokens that the target prefills itself")
      ->check(NonNegative);
  app->add_option("--max-latency", r.max_latency_seconds, "Budget of the map, seconds")
      ->check(NonNegative);
  app->add_option("--deadline", r.deadline_seconds, "For everything, seconds")
      ->check(NonNegative)
      ->capture_default_str();
  app->add_option("--hops", r.hops, "Maps the cache has been through already")->check(NonNegative);
  app->add_option("--trace-parent", r.traceparent,
                  "W3C traceparent of your span, for the server's log; default: $TRACEPARENT")
      ->check([](const std::string& text) {
        return wire::ParseTraceparent(text) ? "" : "expected a W3C traceparent, got " + text;
      })
      ->needs("--server");
  app->add_flag("--fail-on-fallback", f.fail_on_fallback, "Exit 1 unless applied");
}

// "10%"; as a validator it answers what is wrong, so that a bad flag is a usage error.
std::string ReadPercent(const std::string& text, double* share) {
  absl::string_view number = text;
  double percent = 0;
  if (!absl::ConsumeSuffix(&number, "%") || !absl::SimpleAtod(number, &percent) ||
      !(percent >= 0 && percent < 1e6)) {
    return absl::StrCat("expected a percentage such as 10%, got ", text);
  }
  *share = percent / 100;
  return "";
}

void AddBench(CLI::App& root, Flags& flags, const std::stop_token& stop) {
  BenchFlags& f = flags.bench;
  CLI::App* app =
      AddCommand(root, flags, "bench", "Time handoffs of made-up caches, and compare",
                 [&f, stop](const Output& output) { return RunBench(f, output, stop); });
  AddHandoff(app, f.by);
  app->add_option("--tokens", f.tokens, "Sizes of the caches, such as 64,1024")
      ->delimiter(',')
      ->check(Positive)
      ->capture_default_str();
  app->add_option("--repetitions", f.repetitions, "Transfers of each size")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app->add_option("--warm-up", f.warm_up, "Transfers before them that don't count")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  CLI::Option* baseline =
      app->add_option("--baseline", f.baseline, "Compare with an earlier --format json")
          ->type_name(usage::kFile);
  app->add_option("--fail-if-slower", "Exit 1 if a median is slower than the baseline's by this")
      ->check([&f](const std::string& text) { return ReadPercent(text, &f.fail_if_slower); })
      ->type_name("PERCENT")
      ->default_str("10%")
      ->needs(baseline);
}

void AddInspect(CLI::App& root, Flags& flags) {
  InspectFlags& f = flags.inspect;
  CLI::App* app = AddCommand(root, flags, "inspect", "Show an artifact, or what a config.json says",
                             [&f](const Output& output) { return RunInspect(f, output); });
  CLI::Option* artifact =
      app->add_option("artifact", f.artifact, "Artifact folder")->type_name(usage::kFolder);
  CLI::Option* config =
      app->add_option("--config", f.config, "config.json: print its ModelSpec as proto JSON")
          ->type_name(usage::kFile)
          ->excludes(artifact);
  app->add_option("--pairing", f.pairing, "Pairing of rotated dimensions")
      ->check(CLI::IsMember({"half", "interleaved"}))
      ->needs(config);
  app->add_option("--longrope", f.longrope, "Which longrope list the cache was rotated with")
      ->check(CLI::IsMember({"short", "long"}))
      ->needs(config);
  AddConfigFlags(app, f.configs);
  app->parse_complete_callback([&f] {
    if (f.artifact.empty() && f.config.empty()) {
      throw CLI::RequiredError("an artifact folder or --config");
    }
  });
}

void AddPlanPair(CLI::App* plan, Flags& flags) {
  PairFlags& f = flags.pair;
  CLI::App* app = AddCommand(*plan, flags, "pair", "What a mapper for two models will take",
                             [&f](const Output& output) { return RunPlanPair(f, output); });
  app->add_option("source", f.configs.source, "Source model's config.json")
      ->type_name(usage::kFile)
      ->required();
  app->add_option("target", f.configs.target, "Target model's config.json")
      ->type_name(usage::kFile)
      ->required();
  app->add_option("--sequences", f.sequences, "Of calibration text")->capture_default_str();
  app->add_option("--length", f.length, "Tokens of each")->capture_default_str();
  app->add_option("--stride", f.stride, "Every n-th token is a row")->capture_default_str();
  app->add_option("-k", f.k, "Source layers per target layer")->capture_default_str();
  app->add_flag("--head-local", f.head_local, "Source head h feeds target head h alone");
  app->add_option("--memory", f.memory_bytes, "Most for accumulating, such as 8GB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  app->add_option("--capture-rate", f.capture_rate, "Both models reading, tokens per second")
      ->check(Positive);
  app->add_option("--prefill-rate", f.prefill_rate, "The target's prefill, tokens per second")
      ->check(Positive);
  app->add_flag("--no-measure", f.no_measure, "Sizes only: times are unmeasured");
}

void AddPlan(CLI::App& root, Flags& flags) {
  PlanFlags& f = flags.plan;
  const Command transfer = [&f](const Output& output) { return RunPlan(f, output); };
  CLI::App* app =
      AddCommand(root, flags, "plan", "Is a transfer worth it? What will a fit take?", transfer);
  app->require_subcommand(0, 1);
  // A parent's callback comes after its subcommand's.
  app->callback([&flags, app, transfer] {
    if (app->get_subcommands().empty()) flags.command = transfer;
  });
  CLI::Option* artifact =
      app->add_option("--artifact", f.artifact, "Artifact folder")->type_name(usage::kFolder);
  CLI::Option* server = AddServerFlags(app, f.server)->excludes(artifact);
  app->add_option("--route", f.route, "The server's route")->needs(server);
  app->add_option("--fit", f.fit, "Experiment file: sizes of a fit")
      ->type_name(usage::kFile)
      ->excludes(artifact)
      ->excludes(server);
  AddConfigFlags(app, f.configs);
  app->add_option("--prompt-tokens", f.prompt_tokens, "Prompt length")->check(Positive);
  app->add_option("--native-tail", f.native_tail, "Tokens that the target prefills itself")
      ->check(NonNegative);
  app->add_option("--prefill-rate", f.prefill_rate, "The target's prefill, tokens per second")
      ->check(Positive);
  AddPlanPair(app, flags);
  app->parse_complete_callback([&f, app] {
    if (!app->get_subcommands().empty() || !f.fit.empty()) return;
    if (f.artifact.empty() && f.server.address.empty()) {
      throw CLI::RequiredError("pair, --artifact DIR, --server ADDR or --fit FILE");
    }
    if (!f.server.address.empty() && f.route.empty()) throw CLI::RequiredError("--route");
    if (f.prompt_tokens == 0) throw CLI::RequiredError("--prompt-tokens");
  });
}

void AddArtifact(CLI::App& root, Flags& flags, const std::stop_token& stop) {
  CLI::App* app =
      root.add_subcommand("artifact", "Convert artifacts; load, unload, list a server's");
  app->fallthrough();
  app->require_subcommand(0, 1);
  ConvertFlags& c = flags.convert;
  CLI::App* convert =
      AddCommand(*app, flags, "convert", "Write an artifact of any format as a native one",
                 [&c, stop](const Output& output) { return RunArtifactConvert(c, output, stop); });
  convert->add_option("in", c.in, "Artifact folder")->type_name(usage::kFolder)->required();
  convert->add_option("out", c.out, "New artifact folder")->type_name(usage::kFolder)->required();
  AddConfigFlags(convert, c.configs);
  convert
      ->add_option("--key-norm-from", c.key_norm_from,
                   "Target model's folder: renormalise keys with its k_norm")
      ->type_name(usage::kFolder);
  convert->add_flag("--overwrite", c.overwrite, "Replace an existing folder, atomically");
  convert->add_option("--to", c.to, "Format to write")
      ->check(CLI::IsMember({"native", "prototype"}))
      ->capture_default_str();

  ServerFlags& s = flags.server;
  CLI::App* load = AddCommand(*app, flags, "load", "Load, verify and switch to an artifact",
                              [&s](const Output& output) { return RunArtifactLoad(s, output); });
  AddServerFlags(load, s.server)->required();
  load->add_option("--route", s.route, "Route")->required();
  load->add_option("path", s.path, "Folder on the server; none = the configured one, read again");
  CLI::App* unload =
      AddCommand(*app, flags, "unload", "Take a route's artifact away",
                 [&s](const Output& output) { return RunArtifactUnload(s, output); });
  AddServerFlags(unload, s.server)->required();
  unload->add_option("--route", s.route, "Route")->required();
  CLI::App* list = AddCommand(*app, flags, "list", "What is resident",
                              [&s](const Output& output) { return RunArtifactList(s, output); });
  AddServerFlags(list, s.server)->required();
}

void AddRoutes(CLI::App& root, Flags& flags, const std::stop_token& stop) {
  RouteFlags& f = flags.route;
  CLI::App* routes = root.add_subcommand("routes", "List a server's routes, change one");
  routes->require_subcommand(1);
  routes->fallthrough();
  CLI::App* list = AddCommand(*routes, flags, "list", "Stage, circuit and artifact of each route",
                              [&f](const Output& output) { return RunRoutesList(f, output); });
  AddServerFlags(list, f.server)->required();
  CLI::App* set = AddCommand(*routes, flags, "set", "Change a route until the next restart",
                             [&f](const Output& output) { return RunRoutesSet(f, output); });
  AddServerFlags(set, f.server)->required();
  set->add_option("route", f.route, "Route")->required();
  CLI::Option* stage = set->add_option("--stage", f.stage, "Rollout stage")
                           ->check(CLI::IsMember({"off", "shadow", "canary", "live"}));
  set->add_option("--canary-share", f.canary_share, "Share of requests in canary")
      ->check(CLI::Range(0.0, 1.0))
      ->needs(stage);
  set->add_option("--circuit", f.circuit, "What its circuit breaker does")
      ->check(CLI::IsMember({"auto", "closed", "open"}));
  set->parse_complete_callback([&f] {
    if (f.stage.empty() && f.circuit.empty()) throw CLI::RequiredError("--stage or --circuit");
  });

  CLI::App* events = root.add_subcommand("events", "Watch what a server decides");
  events->require_subcommand(1);
  events->fallthrough();
  CLI::App* tail = AddCommand(
      *events, flags, "tail", "Decisions and changes of routes, a line each, until Ctrl-C",
      [&f, stop](const Output& output) { return RunEventsTail(f, output, stop); });
  AddServerFlags(tail, f.server)->required();
  tail->add_option("--route", f.route, "One route only");
}

void AddTop(CLI::App& root, Flags& flags, const std::stop_token& stop) {
  TopFlags& f = flags.top;
  CLI::App* app =
      AddCommand(root, flags, "top", "What a server does, again and again, until Ctrl-C",
                 [&f, stop](const Output& output) { return RunTop(f, output, stop); });
  AddServerFlags(app, f.server)->required();
  app->add_option("--admin", f.admin, "host:port of its admin HTTP: transfers in flight, queue");
  app->add_option("--interval", f.interval_seconds, "Seconds between two looks")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app->add_flag("--once", f.once, "Count for one interval, print, and end");
}

void AddValidate(CLI::App& root, Flags& flags, const std::stop_token& stop) {
  ValidateFlags& f = flags.validate;
  const Command judge = [&f, stop](const Output& output) { return RunValidate(f, output, stop); };
  CLI::App* app =
      AddCommand(root, flags, "validate", "Judge an artifact by a run of measurements", judge);
  app->require_subcommand(0, 1);
  // A parent's callback comes after its subcommand's.
  app->callback([&flags, app, judge] {
    if (app->get_subcommands().empty()) flags.command = judge;
  });
  app->add_option("run", f.run, "Folder of a kvbridge-evaluate run")->type_name(usage::kFolder);
  app->add_option("--artifact", f.artifact, "Artifact folder: the verdict is written into it")
      ->type_name(usage::kFolder);
  app->add_option("--gate", f.gate, "Gate file, written before the run")->type_name(usage::kFile);
  app->add_flag("--dry-run", f.dry_run, "Judge only, leave the artifact as it is");

  ScoreFlags& s = flags.score;
  CLI::App* score = AddCommand(*app, flags, "score", "Score one sequence's logits file",
                               [&s](const Output& output) { return RunValidateScore(s, output); });
  score->add_option("file", s.file, "Logits file (safetensors)")
      ->type_name(usage::kFile)
      ->required();
  ChooseFlags& h = flags.choose;
  CLI::App* choose =
      AddCommand(*app, flags, "choose", "Name the run whose KL is surely least",
                 [&h](const Output& output) { return RunValidateChoose(h, output); });
  choose->add_option("runs", h.runs, "Runs on the same text; the first one's artifact stands")
      ->type_name(usage::kFolder)
      ->required()
      ->expected(2, -1);
  RandomMapFlags& r = flags.random_map;
  CLI::App* random = AddCommand(
      *app, flags, "random-map", "Write the control artifact: random, of the same norms",
      [&r, stop](const Output& output) { return RunValidateRandomMap(r, output, stop); });
  random->add_option("artifact", r.artifact, "Artifact folder")
      ->type_name(usage::kFolder)
      ->required();
  random->add_option("out", r.out, "New artifact folder")->type_name(usage::kFolder)->required();
  random->add_option("--seed", r.seed, "Of the signs")->capture_default_str();
  app->parse_complete_callback([&f, app] {
    if (!app->get_subcommands().empty()) return;
    if (f.run.empty()) throw CLI::RequiredError("run");
    if (f.artifact.empty()) throw CLI::RequiredError("--artifact");
    if (f.gate.empty()) throw CLI::RequiredError("--gate");
  });
}

void AddReport(CLI::App& root, Flags& flags) {
  ReportFlags& f = flags.report;
  CLI::App* app = AddCommand(root, flags, "report", "One page about artifacts, as HTML",
                             [&f](const Output& output) { return RunReport(f, output); });
  app->add_option("artifacts", f.artifacts, "Artifact folders, compared side by side")
      ->type_name(usage::kFolder)
      ->required();
  app->add_option("-o,--out", f.out, "Page to write")->type_name(usage::kFile)->required();
}

void AddDoctor(CLI::App& root, Flags& flags) {
  DoctorFlags& f = flags.doctor;
  CLI::App* app =
      AddCommand(root, flags, "doctor", "What this host allows, and what to change; exit 1 if bad",
                 [&f](const Output& output) { return RunDoctor(f, output); });
  AddServerFlags(app, f.server);
  app->add_option("--socket", f.socket, "memory.socket of a server to be started here")
      ->type_name(usage::kFile)
      ->capture_default_str();
}

void AddUsage(CLI::App& root, Flags& flags) {
  ManFlags& m = flags.man;
  CLI::App* man = AddCommand(
      root, flags, "man", "Manual page of a command: | man -l -",
      [&m, &root](const Output& output) { return RunMan(m, usage::Describe(root), output); });
  CLI::Option* page =
      man->add_option("page", m.page, "The command's words, or its page: kvbridge-routes-set")
          ->default_str("kvbridge");
  man->add_option("--dir", m.dir, "Write the pages of all commands into a folder")
      ->type_name(usage::kFolder)
      ->excludes(page);
  CompletionFlags& c = flags.completion;
  CLI::App* completion =
      AddCommand(root, flags, "completion", "Script by which a shell completes kvbridge",
                 [&c, &root](const Output& output) {
                   return RunCompletion(c, usage::Describe(root), output);
                 });
  completion->add_option("shell", c.shell, "Which shell")
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->required();
}

void AddGlobals(CLI::App& app, Flags& flags) {
  app.add_option("--format", flags.format, "Of the data on stdout")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  app.add_option("--output", flags.output.file, "Write the data to a file")
      ->type_name(usage::kFile);
  app.add_flag("-q,--quiet", flags.output.quiet, "No progress and notes");
  app.add_flag("--no-color", flags.no_color, "No terminal colours (NO_COLOR does the same)");
  app.footer(kFooter);
}

// The innermost subcommand that was named.
const CLI::App* Deepest(const CLI::App* app) {
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return app;
}

std::vector<std::string> KnownWords(const CLI::App* app, bool options) {
  std::vector<std::string> words;
  if (!options) {
    for (const CLI::App* sub : app->get_subcommands([](const CLI::App*) { return true; })) {
      words.push_back(sub->get_name());
    }
    return words;
  }
  for (; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
    }
  }
  return words;
}

// "unknown option --frmat (did you mean --format?)"
std::string DescribeExtra(const CLI::App& root, const std::string& extra) {
  const CLI::App* app = Deepest(&root);
  const bool option = absl::StartsWith(extra, "-");
  const std::string word = extra.substr(0, extra.find('='));
  const std::string nearest = NearestWord(word, KnownWords(app, option));
  const bool command = !option && !KnownWords(app, false).empty();
  return absl::StrCat(option    ? "unknown option "
                      : command ? "unknown command "
                                : "unexpected ",
                      word, nearest.empty() ? "" : absl::StrCat(" (did you mean ", nearest, "?)"));
}

// "kvbridge routes set"
std::string WordsOf(const CLI::App* app) {
  if (app->get_parent() == nullptr) return app->get_name();
  return absl::StrCat(WordsOf(app->get_parent()), " ", app->get_name());
}

int UsageError(const CLI::App& root, const Output& output, const std::string& message) {
  output.Error("usage", absl::StrCat(message, "; see ", WordsOf(Deepest(&root)), " --help"),
               ExitCode::kUsage);
  return static_cast<int>(ExitCode::kUsage);
}

// What a server that can't be reached or lets nobody in says does not name it.
std::string Describe(const CLI::App& root, const absl::Status& status) {
  const CLI::Option* server = Deepest(&root)->get_option_no_throw("--server");
  const bool at_the_door = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
                           client::IsRefusal(status.code());
  return absl::StrCat(at_the_door && server != nullptr && server->count() > 0
                          ? absl::StrCat("--server ", server->as<std::string>(), ": ")
                          : "",
                      status.message());
}

int Run(const CLI::App& root, const Command& command, const Output& output) {
  const absl::StatusOr<ExitCode> result = command(output);
  if (result.ok()) return static_cast<int>(*result);
  const ExitCode code = ExitCodeFor(result.status());
  output.Error(CodeWord(result.status().code()), Describe(root, result.status()), code);
  return static_cast<int>(code);
}

// Errors before the format is known are still told in it.
bool AsksForJson(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--format=json") return true;
    if (arg == "--format" && i + 1 < argc && std::string(argv[i + 1]) == "json") return true;
  }
  return false;
}

}  // namespace

int RunApp(int argc, const char* const* argv, const std::stop_token& stop) {
  Flags flags;
  CLI::App app("Hands one LLM's KV cache to a sibling model", "kvbridge");
  app.require_subcommand(0, 1);  // what follows a command's name is the command's
  AddGlobals(app, flags);
  AddTransfer(app, flags, stop);
  AddBench(app, flags, stop);
  AddInspect(app, flags);
  AddPlan(app, flags);
  ServerFlags& s = flags.server;
  CLI::App* health = AddCommand(app, flags, "health", "State of a server and its routes",
                                [&s](const Output& output) { return RunHealth(s, output); });
  AddServerFlags(health, s.server)->required();
  health->add_option("--route", s.route, "One route; exit 0 if it serves");
  AddDoctor(app, flags);
  AddArtifact(app, flags, stop);
  AddRoutes(app, flags, stop);
  AddTop(app, flags, stop);
  AddFit(app, flags.fit, stop, [&flags](Command command) { flags.command = std::move(command); });
  AddValidate(app, flags, stop);
  AddReport(app, flags);
  AddUsage(app, flags);
  AddCommand(app, flags, "version", "Print the version", RunVersion);

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return app.exit(CLI::CallForHelp());
  } catch (const CLI::ParseError& error) {
    // A misspelt word is the likelier cause of whatever else is missing.
    const std::vector<std::string> extras = app.remaining(true);
    const Output output({.json = AsksForJson(argc, argv)});
    return UsageError(app, output,
                      extras.empty() ? error.what() : DescribeExtra(app, extras.front()));
  }
  flags.output.json = flags.format == "json";
  flags.output.color = !flags.no_color;
  const Output output(flags.output);
  if (!flags.command) return UsageError(app, output, "expected a command");
  return Run(app, flags.command, output);
}

}  // namespace kvbridge::cli
