# Entries of ctest, and the count of skipped tests that ctest prints after them.

option(LIME_SOAK_TESTS "Let tests take half an hour; under a sanitizer, also build and run those that take minutes there" OFF)

# lime_ctest(name [WAITS] COMMAND ...): an entry of ctest that may take two minutes, or half an hour
# where LIME_SOAK_TESTS is on.
# WAITS: it mostly waits for other processes and for time to pass. A test uses four slots of ctest,
# or one if it waits. scripts/test gives ctest four slots for each core, and four more without a
# sanitizer.
function(lime_ctest name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "WAITS" "" "COMMAND")  # keeps semicolons within an argument
  add_test(NAME ${name} COMMAND ${ARG_COMMAND})
  set(slots 4)
  if(ARG_WAITS)
    set(slots 1)
  endif()
  set(timeout 120)
  if(LIME_SOAK_TESTS)
    set(timeout 1800)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout} PROCESSORS ${slots}
    FIXTURES_REQUIRED skipped_tests ENVIRONMENT_MODIFICATION "LIME_SKIPPED_TESTS=set:${CMAKE_BINARY_DIR}/skipped_tests.txt")
endfunction()

# lime_start_early(tests...): those that take longest, so that the last minute of a parallel run has
# more than one left.
function(lime_start_early)
  set_tests_properties(${ARGN} PROPERTIES COST 100)
endfunction()

# lime_count_skipped(): two entries more. Before all others, the notes of the last run are deleted;
# after them, the notes are counted.
function(lime_count_skipped)
  foreach(step forget count)
    add_test(NAME ${step}_skipped_tests COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../tests/skips.py ${step} ${CMAKE_BINARY_DIR}/skipped_tests.txt)
  endforeach()
  set_tests_properties(forget_skipped_tests PROPERTIES FIXTURES_SETUP skipped_tests)
  set_tests_properties(count_skipped_tests PROPERTIES FIXTURES_CLEANUP skipped_tests)
endfunction()
