# Flags every kvbridge target is compiled with. Kernels that need more than the baseline instruction
# set say so per source file (core/device/cpu), and are entered only after a CPUID check.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

add_library(kvb_flags INTERFACE)
target_compile_options(kvb_flags INTERFACE
  -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers
  -march=x86-64-v2 -fno-omit-frame-pointer)
target_include_directories(kvb_flags INTERFACE "${CMAKE_SOURCE_DIR}")

if(KVBRIDGE_SANITIZE)
  target_compile_options(kvb_flags INTERFACE -fsanitize=${KVBRIDGE_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(kvb_flags INTERFACE -fsanitize=${KVBRIDGE_SANITIZE})
endif()

find_program(KVB_CCACHE ccache)
if(KVB_CCACHE)
  # Paths below the source folder are hashed relative to it: clones share one cache.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}
      CCACHE_NOHASHDIR=1 ${KVB_CCACHE})
endif()

find_program(KVB_LLD ld.lld)
if(KVB_LLD)
  add_link_options(-fuse-ld=lld)
endif()
