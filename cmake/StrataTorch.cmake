# Finds libtorch. By default whatever CMake finds: Debian's libtorch-dev, or what CMAKE_PREFIX_PATH or Torch_DIR names.
# STRATA_TORCH=python takes the PyTorch of the interpreter STRATA_PYTHON (or of the first python3 on the PATH).
if(STRATA_TORCH STREQUAL "python")
  if(NOT STRATA_PYTHON)
    if(PYTHON_EXECUTABLE)  # from scikit-build-core
      set(STRATA_PYTHON ${PYTHON_EXECUTABLE})
    endif()
    find_program(STRATA_PYTHON python3 REQUIRED)
  endif()
  # By its path: pip's isolated builds hide the packages of the interpreter from import.
  execute_process(COMMAND ${STRATA_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/find_torch.py
                  OUTPUT_VARIABLE found RESULT_VARIABLE torch_result OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT torch_result EQUAL 0)
    message(FATAL_ERROR "STRATA_TORCH=python, but ${STRATA_PYTHON} has no PyTorch. Install torch into its environment "
                        "first. If it is installed elsewhere, use `pip install --no-build-isolation .`, or pass "
                        "-DSTRATA_PYTHON=/path/to/python3.")
  endif()
  list(GET found 0 torch_root)
  list(GET found 1 torch_version)
  if(SKBUILD AND torch_version VERSION_LESS 2.7)  # older wheels of PyTorch have the old C++ ABI
    message(FATAL_ERROR "The package needs PyTorch 2.7 or newer, got ${torch_version} in ${torch_root}. Upgrade torch, or "
                        "build with `make build CMAKE_FLAGS=-DSTRATA_TORCH=python`.")
  endif()
  set(Torch_DIR ${torch_root}/share/cmake/Torch CACHE PATH "Where TorchConfig.cmake is" FORCE)
endif()
# Debian's torch belongs to /usr/bin/python3; another python3 on the PATH may have none.
set(STRATA_PYTHON /usr/bin/python3 CACHE FILEPATH "The Python whose PyTorch is the one built against; runs the Python tests")

# Without CUDA kernels of ours the libraries of the CPU are enough; TorchConfig.cmake of a CUDA build would insist on a
# CUDA toolkit.
if(STRATA_TORCH STREQUAL "python" AND NOT STRATA_CUDA)
  add_library(strata_libtorch INTERFACE)
  target_include_directories(strata_libtorch SYSTEM INTERFACE
    "$<BUILD_INTERFACE:${torch_root}/include;${torch_root}/include/torch/csrc/api/include>")
  target_link_libraries(strata_libtorch INTERFACE
    ${torch_root}/lib/libtorch.so ${torch_root}/lib/libtorch_cpu.so ${torch_root}/lib/libc10.so)
  set(TORCH_LIBRARIES strata_libtorch)
  set(Torch_VERSION ${torch_version})
  message(STATUS "PyTorch ${Torch_VERSION} from ${torch_root}, its CPU libraries")
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
