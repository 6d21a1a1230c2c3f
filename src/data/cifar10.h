// The images of CIFAR-10, for the tasks that are made from them.
#pragma once

#include "data/dataset.h"

namespace strata {

inline constexpr int64_t kCifarSide = 32;
const std::vector<std::string>& cifar10_classes();

// Images are read with 32, 16 or 8 pixels a side. The side of an image of so many pixels, or 0.
int64_t cifar10_side(int64_t pixels);

// The mean grey levels of square blocks of an image of 32 x 32 pixels, rounded: one of side x side pixels.
std::vector<Token> shrink_image(std::span<const Token> pixels, int64_t side);

// Rows of 32 x 32 grey pixels, row by row, with the classes as labels. Without a path, the set in the cache.
TaskData read_cifar10(const std::string& path);

}  // namespace strata
