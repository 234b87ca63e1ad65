// kvbridged: the command line around server::Server.
#include <csignal>
#include <cstring>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/debugging/failure_signal_handler.h"
#include "absl/debugging/symbolize.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include <CLI/CLI.hpp>
#include <malloc.h>
#include <sys/prctl.h>

#include "core/base/file.h"
#include "core/base/standard_streams.h"
#include "core/base/units.h"
#include "core/usage/man_page.h"
#include "google/protobuf/stubs/logging.h"
#include "nlohmann/json.hpp"
#include "server/auth.h"
#include "server/config.h"
#include "server/grpc_log.h"
#include "server/log.h"
#include "server/server.h"
#include "server/service_manager.h"
#include "server/signal_watcher.h"
#include "server/tls.h"
#include "server/version.h"

extern char** environ;

namespace kvbridge::server {
namespace {

// Documented in docs/: 0 ok, 1 cannot serve, 2 usage or configuration.
constexpr int kOk = 0;
constexpr int kCannotServe = 1;
constexpr int kUsage = 2;

struct CommandLine {
  std::string config_file;
  std::string ports_file;
  std::string print_config;  // "", "yaml" or "json"
  bool check_config = false;
  bool man_page = false;
  std::map<std::string, std::string> settings;  // by setting; empty unless given
};

void Describe(CLI::App* app, CommandLine* line) {
  app->name("kvbridged");
  app->description("Turns one model's KV cache into a sibling model's");
  app->set_version_flag("--version", std::string("kvbridged ") + kVersion + " (" + kRevision + ")");
  app->add_option("--config", line->config_file, "Configuration, YAML or JSON")
      ->type_name(usage::kFile);
  app->add_flag("--check-config", line->check_config, "Validate the configuration and exit");
  app->add_option("--print-config", line->print_config,
                  "Print every setting with its origin, as yaml or json, and exit")
      ->expected(0, 1)
      ->default_str("yaml")
      ->check(CLI::IsMember({"yaml", "json"}));
  app->add_option("--ports-file", line->ports_file,
                  "Write the bound addresses there as JSON, once they serve")
      ->type_name(usage::kFile);
  app->add_flag("--man-page", line->man_page, "Print the manual page and exit")->group("");
  for (const std::string& setting : Settings()) {
    app->add_option(FlagName(setting), line->settings[setting],
                    setting + " (or " + EnvName(setting) + ")")
        ->group("Settings");
  }
}

absl::StatusOr<LoadedConfig> ReadConfig(const CLI::App& app, const CommandLine& line) {
  ConfigSources sources;
  if (!line.config_file.empty()) {
    auto text = base::ReadFile(line.config_file, base::kMiB);
    if (!text.ok()) return text.status();
    sources.file_name = line.config_file;
    sources.file_text = *std::move(text);
  }
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string variable = *entry;
    const size_t equals = variable.find('=');
    if (equals == std::string::npos) continue;
    sources.env.emplace_back(variable.substr(0, equals), variable.substr(equals + 1));
  }
  for (const auto& [setting, text] : line.settings) {
    if (app.count(FlagName(setting)) > 0) sources.flags.emplace_back(setting, text);
  }
  return LoadConfig(sources);
}

int Fail(const absl::Status& status, int code) {
  std::cerr << "kvbridged: " << status.message() << "\n";
  return code;
}

// What protobuf says of a message that it cannot parse would be a line of plain text among JSON, as
// often as someone sends one. Whoever parses reports the failure.
void IgnoreProtobuf(google::protobuf::LogLevel, const char*, int, const std::string&) {}

absl::Status WritePorts(const std::string& path, const Server& server) {
  if (path.empty()) return absl::OkStatus();
  const nlohmann::json ports = {{"grpc", server.grpc_addresses()},
                                {"admin", server.admin_address()},
                                {"health", server.health_address()}};
  return base::WriteFileAtomic(path, ports.dump() + "\n");
}

// The configuration itself is valid; what it names has to be, too.
int CheckFiles(const v1::Config& config) {
  if (!config.listen().tls().cert_file().empty()) {
    const auto material = ReadTlsFiles(config.listen().tls());
    if (!material.ok()) return Fail(material.status(), kUsage);
    for (const std::string& warning : TlsWarnings(*material, absl::Now())) {
      std::cerr << "kvbridged: warning: " << warning << "\n";
    }
  }
  const auto grants = ReadGrants(config.auth());
  if (!grants.ok()) return Fail(grants.status(), kUsage);
  for (const std::string& warning : grants->warnings) {
    std::cerr << "kvbridged: warning: " << warning << "\n";
  }
  const int routes = config.routes_size();
  std::cout << "configuration is valid: " << routes << (routes == 1 ? " route\n" : " routes\n");
  return kOk;
}

int Serve(const LoadedConfig& loaded, const Server::ConfigSource& source,
          const std::string& ports_file) {
  const base::SystemClock clock;
  Log log(Log::ToStderr(loaded.config.log().level(), loaded.config.log().format()), &clock);
  auto server = Server::Create(loaded, &log, source);
  if (!server.ok()) return Fail(server.status(), kCannotServe);
  TakeGrpcLog(&log, [&server] { (*server)->HandshakeFailed(); });
  const absl::Cleanup drop_log = [] { DropGrpcLog(); };
  const ServiceManager manager(ServiceManager::FromEnvironment(),
                               [&server] { return (*server)->alive(); });
  const SignalWatcher signals([&server, &log, &manager](int signal) {
    log.Info("signal", {{"signal", absl::StrCat("SIG", sigabbrev_np(signal))}});
    if (signal == SIGHUP) {
      manager.Reloading();
      (*server)->Reload();
      manager.Ready();
    } else {
      manager.Stopping();
      (*server)->RequestDrain(/*skip_delay=*/signal == SIGINT);
    }
  });
  absl::Status status = (*server)->Start();
  if (status.ok()) status = WritePorts(ports_file, **server);
  if (!status.ok()) return Fail(status, kCannotServe);
  manager.Ready();
  (*server)->Wait();
  return kOk;
}

// gRPC takes memory for what it receives in slabs and frees them message by message. Kept by malloc
// they stay warm; given back to the kernel each time, faulting them in again costs a third of the
// transfer. Larger blocks go back, for whoever wants them warm pools them.
void KeepFreedMemory() {
  mallopt(M_MMAP_THRESHOLD, 8 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
  mallopt(M_ARENA_MAX, 2);
}

// A core would hold caches, keys and tokens, wherever the host sends it.
void KeepMemoryPrivate() { prctl(PR_SET_DUMPABLE, 0); }

// A crash leaves the stack of the thread that did it on stderr: names, no memory.
void TellOfCrashes(const char* program) {
  absl::InitializeSymbolizer(program);
  absl::InstallFailureSignalHandler(absl::FailureSignalHandlerOptions());
}

int Main(int argc, char** argv) {
  if (!base::OccupyStandardStreams()) return kCannotServe;
  TellOfCrashes(argv[0]);
  KeepFreedMemory();
  KeepMemoryPrivate();
  google::protobuf::SetLogHandler(IgnoreProtobuf);
  HoldSignals();
  CLI::App app;
  CommandLine line;
  Describe(&app, &line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  if (app.count("--print-config") > 0 && line.print_config.empty()) line.print_config = "yaml";
  if (line.man_page) {
    std::cout << usage::ManPages(usage::Describe(app), 8, kVersion).front().text;
    return kOk;
  }
  const auto loaded = ReadConfig(app, line);
  if (!loaded.ok()) return Fail(loaded.status(), kUsage);
  if (!line.print_config.empty()) {
    std::cout << (line.print_config == "json" ? PrintJson(*loaded) : PrintYaml(*loaded));
    return kOk;
  }
  if (line.check_config) return CheckFiles(loaded->config);
  const Server::ConfigSource source{line.config_file, [&] { return ReadConfig(app, line); }};
  return Serve(*loaded, source, line.ports_file);
}

}  // namespace
}  // namespace kvbridge::server

int main(int argc, char** argv) { return kvbridge::server::Main(argc, argv); }
