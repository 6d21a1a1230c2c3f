#include "train/placement.h"

#include <gtest/gtest.h>

#include <map>

#include "util/error.h"

namespace strata {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<Placement> placed(const Variables& variables) {
  return find_placement([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string refusal(const Variables& variables) {
  try {
    placed(variables);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
  return "accepted";
}

Variables torchrun() {
  return {{"RANK", "5"},         {"WORLD_SIZE", "8"},      {"LOCAL_RANK", "1"},
          {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "29501"}, {"LOCAL_WORLD_SIZE", "4"}};
}

TEST(Placement, NoVariablesMeanAlone) { EXPECT_FALSE(placed({}).has_value()); }

TEST(Placement, Torchrun) {
  Variables variables = torchrun();
  const std::optional<Placement> place = placed(variables);
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->rank, 5);
  EXPECT_EQ(place->size, 8);
  EXPECT_EQ(place->local_rank, 1);
  EXPECT_EQ(place->local_size, 4);
  EXPECT_EQ(place->address, "n0");
  EXPECT_EQ(place->port, 29501);
  EXPECT_FALSE(place->hosted);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  variables["TORCHELASTIC_RESTART_COUNT"] = "2";
  EXPECT_TRUE(placed(variables)->hosted);
  EXPECT_EQ(placed(variables)->restarts, 2);
}

TEST(Placement, HalfOfTheVariablesIsRefused) {
  for (const auto& [name, value] : torchrun()) {
    if (name == "LOCAL_WORLD_SIZE") continue;
    Variables variables = torchrun();
    variables.erase(name);
    EXPECT_NE(refusal(variables).find("without " + name), std::string::npos) << refusal(variables);
  }
  EXPECT_NE(refusal({{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}).find("without the others"), std::string::npos);
}

TEST(Placement, BadNumbersAreRefused) {
  for (const char* bad : {"-1", "x", "5x", "99999999999999999999"}) {
    Variables variables = torchrun();
    variables["RANK"] = bad;
    EXPECT_EQ(refusal(variables).rfind("RANK: expected a number", 0), 0U) << refusal(variables);
  }
  Variables variables = torchrun();
  variables["RANK"] = "8";
  EXPECT_NE(refusal(variables).find("below WORLD_SIZE"), std::string::npos);
}

TEST(Placement, Mpirun) {
  Variables variables = {{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_EQ(placed(variables)->rank, 1);
  EXPECT_EQ(placed(variables)->address, "127.0.0.1");
  variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  EXPECT_NE(refusal(variables).find("MASTER_ADDR: expected the machine of rank 0"), std::string::npos);
  variables["MASTER_ADDR"] = "n7";
  EXPECT_EQ(placed(variables)->address, "n7");
  EXPECT_EQ(placed({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALNRANKS", "3"}})->rank, 2);
  EXPECT_FALSE(placed({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).has_value());
}

TEST(Placement, Srun) {
  Variables variables = {{"SLURM_PROCID", "3"},
                         {"SLURM_STEP_NUM_TASKS", "4"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                         {"SLURM_STEP_NODELIST", "gpu[03,05-07]"},
                         {"SLURM_JOB_ID", "1234567"}};
  const std::optional<Placement> place = placed(variables);
  EXPECT_EQ(place->rank, 3);
  EXPECT_EQ(place->size, 4);
  EXPECT_EQ(place->local_rank, 1);
  EXPECT_EQ(place->address, "gpu03");
  EXPECT_EQ(place->port, 15000 + 4567);
  variables.erase("SLURM_STEP_NUM_TASKS");  // a batch script, not a step
  EXPECT_FALSE(placed(variables).has_value());
}

TEST(Placement, FirstHostOfASlurmList) {
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("node[07-09,12],big1"), "node07");
  EXPECT_EQ(first_host("node[3]"), "node3");
  EXPECT_EQ(first_host("big,node[1-2]"), "big");
}

}  // namespace
}  // namespace strata
