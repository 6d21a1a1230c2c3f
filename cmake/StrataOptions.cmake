# Compiler options that every target of the project shares.
add_library(strata_options INTERFACE)
target_compile_options(strata_options INTERFACE -Wall -Wextra $<$<BOOL:${STRATA_WERROR}>:-Werror>)
if(STRATA_SANITIZE)
  set(sanitize -fsanitize=${STRATA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_compile_options(strata_options INTERFACE ${sanitize})
  target_link_options(strata_options INTERFACE ${sanitize})
endif()

# strata_version(target): libraries have sonames, except in wheels, which hold no links.
function(strata_version target)
  if(NOT SKBUILD)
    set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  endif()
endfunction()

# strata_hide_symbols(target): a shared library exports what STRATA_API marks and nothing else; the version script also
# hides the templates of the standard library, which its headers mark as visible.
function(strata_hide_symbols target)
  set(script ${PROJECT_SOURCE_DIR}/cmake/exported.map)
  target_link_options(${target} PRIVATE -Wl,--exclude-libs,ALL -Wl,--version-script=${script})
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${script})
endfunction()

option(STRATA_TOGETHER "Compile small files that include the same large headers together" ON)

# strata_compile_together(target count): that many files at a time.
function(strata_compile_together target count)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${STRATA_TOGETHER} UNITY_BUILD_BATCH_SIZE ${count})
endfunction()

# strata_build_quickly(target [TOGETHER]): less optimisation, for what computes little.
function(strata_build_quickly target)
  target_compile_options(${target} PRIVATE -O1)
  if("TOGETHER" IN_LIST ARGN)
    strata_compile_together(${target} 4)
  endif()
endfunction()
