// The parts of config.json that only Llama and Qwen2 have.
#pragma once

#include "hub/config_reader.h"
#include "hub/pretrained_config.h"

namespace strata {

// Reads them into `config`, whose family is known. Throws Error (kData), also for what is not supported.
void read_modern_config(const ConfigReader& json, PretrainedConfig& config);

}  // namespace strata
