# Finds libtorch. By default whatever CMake finds: Debian's libtorch-dev, or what CMAKE_PREFIX_PATH or Torch_DIR names.
# STRATA_TORCH=python asks the interpreter STRATA_PYTHON (or the first python3 on the PATH) where its PyTorch lives.
if(STRATA_TORCH STREQUAL "python")
  if(NOT STRATA_PYTHON)
    find_program(STRATA_PYTHON python3 REQUIRED)
  endif()
  execute_process(COMMAND ${STRATA_PYTHON} -c "import torch; print(torch.utils.cmake_prefix_path)"
                  OUTPUT_VARIABLE torch_prefix RESULT_VARIABLE torch_result OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT torch_result EQUAL 0)
    message(FATAL_ERROR "STRATA_TORCH=python, but ${STRATA_PYTHON} cannot import torch. "
                        "Activate an environment with PyTorch, or pass -DSTRATA_PYTHON=/path/to/python3.")
  endif()
  set(Torch_DIR ${torch_prefix}/Torch CACHE PATH "Where TorchConfig.cmake is" FORCE)
endif()
# Debian's torch belongs to /usr/bin/python3; another python3 on the PATH may have none.
set(STRATA_PYTHON /usr/bin/python3 CACHE FILEPATH "The Python whose PyTorch is the one built against; runs the Python tests")

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
