# Flags that all our targets share, and the helpers that make targets.
add_library(plo_options INTERFACE)
target_include_directories(plo_options INTERFACE ${PROJECT_SOURCE_DIR}
                                                 ${PROJECT_BINARY_DIR}/generated)
target_compile_options(plo_options INTERFACE
  # -ffp-contract, --fmad: the numerical contract names each fma.
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor;-Wimplicit-fallthrough;-ffp-contract=off>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra;--expt-relaxed-constexpr;--fmad=false>")
if(PLO_WARNINGS_AS_ERRORS)
  target_compile_options(plo_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Werror>
    "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings>")
endif()
find_program(PLO_MOLD mold)
if(PLO_MOLD)
  target_link_options(plo_options INTERFACE -fuse-ld=mold)
endif()
foreach(kind IN LISTS PLO_SANITIZE)
  target_compile_options(plo_options INTERFACE -fsanitize=${kind}
                         -fno-omit-frame-pointer -g1)
  target_link_options(plo_options INTERFACE -fsanitize=${kind})
endforeach()
if("thread" IN_LIST PLO_SANITIZE)
  target_compile_definitions(plo_options INTERFACE PLO_TSAN=1)
endif()

# Precompiled headers. Names of system headers only: the file that lists them is
# then the same in every checkout, and ccache hits across them.
set(plo_std_headers
  <algorithm> <array> <atomic> <chrono> <cmath> <cstdint> <cstring> <functional>
  <limits> <map> <memory> <mutex> <optional> <set> <sstream> <string>
  <string_view> <thread> <unordered_map> <utility> <variant> <vector>)
# What ccache asks for to see through precompiled headers.
target_compile_options(plo_options INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)

# plo_library(NAME SOURCES... LINK libs... [PCH_FROM library]): a library that
# precompiles the standard headers, or takes them from a library that compiles
# with the same flags.
function(plo_library name)
  cmake_parse_arguments(ARG "" "PCH_FROM" "SOURCES;LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC plo_options ${ARG_LINK})
  if(ARG_PCH_FROM)
    target_precompile_headers(${name} REUSE_FROM ${ARG_PCH_FROM})
  else()
    target_precompile_headers(${name} PRIVATE ${plo_std_headers})
  endif()
endfunction()

# plo_source_options(OPTIONS FILES...): files with flags of their own cannot use
# the precompiled headers.
function(plo_source_options options)
  set_source_files_properties(${ARGN} PROPERTIES
    COMPILE_OPTIONS "${options}" SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# All that the thread sanitizer build needs.
add_custom_target(async_tests)

# Rates that a user has measured must not change what tests see.
set(plo_no_cache "XDG_CACHE_HOME=${PROJECT_BINARY_DIR}/no_cache")

# plo_gpu_test(NAME TARGET FILTER): a ctest entry, labelled gpu, that runs tests
# of a plo_test binary on the GPU (PLO_TEST_DEVICE=cuda); skipped, with the
# reason, where there is none. scripts/gpu_bundle takes all tests with this label
# to a GPU machine.
function(plo_gpu_test name target filter)
  add_test(NAME ${name} COMMAND ${target} --gtest_filter=${filter}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS gpu TIMEOUT 300
                       SKIP_REGULAR_EXPRESSION "no usable GPU"
                       ENVIRONMENT
                       "PLO_BINARY_DIR=${PROJECT_BINARY_DIR};${plo_no_cache};PLO_TEST_DEVICE=cuda")
endfunction()

# Tests spend their build time in headers, not in optimised code. One set of
# precompiled headers serves them all, hence OpenMP everywhere and the flags of
# executables.
if(PLO_BUILD_TESTS)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/empty.cc CONTENT "")
  add_library(plo_test_headers OBJECT ${PROJECT_BINARY_DIR}/generated/empty.cc)
  set_target_properties(plo_test_headers PROPERTIES
                        POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(plo_test_headers PRIVATE -fPIE -O0)
  target_link_libraries(plo_test_headers PRIVATE plo_options
                        OpenMP::OpenMP_CXX GTest::gtest GTest::gmock)
  target_precompile_headers(plo_test_headers PRIVATE
    <gmock/gmock.h> <gtest/gtest.h> ${plo_std_headers})
endif()

# plo_test(NAME SOURCES... LINK libs... LABELS labels... [TIMEOUT seconds]
#          [TSAN_FILTER gtest_filter]): one gtest binary, run as one ctest entry;
# under the thread sanitizer only the cases that pass the filter.
function(plo_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;TSAN_FILTER" "SOURCES;LINK;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} OpenMP::OpenMP_CXX
                        GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
  target_precompile_headers(${name} REUSE_FROM plo_test_headers)
  set(filter)
  if(ARG_TSAN_FILTER AND "thread" IN_LIST PLO_SANITIZE)
    set(filter --gtest_filter=${ARG_TSAN_FILTER})
  endif()
  add_test(NAME ${name} COMMAND ${name} ${filter}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if("async" IN_LIST ARG_LABELS)
    add_dependencies(async_tests ${name})
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}"
                       TIMEOUT ${ARG_TIMEOUT}
                       ENVIRONMENT
                       "PLO_BINARY_DIR=${PROJECT_BINARY_DIR};${plo_no_cache}")
endfunction()
