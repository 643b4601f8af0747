# Writes OUT, one NAME(op) a line and sorted: TAPIR_OP_NAME(op) for each row, TAPIR_FORM_NAME(op) for each form, and TAPIR_ONNX_NAME(op) for
# each way to write an op as ONNX. They are the variables NAME_op, NAME_form and NAME_onnx of namespace tapir in the compiled objects, which
# OBJECTS lists, one path a line. NM reads them. WITHOUT_NAMES: leaves out the ops that match it.
execute_process(COMMAND ${NM} -P -g --defined-only @${OBJECTS} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
set(lines "// Made by ops/op_list.cmake from the objects that define rows, forms and ONNX forms.\n")
foreach(kind OP FORM ONNX)
    string(TOLOWER ${kind} ending)
    string(REGEX MATCHALL "(^|\n)_ZN5tapir[0-9]+[A-Za-z_][A-Za-z_0-9]*_${ending}E " found "${symbols}")
    list(TRANSFORM found REPLACE "^\n?_ZN5tapir[0-9]+([A-Za-z_0-9]+)_${ending}E $" "\\1" OUTPUT_VARIABLE names)
    if(WITHOUT_NAMES)
        list(FILTER names EXCLUDE REGEX "${WITHOUT_NAMES}")
    endif()
    if(NOT names AND kind STREQUAL "OP")
        message(FATAL_ERROR "${NM} finds no row of an op in the objects of ${OBJECTS}: does it read what the compiler writes?")
    endif()
    list(SORT names)
    string(APPEND lines "#ifdef TAPIR_${kind}_NAME\n")
    foreach(name ${names})
        string(APPEND lines "TAPIR_${kind}_NAME(${name})\n")
    endforeach()
    string(APPEND lines "#endif\n")
endforeach()
file(CONFIGURE OUTPUT ${OUT} CONTENT "${lines}" @ONLY)  # leaves an unchanged file alone
