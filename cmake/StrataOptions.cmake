# Compiler options that every target of the project shares.
add_library(strata_options INTERFACE)
target_compile_options(strata_options INTERFACE -Wall -Wextra $<$<BOOL:${STRATA_WERROR}>:-Werror>)
if(STRATA_SANITIZE)
  set(sanitize -fsanitize=${STRATA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_compile_options(strata_options INTERFACE ${sanitize})
  target_link_options(strata_options INTERFACE ${sanitize})
endif()
