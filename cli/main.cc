// The command strata. Each subcommand has a file; this one parses the command line and turns errors into exit codes.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <set>
#include <sstream>
#include <system_error>

#include "bind.h"
#include "commands.h"
#include "strata/host.h"
#include "util/error.h"
#include "util/options.h"
#include "util/output.h"
#include "util/text.h"

namespace {

constexpr const char* kIntroduction =
    "Strata: hierarchical, multi-scale attention. Prepares data, trains flat, HKT and HSA models,\n"
    "compares them over seeds with significance tests, and predicts; injects HSA into pretrained transformers.";

constexpr const char* kFooter =
    "Start here:\n"
    "  strata compare                          flat, HKT and HSA on ListOps, three seeds, a table\n"
    "  strata train --attention hkt            one model\n"
    "  strata predict runs/listops-hkt-seed1 \"[MAX 2 [MIN 4 7 ] 0 ]\"\n"
    "  strata help COMMAND                     options and examples of a command\n"
    "\n"
    "Exit codes: 0 done; 1 failure; 2 wrong command line or config; 3 data missing or unreadable;\n"
    "4 output folder, checkpoint or standard output unusable; 5 training diverged;\n"
    "130 interrupted, state saved; 141 the reader of standard output closed its pipe.";

constexpr const char* kOutOfMemory = "out of memory; try a smaller --batch or --length";

// Applies the settings this machine needs (strata/host.h). Commands that compute also limit how long waiting OpenMP
// threads spin: with the default, a training step takes forty times as long when another program uses the same core.
void settle(const std::string& command, char** argv) {
  static const std::set<std::string> computing = {"train", "eval", "predict", "inspect", "embed", "inject", "generate"};
  static const std::set<std::string> other = {"bench", "compare", "info"};
  std::vector<strata::HostSetting> more;
  if (computing.count(command) > 0 && std::getenv("OMP_WAIT_POLICY") == nullptr)
    more.push_back({"GOMP_SPINCOUNT", "10000", ""});
  // One of several processes: c10d's log repeats, in many lines, what the message of the error says.
  const std::vector<const char*> ranks = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
  if (command == "train" && std::any_of(ranks.begin(), ranks.end(), std::getenv)) {
    more.push_back({"GLOG_minloglevel", "3", ""});
    more.push_back({"TORCH_CPP_LOG_LEVEL", "FATAL", ""});
  }
  if (computing.count(command) + other.count(command) > 0) strata::settle_host(argv, more);
}

// The message comes after what was printed before, so that it is the last line of a log.
int fail(strata::ExitCode code, const std::string& message) {
  std::fflush(stdout);
  // Of several processes, one tells what happened to all.
  if (code != strata::ExitCode::kClosedPipe && !message.empty())
    std::cerr << "strata: " << strata::shown_message(message) << "\n";
  return static_cast<int>(code);
}

void add_commands(CLI::App& app) {
  strata::add_data_command(app);
  strata::add_train_command(app);
  strata::add_compare_command(app);
  strata::add_eval_command(app);
  strata::add_predict_command(app);
#ifdef STRATA_HUB
  strata::add_embed_command(app);
  strata::add_inject_command(app);
  strata::add_generate_command(app);
#endif
  strata::add_inspect_command(app);
  strata::add_report_command(app);
  strata::add_info_command(app);
  strata::add_bench_command(app);
  strata::add_completion_command(app);
  strata::add_help_command(app);
}

// Runs the command. Returns its exit code; throws what went wrong.
int run(int argc, char** argv) {
  CLI::App app(kIntroduction, "strata");
  app.footer(kFooter);
  app.set_version_flag("--version", "strata " STRATA_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->column_width(44);
  add_commands(app);
  try {
    if (argc == 1) {
      fmt::print("{}", app.help());
    } else {
      if (argv[1][0] != '-') strata::find_command(app, argv[1]);  // the message of CLI11 would not name the wrong word
      app.parse(argc, argv);
    }
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) throw strata::usage_error("{}\nTry strata --help.", error.what());
    std::ostringstream help;  // or the version
    app.exit(error, help, std::cerr);
    fmt::print("{}", help.str());
  }
  strata::flush_output();
  return 0;
}

// An exception of the standard library: a print that failed, or something unexpected.
int fail_by(const std::exception& exception) {
  try {
    const auto* system = dynamic_cast<const std::system_error*>(&exception);
    strata::flush_output(system != nullptr ? system->code().value() : 0);
  } catch (const strata::Error& error) {
    return fail(error.code(), error.what());
  }
  const std::string words = exception.what();  // without the trace that torch adds
  if (words.find("DefaultCPUAllocator: ") != std::string::npos) return fail(strata::ExitCode::kFailure, kOutOfMemory);
  return fail(strata::ExitCode::kFailure, words.substr(0, words.find("\nException raised from")));
}

}  // namespace

int main(int argc, char** argv) {
  using strata::ExitCode;
  strata::prepare_streams();
  if (argc > 1) settle(argv[1], argv);
  try {
    return run(argc, argv);
  } catch (const strata::Error& error) {
    return fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::kFailure, kOutOfMemory);
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(ExitCode::kOutput, fmt::format("{}: {}", error.path1().string(), error.code().message()));
  } catch (const std::exception& error) {
    return fail_by(error);
  }
}
