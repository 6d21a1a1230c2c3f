// The subcommands of strata, one file each. Each function adds a subcommand to the application. Its callback does the
// work and throws Error on failure.
#pragma once

#include <CLI/CLI.hpp>

namespace strata {

void add_data_command(CLI::App& app);
void add_train_command(CLI::App& app);
void add_compare_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_predict_command(CLI::App& app);
void add_inspect_command(CLI::App& app);
void add_report_command(CLI::App& app);
void add_embed_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_inject_command(CLI::App& app);
void add_info_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_completion_command(CLI::App& app);
void add_help_command(CLI::App& app);

}  // namespace strata
