// The main function of every test program: as the command does, it first settles what this machine needs.
#include <gtest/gtest.h>

#include "strata/host.h"

int main(int argc, char** argv) {
  strata::settle_host(argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
