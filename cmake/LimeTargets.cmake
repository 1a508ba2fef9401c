# How every target of the project is built: C++20, warnings as errors in our own code, sanitizers
# where asked.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(LIME_CCACHE ccache)
if(LIME_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${LIME_CCACHE})
endif()

# Nearly two hundred programs are linked: lld takes a sixth of the time of GNU ld.
find_program(LIME_LLD ld.lld)
if(LIME_LLD)
  add_link_options(-fuse-ld=lld)
endif()

if(LIME_SANITIZE)
  add_compile_options(-fsanitize=${LIME_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${LIME_SANITIZE})
  add_compile_definitions(LIME_SANITIZED)
  if(LIME_SOAK_TESTS)
    add_compile_definitions(LIME_WIDE_KERNELS)
  endif()
  # It reads what a pointer points to by a pipe: where a test takes descriptors away, every object
  # is of another type.
  if(LIME_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize=vptr)
  endif()
  # Checks of every pointer take as long to compile and to run as everything else, and
  # AddressSanitizer sees what they would. The preset ubsan has them.
  if(LIME_SANITIZE STREQUAL "address,undefined")
    add_compile_options(-fno-sanitize=null,alignment,object-size,pointer-overflow,function)
  endif()
  # AddressSanitizer's checks as calls and not in line: where code is optimised they take half of
  # the time to compile. Not for what loads vectors (LIME_CHECKS_IN_LINE): there, such calls would
  # take nine tenths of the time of a test.
  if(LIME_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    add_compile_options("SHELL:$<$<NOT:$<BOOL:$<TARGET_PROPERTY:LIME_CHECKS_IN_LINE>>>:-mllvm -asan-instrumentation-with-call-threshold=0>")
  endif()
  # Coverage for the fuzz targets: asked for in all files alike, since headers that are parsed once
  # serve one set of options, and taken back by lime_uncovered. Not for ThreadSanitizer, which would
  # report its counters.
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND NOT LIME_SANITIZE STREQUAL "thread")
    set(LIME_FUZZ ON)
    add_compile_options(-fsanitize=fuzzer-no-link)
  endif()
endif()

# What GCC has parsed is garbage at the end of a file: to collect it in between takes a tenth of its
# time.
add_compile_options($<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1048576>)  # KiB

# gRPC's and asio's users have -pthread, and parsed headers serve one set of options. GCC 12 forgets
# that they are the system's, and takes std::string's own code for an access out of bounds.
add_compile_options(-pthread $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>)

find_package(absl REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Threads REQUIRED)
find_package(GTest REQUIRED)
find_program(Python3_EXECUTABLE python3 REQUIRED)  # find_package(Python3) starts interpreters a hundred times

# Tells ThreadSanitizer what an Abseil built without it does; linked into every program.
if(LIME_SANITIZE STREQUAL "thread")
  add_library(lime_tsan_abseil OBJECT ${PROJECT_SOURCE_DIR}/cmake/tsan_abseil.cc)
  target_link_libraries(lime_tsan_abseil PUBLIC absl::status absl::synchronization ${CMAKE_DL_LIBS})
  add_library(lime_tsan_options OBJECT ${PROJECT_SOURCE_DIR}/cmake/tsan_options.cc)
  target_compile_definitions(lime_tsan_options PRIVATE LIME_TSAN_SUPPRESSIONS="${PROJECT_SOURCE_DIR}/cmake/tsan_suppressions.txt")
endif()

# lime_options(target): what holds for our own code and not for the headers it includes.
function(lime_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Werror -Wno-missing-field-initializers -ffp-contract=off)
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)  # checks every ABSL_GUARDED_BY; GCC does not
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
endfunction()

# lime_optimize(target level): as it is said, whatever the preset says.
function(lime_optimize target level)
  target_compile_options(${target} PRIVATE -O${level})
  if(level EQUAL 0)  # where some distributions' own flags ask for checks that need more
    target_compile_options(${target} PRIVATE -U_FORTIFY_SOURCE)
  endif()
  if(level EQUAL 1)  # where GCC 12 takes std::string's operator+ for an access out of bounds
    target_compile_options(${target} PRIVATE
      $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-restrict;-Wno-stringop-overflow;-Wno-maybe-uninitialized>)
  endif()
endfunction()

# lime_cold(target): flags and tables, which run once. The sanitizer builds optimise nothing but HOT
# libraries, and tests with a level.
function(lime_cold target)
  if(NOT LIME_SANITIZE)
    lime_optimize(${target} 1)
  endif()
endfunction()

# lime_uncovered(target): what no fuzz target reaches. Coverage takes a fifth of the time that an
# unoptimised file compiles.
function(lime_uncovered target)
  if(LIME_FUZZ)
    target_compile_options(${target} PRIVATE -fno-sanitize-coverage=inline-8bit-counters,indirect-calls,trace-cmp,pc-table,stack-depth)
  endif()
endfunction()

# What nearly all files include, parsed once for all libraries.
file(WRITE ${CMAKE_BINARY_DIR}/headers.cc "")
add_library(lime_headers STATIC ${CMAKE_BINARY_DIR}/headers.cc)
target_link_libraries(lime_headers PUBLIC absl::statusor absl::strings absl::synchronization)
lime_options(lime_headers)
set(LIME_HEADERS <algorithm> <chrono> <functional> <map> <memory> <optional> <span> <string> <utility> <variant> <vector>
  <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/synchronization/mutex.h>)
target_precompile_headers(lime_headers PRIVATE ${LIME_HEADERS})
if(LIME_SANITIZE)
  add_library(lime_hot_headers STATIC ${CMAKE_BINARY_DIR}/headers.cc)
  target_link_libraries(lime_hot_headers PUBLIC lime_headers)
  lime_options(lime_hot_headers)
  lime_optimize(lime_hot_headers 1)
  target_precompile_headers(lime_hot_headers PRIVATE ${LIME_HEADERS})
endif()

# In the gate, a sanitizer build has its tests and fuzz targets, and what they need.
set(LIME_ON_DEMAND)
if(LIME_SANITIZE AND NOT LIME_SOAK_TESTS)
  set(LIME_ON_DEMAND EXCLUDE_FROM_ALL)
endif()

# lime_library(name SRCS ... [DEPS ...] [HEADERS target] [HOT | HOT_IN_SOAK]): a static library of one
# folder, and whose parsed headers it uses.
# HOT: what tests spend their time in. HOT_IN_SOAK: only those that run in scripts/soak alone.
function(lime_library name)
  cmake_parse_arguments(ARG "HOT;HOT_IN_SOAK" "HEADERS" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${LIME_ON_DEMAND} ${ARG_SRCS})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
  lime_options(${name})
  if(NOT ARG_HEADERS)
    set(ARG_HEADERS lime_headers)
  endif()
  if(LIME_SANITIZE AND (ARG_HOT OR (ARG_HOT_IN_SOAK AND LIME_SOAK_TESTS)))
    lime_optimize(${name} 1)
    set(ARG_HEADERS lime_hot_headers)
  endif()
  target_precompile_headers(${name} REUSE_FROM ${ARG_HEADERS})
  set_target_properties(${name} PROPERTIES PCH_WARN_INVALID OFF)  # a file with other options parses them itself
endfunction()

# What reads and writes JSON. Parsed for the level at which that is compiled.
add_library(lime_json_headers STATIC ${CMAKE_BINARY_DIR}/headers.cc)
target_link_libraries(lime_json_headers PUBLIC lime_headers nlohmann_json::nlohmann_json)
lime_options(lime_json_headers)
lime_cold(lime_json_headers)
target_precompile_headers(lime_json_headers PRIVATE ${LIME_HEADERS} <nlohmann/json.hpp>)

# What all include that speak to other devices, for the same reason.
if(NOT LIME_LOGIC_ONLY)
  find_package(gRPC REQUIRED)
  add_library(lime_rpc_headers STATIC ${CMAKE_BINARY_DIR}/headers.cc)
  target_link_libraries(lime_rpc_headers PUBLIC lime_headers gRPC::grpc++ nlohmann_json::nlohmann_json)
  lime_options(lime_rpc_headers)
  target_precompile_headers(lime_rpc_headers PRIVATE ${LIME_HEADERS} <grpcpp/grpcpp.h> <nlohmann/json.hpp>)

  find_path(CLI11_INCLUDE_DIR CLI/CLI.hpp REQUIRED)
endif()

# libtorch, for whoever includes it. clang 14 refuses its headers as C++20 unless IValue is complete
# before the lists that hold it.
if(LIME_WITH_TORCH AND NOT LIME_LOGIC_ONLY)
  set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)  # torch's targets name each other, wherever they are linked
  find_package(Torch REQUIRED)
  set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL OFF)
  add_library(lime_torch_api INTERFACE)
  target_link_libraries(lime_torch_api INTERFACE ${TORCH_LIBRARIES})
  target_include_directories(lime_torch_api SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
  target_compile_options(lime_torch_api INTERFACE "$<$<CXX_COMPILER_ID:Clang>:SHELL:-include ATen/core/ivalue.h>")
endif()

# lime_program(name SRCS ... [DEPS ...] [HEADERS target])
function(lime_program name)
  cmake_parse_arguments(ARG "" "HEADERS" "SRCS;DEPS" ${ARGN})
  set(on_demand)
  if(LIME_ON_DEMAND AND NOT name MATCHES "_(test|tests|fuzz)$")
    set(on_demand ${LIME_ON_DEMAND})
  endif()
  add_executable(${name} ${on_demand} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  if(TARGET lime_tsan_abseil)
    target_link_libraries(${name} PRIVATE lime_tsan_abseil)
    if(NOT name STREQUAL "tsan_test")  # which has options of its own
      target_link_libraries(${name} PRIVATE lime_tsan_options)
    endif()
  endif()
  lime_options(${name})
  if(NOT name MATCHES "_fuzz$")
    lime_uncovered(${name})
  endif()
  if(ARG_HEADERS)
    target_compile_options(${name} PRIVATE -fPIC)  # as they were parsed for a library
    target_precompile_headers(${name} REUSE_FROM ${ARG_HEADERS})
    set_target_properties(${name} PROPERTIES PCH_WARN_INVALID OFF)
  endif()
endfunction()

# lime_on_demand(targets...): no test of the gate needs them. They are built if they are asked for by
# name or as the target on_demand, and with LIME_SOAK_TESTS always.
add_custom_target(on_demand)
function(lime_on_demand)
  if(NOT LIME_SOAK_TESTS)
    set_target_properties(${ARGN} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  add_dependencies(on_demand ${ARGN})
endfunction()

# Tests are compiled once and run once: what they call is optimised, they themselves are not, but
# for those that compute for long.
set(LIME_TEST_LEVEL 0)

include(${CMAKE_CURRENT_LIST_DIR}/LimeCtest.cmake)

file(WRITE ${CMAKE_BINARY_DIR}/test_headers.cc "int main() {}\n")

# lime_test_paths(target): where the project and the models and vectors beside it are.
function(lime_test_paths target)
  target_compile_definitions(${target} PRIVATE LIME_SOURCE_DIR="${PROJECT_SOURCE_DIR}" LIME_SHARED_DIR="${PROJECT_SOURCE_DIR}/../shared")
endfunction()

# main of all tests. It knows --files and --update_golden.
lime_library(lime_test_main SRCS ${PROJECT_SOURCE_DIR}/tests/test_main.cc DEPS GTest::gtest)
lime_test_paths(lime_test_main)
lime_uncovered(lime_test_main)

# lime_test_headers(name level [DEPS ...] [HEADERS ...]): what all tests include, and more headers,
# parsed once.
function(lime_test_headers name level)
  cmake_parse_arguments(PARSE_ARGV 2 ARG "" "" "DEPS;HEADERS")
  lime_program(${name} SRCS ${CMAKE_BINARY_DIR}/test_headers.cc DEPS ${ARG_DEPS} GTest::gmock lime_test_main absl::status absl::statusor absl::strings)
  lime_optimize(${name} ${level})
  set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  target_precompile_headers(${name} PRIVATE
    <gmock/gmock.h> <gtest/gtest.h> <nlohmann/json.hpp> <absl/status/statusor.h> <absl/strings/str_cat.h> <filesystem> <random> ${ARG_HEADERS})
endfunction()

# For each level: GCC 12 dies of headers that were parsed for another one.
foreach(level 0 1 2)
  lime_test_headers(lime_test_headers_${level} ${level})
endforeach()

# lime_test_program(name level [SRCS ...] [DEPS ...]): a GoogleTest program. LIME_TEST_HEADERS for a
# folder: whose parsed headers it uses.
function(lime_test_program name level)
  lime_program(${name} ${ARGN} GTest::gmock lime_test_main)
  lime_optimize(${name} ${level})
  set_target_properties(${name} PROPERTIES LIME_LEVEL ${level})
  set(headers lime_test_headers_${level})
  if(LIME_TEST_HEADERS)
    set(headers ${LIME_TEST_HEADERS})
  endif()
  target_precompile_headers(${name} REUSE_FROM ${headers})
  set_target_properties(${name} PROPERTIES PCH_WARN_INVALID OFF)  # a test with other definitions parses them itself
  lime_test_paths(${name})
endfunction()

# lime_test_in(program level SRCS ... [DEPS ...]): sources and libraries more for a GoogleTest
# program, which is made when it is first named. Sets <program>_ONLY to the argument by which it runs
# the tests of these sources alone.
function(lime_test_in program level)
  cmake_parse_arguments(PARSE_ARGV 2 ARG "" "" "SRCS;DEPS")
  if(NOT TARGET ${program})
    lime_test_program(${program} ${level} DEPS)
  endif()
  get_target_property(made ${program} LIME_LEVEL)
  if(NOT made EQUAL level)
    message(FATAL_ERROR "${program} is compiled at level ${made}: tests of level ${level} need another program")
  endif()
  target_sources(${program} PRIVATE ${ARG_SRCS})
  target_link_libraries(${program} PRIVATE ${ARG_DEPS})
  set(files ${ARG_SRCS})
  list(FILTER files INCLUDE REGEX "_test\\.cc$")
  if(NOT files)
    message(FATAL_ERROR "${ARG_SRCS}: no file of tests, whose name ends in _test.cc, for ${program}")
  endif()
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  list(TRANSFORM files PREPEND ${folder}/)
  list(JOIN files "," files)
  set(${program}_ONLY --files=${files} PARENT_SCOPE)
endfunction()

# lime_test(name SRCS ... [DEPS ...] [IN program] [PROGRAMS lime|limed ...] [SHARDS n] [WAITS] [SOAK]
# [LEVEL 0|1|2]): a GoogleTest program and its ctest entry.
# IN: the entry runs its files of a program that it shares with others, which takes less time to
# compile than two programs. Tests are in files whose names end in _test.cc.
# PROGRAMS: it calls them, by the paths LIME_BINARY and LIMED_BINARY.
# SHARDS: it takes long, and is that many entries, each of which runs a part of its tests.
# SOAK, or LIME_TEST_SOAK for a folder: it takes long under a sanitizer, or fuzz targets or quicker
# tests call the same code there; only LIME_SOAK_TESTS has it there.
# LEVEL, or LIME_TEST_LEVEL for a folder: how it is optimised.
function(lime_test name)
  cmake_parse_arguments(ARG "WAITS;SOAK" "IN;LEVEL;SHARDS" "SRCS;DEPS;PROGRAMS" ${ARGN})
  if((ARG_SOAK OR LIME_TEST_SOAK) AND LIME_SANITIZE AND NOT LIME_SOAK_TESTS)
    return()
  endif()
  if(NOT DEFINED ARG_LEVEL)
    set(ARG_LEVEL ${LIME_TEST_LEVEL})
  endif()
  if(ARG_IN)
    lime_test_in(${ARG_IN} ${ARG_LEVEL} SRCS ${ARG_SRCS} DEPS ${ARG_DEPS})
    set(target ${ARG_IN})
  else()
    lime_test_program(${name} ${ARG_LEVEL} SRCS ${ARG_SRCS} DEPS ${ARG_DEPS})
    set(target ${name})
  endif()
  foreach(program ${ARG_PROGRAMS})
    string(TOUPPER ${program} upper)
    target_compile_definitions(${target} PRIVATE ${upper}_BINARY="$<TARGET_FILE:${program}>")
    add_dependencies(${target} ${program})
  endforeach()
  set(waits)
  if(ARG_WAITS)
    set(waits WAITS)
  endif()
  if(NOT ARG_SHARDS)
    lime_ctest(${name} ${waits} COMMAND ${target} ${${target}_ONLY})
    return()
  endif()
  foreach(shard RANGE 1 ${ARG_SHARDS})
    set(part ${name}_${shard}_of_${ARG_SHARDS})
    math(EXPR index "${shard} - 1")
    lime_ctest(${part} ${waits} COMMAND ${target} ${${target}_ONLY})
    set_tests_properties(${part} PROPERTIES ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${index}")
    if(NOT ARG_WAITS)  # those that wait fit in beside others at any time, and would all come at once
      lime_start_early(${part})
    endif()
  endforeach()
endfunction()
