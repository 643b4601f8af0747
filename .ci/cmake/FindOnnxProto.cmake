# ONNX's protobuf messages, as Debian's libonnx-dev and libprotobuf-dev have them: OnnxProto::onnx_proto.
find_path(OnnxProto_INCLUDE_DIR onnx/onnx_pb.h)
find_library(OnnxProto_LIBRARY onnx_proto)
find_library(OnnxProto_PROTOBUF_LIBRARY protobuf)
mark_as_advanced(OnnxProto_INCLUDE_DIR OnnxProto_LIBRARY OnnxProto_PROTOBUF_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OnnxProto REQUIRED_VARS OnnxProto_LIBRARY OnnxProto_PROTOBUF_LIBRARY OnnxProto_INCLUDE_DIR)
if(OnnxProto_FOUND AND NOT TARGET OnnxProto::onnx_proto)
    add_library(OnnxProto::onnx_proto INTERFACE IMPORTED)
    target_include_directories(OnnxProto::onnx_proto INTERFACE ${OnnxProto_INCLUDE_DIR})
    target_compile_definitions(OnnxProto::onnx_proto INTERFACE ONNX_ML=1 ONNX_NAMESPACE=onnx)
    target_link_libraries(OnnxProto::onnx_proto INTERFACE ${OnnxProto_LIBRARY} ${OnnxProto_PROTOBUF_LIBRARY})
endif()
