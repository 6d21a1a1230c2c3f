#pragma once  // see gloo/algorithm.h

namespace gloo::transport {
class Device;
}  // namespace gloo::transport
