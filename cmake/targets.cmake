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

# plo_library(NAME SOURCES... LINK libs...)
function(plo_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC plo_options ${ARG_LINK})
endfunction()

# All that the thread sanitizer build needs.
add_custom_target(async_tests)

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
                       "PLO_BINARY_DIR=${PROJECT_BINARY_DIR};PLO_TEST_DEVICE=cuda")
endfunction()

# plo_test(NAME SOURCES... LINK libs... LABELS labels...): one gtest binary,
# run as one ctest entry.
function(plo_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gtest GTest::gmock
                                        GTest::gtest_main)
  # Tests spend their build time in headers, not in optimised code.
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  target_precompile_headers(${name} PRIVATE <gmock/gmock.h> <gtest/gtest.h>
                            <functional> <map> <memory> <string> <vector>)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if("async" IN_LIST ARG_LABELS)
    add_dependencies(async_tests ${name})
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}"
                       TIMEOUT ${ARG_TIMEOUT}
                       ENVIRONMENT "PLO_BINARY_DIR=${PROJECT_BINARY_DIR}")
endfunction()
