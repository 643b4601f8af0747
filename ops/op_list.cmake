# Writes OUT, one NAME(op) a line and sorted, from the lines of DIR/ops, DIR/optim and DIR/autograd/trace that
# begin with MACRO(op, for TAPIR_OP, which becomes TAPIR_OP_NAME(op), for TAPIR_FORM, TAPIR_PLAIN_FORM, TAPIR_VIEW_FORM, TAPIR_RANDOM_FORM,
# TAPIR_INTO_FORM, TAPIR_IN_PLACE_FORM, TAPIR_PART_FORM, TAPIR_DATA_SIZED_FORM and TAPIR_UPDATE_FORM, which become TAPIR_FORM_NAME(op), and for TAPIR_ONNX, which
# becomes TAPIR_ONNX_NAME(op).
file(GLOB sources ${DIR}/ops/*.cpp ${DIR}/ops/*/*.cpp ${DIR}/optim/*.cpp ${DIR}/autograd/trace/*.cpp ${DIR}/autograd/trace/*/*.cpp)
# WITHOUT: leaves out the files, WITHOUT_NAMES: the ops that match it.
if(WITHOUT)
    list(FILTER sources EXCLUDE REGEX "${WITHOUT}")
endif()
# Those of TAPIR_OP are listed where TAPIR_OP_NAME is defined, and so on.
set(macro "(^|\n)TAPIR_(PLAIN_|VIEW_|RANDOM_|INTO_|IN_PLACE_|PART_|DATA_SIZED_|UPDATE_)?")
set(lines "// Made by ops/op_list.cmake from the TAPIR_OP, TAPIR_FORM and TAPIR_ONNX lines of ops, optim and autograd/trace.\n")
foreach(kind OP FORM ONNX)
    set(names)
    foreach(source ${sources})
        file(READ ${source} text)
        string(REGEX MATCHALL "${macro}${kind}\\([ \t\n]*[A-Za-z_0-9]+" found "${text}")
        foreach(op ${found})
            string(REGEX REPLACE ".*[^A-Za-z_0-9]" "" name "${op}")
            if(WITHOUT_NAMES AND name MATCHES "${WITHOUT_NAMES}")
                continue()
            endif()
            if(DEFINED seen_${kind}_${name})
                message(FATAL_ERROR "TAPIR_${kind}(${name} comes twice: in ${seen_${kind}_${name}} and in ${source}")
            endif()
            set(seen_${kind}_${name} ${source})
            list(APPEND names ${name})
        endforeach()
    endforeach()
    list(SORT names)
    string(APPEND lines "#ifdef TAPIR_${kind}_NAME\n")
    foreach(name ${names})
        string(APPEND lines "TAPIR_${kind}_NAME(${name})\n")
    endforeach()
    string(APPEND lines "#endif\n")
endforeach()
file(CONFIGURE OUTPUT ${OUT} CONTENT "${lines}" @ONLY)  # leaves an unchanged file alone
