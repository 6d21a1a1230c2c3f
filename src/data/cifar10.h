// The images of CIFAR-10, for the tasks that are made from them.
#pragma once

#include "data/dataset.h"

namespace strata {

inline constexpr int64_t kCifarSide = 32;
const std::vector<std::string>& cifar10_classes();

// Rows of 32 x 32 grey pixels, row by row, with the classes as labels. Without a path, the set in the cache.
TaskData read_cifar10(const std::string& path);

}  // namespace strata
