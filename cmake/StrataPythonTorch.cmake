# STRATA_TORCH=python: finds the PyTorch of the interpreter STRATA_PYTHON (or of the first python3 on the PATH). Sets
# torch_root, its folder; torch_version; and torch_cuda, the CUDA it was built with, empty for a PyTorch of the CPU.
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
list(LENGTH found parts)
set(torch_cuda "")
if(parts GREATER 2)
  list(GET found 2 torch_cuda)
endif()
if(SKBUILD AND torch_version VERSION_LESS 2.7)  # older wheels of PyTorch have the old C++ ABI
  message(FATAL_ERROR "The package needs PyTorch 2.7 or newer, got ${torch_version} in ${torch_root}. Upgrade torch, or "
                      "build with `make build CMAKE_FLAGS=-DSTRATA_TORCH=python`.")
endif()
set(Torch_DIR ${torch_root}/share/cmake/Torch CACHE PATH "Where TorchConfig.cmake is" FORCE)

# STRATA_CUDA=AUTO: the kernels for GPUs are built where nvcc is found and fits the PyTorch.
if(STRATA_CUDA STREQUAL "AUTO")
  set(STRATA_CUDA OFF)
  include(CheckLanguage)
  check_language(CUDA)
  if(torch_cuda STREQUAL "")
    message(STATUS "CUDA: skipped, this PyTorch was built without it")
  elseif(NOT CMAKE_CUDA_COMPILER)
    message(STATUS "CUDA: skipped, nvcc was not found")
  else()
    execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE nvcc_version)
    string(REGEX MATCH "release ([0-9]+)" nvcc_major "${nvcc_version}")
    set(nvcc_major "${CMAKE_MATCH_1}")
    string(REGEX MATCH "^[0-9]+" torch_cuda_major "${torch_cuda}")
    if(nvcc_major STREQUAL torch_cuda_major)
      set(STRATA_CUDA ON)
      message(STATUS "CUDA: built, by ${CMAKE_CUDA_COMPILER}")
    else()
      message(STATUS "CUDA: skipped, nvcc is of CUDA ${nvcc_major} and PyTorch needs CUDA ${torch_cuda_major}")
    endif()
  endif()
endif()
