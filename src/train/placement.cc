#include "train/placement.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "util/error.h"
#include "util/text.h"

namespace strata {
namespace {

constexpr int64_t kMostProcesses = 1 << 20;

// The names that one starter uses. local_size may be left out by all of them.
struct Starter {
  const char *name, *rank, *size, *local_rank, *local_size;
};
constexpr Starter kTorchrun = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Starter kOthers[] = {
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"},
};

class Variables {
 public:
  explicit Variables(const Lookup& lookup) : lookup_(lookup) {}

  bool has(const char* name) const { return lookup_(name) != nullptr && *lookup_(name) != '\0'; }
  std::string text(const char* name) const { return has(name) ? lookup_(name) : ""; }

  int64_t number(const char* name, int64_t least, int64_t most) const {
    const std::string words = text(name);
    int64_t value = 0;
    const auto [end, problem] = std::from_chars(words.data(), words.data() + words.size(), value);
    if (problem != std::errc() || end != words.data() + words.size() || value < least || value > most)
      throw usage_error("{}: expected a number from {} to {}, got {}", name, least, most, shown(words));
    return value;
  }

 private:
  const Lookup& lookup_;
};

void read_ranks(const Variables& variables, const Starter& starter, Placement& place) {
  place.size = variables.number(starter.size, 1, kMostProcesses);
  place.rank = variables.number(starter.rank, 0, kMostProcesses);
  if (place.rank >= place.size)
    throw usage_error("{}: expected a rank below {}, which is {}, got {}", starter.rank, starter.size, place.size,
                      place.rank);
  if (variables.has(starter.local_rank)) place.local_rank = variables.number(starter.local_rank, 0, kMostProcesses);
  // Slurm writes "4(x2),3": the count of this machine is not known unless all have the same.
  const std::string local = variables.text(starter.local_size);
  if (!local.empty() && local.find_first_not_of("0123456789") == std::string::npos)
    place.local_size = variables.number(starter.local_size, 1, kMostProcesses);
}

void read_torchrun(const Variables& variables, Placement& place) {
  std::vector<std::string> missing, there;
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    (variables.has(name) ? there : missing).emplace_back(name);
  }
  if (!missing.empty()) {
    throw usage_error(
        "expected RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT together, got {} without {}; start the "
        "processes by torchrun, or unset what is left over",
        fmt::join(there, ", "), fmt::join(missing, ", "));
  }
  read_ranks(variables, kTorchrun, place);
  place.address = variables.text("MASTER_ADDR");
  place.port = variables.number("MASTER_PORT", 1, 65535);
  place.hosted = variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (variables.has("TORCHELASTIC_RESTART_COUNT"))
    place.restarts = variables.number("TORCHELASTIC_RESTART_COUNT", 0, kMostProcesses);
}

// Where the processes of mpirun and srun meet.
void read_meeting_place(const Variables& variables, const Starter& starter, Placement& place) {
  if (variables.has("MASTER_PORT")) {
    place.port = variables.number("MASTER_PORT", 1, 65535);
  } else if (variables.has("SLURM_JOB_ID")) {  // jobs that share a machine need different ones
    constexpr int64_t kFirst = 15000, kCount = 10000;
    place.port = kFirst + variables.number("SLURM_JOB_ID", 0, INT64_MAX) % kCount;
  }
  if (variables.has("MASTER_ADDR")) {
    place.address = variables.text("MASTER_ADDR");
  } else if (variables.has("SLURM_STEP_NODELIST") && std::strcmp(starter.name, "srun") == 0) {
    place.address = first_host(variables.text("SLURM_STEP_NODELIST"));
  } else if (place.local_size < place.size) {
    throw usage_error(
        "MASTER_ADDR: expected the machine of rank 0, because {} started {} processes on several machines, got "
        "nothing; pass it on, as in: mpirun -x MASTER_ADDR=node1 -x MASTER_PORT=29500 strata train ..",
        starter.name, place.size);
  }
}

}  // namespace

std::string first_host(const std::string& list) {
  const size_t open = list.find('['), comma = list.find(',');
  if (open == std::string::npos || comma < open) return list.substr(0, comma);
  const size_t end = list.find_first_of("-,]", open);
  return list.substr(0, open) + list.substr(open + 1, end == std::string::npos ? end : end - open - 1);
}

std::optional<Placement> find_placement(const Lookup& lookup) {
  const Variables variables(lookup);
  Placement place;
  if (variables.has("RANK") || variables.has("WORLD_SIZE") || variables.has("LOCAL_RANK")) {
    read_torchrun(variables, place);
    return place;
  }
  for (const Starter& starter : kOthers) {
    // A process that mpirun or srun started alone works alone. So does a batch script: it has no step.
    if (!variables.has(starter.rank) || !variables.has(starter.size)) continue;
    read_ranks(variables, starter, place);
    if (place.size == 1) return std::nullopt;
    read_meeting_place(variables, starter, place);
    return place;
  }
  if (variables.has("MASTER_ADDR") && variables.has("MASTER_PORT") && !variables.has("SLURM_JOB_ID"))
    throw usage_error(
        "expected RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT together, got MASTER_ADDR, MASTER_PORT "
        "without the others; start the processes by torchrun, or unset them");
  return std::nullopt;
}

std::optional<Placement> find_placement() {
  return find_placement([](const char* name) -> const char* { return std::getenv(name); });
}

void clear_placement() {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    unsetenv(name);
  for (const Starter& starter : kOthers) unsetenv(starter.rank);
}

}  // namespace strata
