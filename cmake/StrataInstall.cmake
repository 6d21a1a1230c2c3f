# `find_package(strata)` gives strata::core; `find_package(strata COMPONENTS torch)` gives strata::torch as well.
if(SKBUILD)  # what a wheel carries beside the Python files (pyproject.toml)
  set(libraries strata strata_torch)
  if(TARGET strata_cuda)
    list(APPEND libraries strata_cuda)
  endif()
  install(TARGETS ${libraries} LIBRARY DESTINATION strata/lib COMPONENT python)
  install(FILES ${STRATA_TORCH_STAMP} DESTINATION strata/lib COMPONENT python)
  add_custom_target(strata_wheel DEPENDS ${libraries})
  if(TARGET strata_command)
    add_dependencies(strata_wheel strata_command)
    set_target_properties(strata_command PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")  # python/strata_command finds torch
    install(TARGETS strata_command RUNTIME DESTINATION strata/bin COMPONENT python)
  else()
    string(REPLACE ";" " " missing "${STRATA_COMMAND_MISSING}")
    file(WRITE ${PROJECT_BINARY_DIR}/strata.missing "${missing}\n")  # what `strata` says is missing
    install(FILES ${PROJECT_BINARY_DIR}/strata.missing DESTINATION strata/bin COMPONENT python)
  endif()
  return()
endif()

include(CMakePackageConfigHelpers)
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/strata)

install(DIRECTORY include/strata DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS strata EXPORT strataCore)
install(EXPORT strataCore NAMESPACE strata:: DESTINATION ${config_dir} FILE strataCore.cmake)

if(TARGET strata_cuda)
  install(TARGETS strata_cuda EXPORT strataCuda)
  install(EXPORT strataCuda NAMESPACE strata:: DESTINATION ${config_dir} FILE strataCuda.cmake)
endif()

if(TARGET strata_torch)
  install(TARGETS strata_torch EXPORT strataTorch)
  if(TARGET strata_libtorch)
    install(TARGETS strata_libtorch EXPORT strataTorch)
  endif()
  install(EXPORT strataTorch NAMESPACE strata:: DESTINATION ${config_dir} FILE strataTorch.cmake)
  # They include each other without a folder, as they lie in one here and there.
  install(FILES src/model/decoding_cache.h src/model/hkt_attention.h src/model/hkt_cache.h src/model/hsa_attention.h
                src/model/hsa_stream_cache.h src/model/modern.h src/model/rotary.h src/model/safetensors.h
                src/model/strata_attention.h
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/strata/model)
  install(FILES src/torch/hkt_op.h src/torch/hsa_op.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/strata/torch)

  # The Python package, told where the operator library lies.
  set(python_dir ${CMAKE_INSTALL_LIBDIR}/python3/dist-packages)  # where Debian's Python looks under /usr
  if(STRATA_TORCH STREQUAL "python")  # where this Python looks under its own prefix, for example that of an environment
    execute_process(
      COMMAND ${STRATA_PYTHON} -c "import os, sysconfig; print(os.path.normpath(sysconfig.get_path('purelib', 'posix_prefix', {'base': '.'})))"
      OUTPUT_VARIABLE python_dir OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  endif()
  file(RELATIVE_PATH STRATA_LIBRARY_FROM_PACKAGE /prefix/${python_dir}/strata
       /prefix/${CMAKE_INSTALL_LIBDIR}/$<TARGET_FILE_NAME:strata_torch>)
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/_installed.py
       CONTENT "# Written by the installation.\nLIBRARY = \"${STRATA_LIBRARY_FROM_PACKAGE}\"\n")
  install(DIRECTORY python/strata DESTINATION ${python_dir} FILES_MATCHING PATTERN "*.py" PATTERN "py.typed")
  install(FILES ${PROJECT_BINARY_DIR}/_installed.py DESTINATION ${python_dir}/strata)
  install(FILES ${STRATA_TORCH_STAMP} DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

if(TARGET strata_command)
  install(TARGETS strata_command)
  install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/strata)
endif()

configure_package_config_file(cmake/strataConfig.cmake.in ${PROJECT_BINARY_DIR}/strataConfig.cmake
                              INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/strataConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/strataConfig.cmake ${PROJECT_BINARY_DIR}/strataConfigVersion.cmake
        DESTINATION ${config_dir})
