#pragma once  // see gloo/algorithm.h
