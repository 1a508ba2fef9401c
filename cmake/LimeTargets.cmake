# How every target of the project is built: C++20, warnings as errors in our own code, sanitizers where asked.

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

if(LIME_SANITIZE)
  add_compile_options(-fsanitize=${LIME_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${LIME_SANITIZE})
  add_compile_definitions(LIME_SANITIZED)
endif()

find_package(absl REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Threads REQUIRED)
find_package(GTest REQUIRED)

# Tells ThreadSanitizer what an Abseil built without it does; linked into every program.
if(LIME_SANITIZE STREQUAL "thread")
  add_library(lime_tsan_abseil OBJECT ${PROJECT_SOURCE_DIR}/cmake/tsan_abseil.cc)
  target_link_libraries(lime_tsan_abseil PUBLIC absl::status absl::synchronization ${CMAKE_DL_LIBS})
  target_compile_definitions(lime_tsan_abseil PRIVATE LIME_TSAN_SUPPRESSIONS="${PROJECT_SOURCE_DIR}/cmake/tsan_suppressions.txt")
endif()

# lime_options(target): what holds for our own code and not for the headers it includes.
function(lime_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Werror -Wno-missing-field-initializers -ffp-contract=off)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
endfunction()

# lime_library(name SRCS ... [DEPS ...]): a static library of one folder.
function(lime_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SRCS})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
  lime_options(${name})
endfunction()

# lime_program(name SRCS ... [DEPS ...])
function(lime_program name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  if(TARGET lime_tsan_abseil)
    target_link_libraries(${name} PRIVATE lime_tsan_abseil)
  endif()
  lime_options(${name})
endfunction()

# lime_test(name SRCS ... [DEPS ...] [TIMEOUT seconds]): one GoogleTest program, one ctest entry.
# LIME_SOURCE_DIR and LIME_SHARED_DIR tell a test where the project and the models and vectors beside it are.
function(lime_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SRCS;DEPS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  lime_program(${name} SRCS ${ARG_SRCS} DEPS ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE
    LIME_SOURCE_DIR="${PROJECT_SOURCE_DIR}" LIME_SHARED_DIR="${PROJECT_SOURCE_DIR}/../shared")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
endfunction()
