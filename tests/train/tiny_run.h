// Tiny runs and models for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

#include "train/config.h"
#include "train/setup.h"

namespace strata {

inline fs::path fresh_folder(const std::string& name) {
  const fs::path folder = fs::temp_directory_path() / ("strata_train_test_" + name);
  fs::remove_all(folder);
  return folder;
}

inline RunConfig tiny_config(const std::string& attention) {
  RunConfig config;
  config.data.train_rows = 256;
  config.data.valid_rows = config.data.test_rows = 64;
  config.model.attention = attention;
  config.model.model_size = 16;
  config.model.heads = 2;
  config.train.batch = 32;
  config.train.threads = 1;
  return config;
}

class WithCache : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { setenv("XDG_CACHE_HOME", fresh_folder("cache").c_str(), 1); }
};

inline ModelCard tiny_card(const std::string& attention, const TaskData& data) {
  return make_card(tiny_config(attention), data);
}

}  // namespace strata
