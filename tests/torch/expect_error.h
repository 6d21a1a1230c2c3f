#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>

namespace strata {

// The call must throw, with these words in its message.
template <class Call>
void expect_error(const Call& call, const std::string& words) {
  try {
    call();
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << "message: " << error.what();
    return;
  }
  ADD_FAILURE() << "expected an error that says: " << words;
}

}  // namespace strata
