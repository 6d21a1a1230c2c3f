# Finds libtorch. By default whatever CMake finds: Debian's libtorch-dev, or what CMAKE_PREFIX_PATH or Torch_DIR names.
# STRATA_TORCH=python takes the PyTorch that cmake/StrataPythonTorch.cmake has found.
# Debian's torch belongs to /usr/bin/python3; another python3 on the PATH may have none.
set(STRATA_PYTHON /usr/bin/python3 CACHE FILEPATH "The Python whose PyTorch is the one built against; runs the Python tests")

# The libraries of a wheel by their paths. Its TorchConfig.cmake would insist on a CUDA toolkit even for a build without
# CUDA, and would look for NCCL and others in the toolkit, which may be older than those of the wheel.
if(STRATA_TORCH STREQUAL "python")
  add_library(strata_libtorch INTERFACE)
  target_include_directories(strata_libtorch SYSTEM INTERFACE
    "$<BUILD_INTERFACE:${torch_root}/include;${torch_root}/include/torch/csrc/api/include>")
  target_link_libraries(strata_libtorch INTERFACE
    ${torch_root}/lib/libtorch.so ${torch_root}/lib/libtorch_cpu.so ${torch_root}/lib/libc10.so)
  set(parts "its CPU libraries")
  if(STRATA_CUDA)
    target_link_libraries(strata_libtorch INTERFACE
      $<BUILD_INTERFACE:CUDA::toolkit> ${torch_root}/lib/libtorch_cuda.so ${torch_root}/lib/libc10_cuda.so)
    set(parts "its CUDA libraries")
  endif()
  # The libraries below those of torch are found at run time, by torch's own paths.
  target_link_options(strata_libtorch INTERFACE -Wl,--allow-shlib-undefined)
  set(TORCH_LIBRARIES strata_libtorch)
  set(Torch_VERSION ${torch_version})
  message(STATUS "PyTorch ${Torch_VERSION} from ${torch_root}, ${parts}")
  return()
endif()

# TorchConfig.cmake looks for Caffe2 and its libraries in the system's folders first; make it take those beside itself.
if(Torch_DIR)
  set(Caffe2_DIR ${Torch_DIR}/../Caffe2)
  get_filename_component(torch_root ${Torch_DIR}/../../.. ABSOLUTE)
  list(PREPEND CMAKE_LIBRARY_PATH ${torch_root}/lib)
endif()
# A PyTorch with CUDA otherwise runs a program to see which GPU is here, which fails with older CMake; our own CUDA sources
# name their architectures themselves.
if(NOT DEFINED TORCH_CUDA_ARCH_LIST)
  set(TORCH_CUDA_ARCH_LIST 9.0)
endif()
find_package(Torch REQUIRED)
message(STATUS "PyTorch ${Torch_VERSION} from ${Torch_DIR}")
