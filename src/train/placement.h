// Which of several processes this one is, as torchrun, mpirun or srun tell it by environment variables. Without torch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace strata {

struct Placement {
  int64_t rank = 0, size = 1;
  int64_t local_rank = 0, local_size = 1;  // among the processes of this machine
  std::string address = "127.0.0.1";       // of the store, where the processes meet
  int64_t port = 29500;
  bool hosted = false;   // the store is already there: torchrun's agent, or `strata train --processes`, hosts it
  int64_t restarts = 0;  // how often torchrun has started the processes again
  bool is_writer() const { return rank == 0; }
};

// Looks up an environment variable; null: not set.
using Lookup = std::function<const char*(const char* name)>;

// Nothing: this process works alone. Throws a usage error if variables are missing or do not fit together.
//   torchrun  RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, all of them
//   mpirun    OMPI_COMM_WORLD_RANK, .. (Open MPI) or PMI_RANK, .. (MPICH, Intel MPI)
//   srun      SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID
// With mpirun and srun, MASTER_ADDR and MASTER_PORT may be left out where this page knows them: processes of a single
// machine meet at 127.0.0.1, those of srun at the first machine of the step.
std::optional<Placement> find_placement(const Lookup& variable);
std::optional<Placement> find_placement();  // of this process

// Removes all these variables, so that processes that this one starts work alone.
void clear_placement();

// The first machine of a Slurm list: "node07" of "node[07-09,12],big1".
std::string first_host(const std::string& list);

}  // namespace strata
