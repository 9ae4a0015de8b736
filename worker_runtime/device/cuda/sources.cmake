# SPDX-License-Identifier: Apache-2.0
# The CUDA side of muster_worker. The .cu files are an object library of their own, so that muster_worker's language
# stays C++ and the programs that link it are linked by the C++ compiler. cudart is linked statically; cuBLASLt, cuDNN
# and NCCL are opened while the program runs.
set(MUSTER_CUDA_DIR ${PROJECT_SOURCE_DIR}/worker_runtime/device/cuda)
# CMake 3.25 does not know the C++20 flag of this nvcc.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
add_library(muster_cuda_kernels OBJECT ${MUSTER_CUDA_DIR}/counter.cu)
target_include_directories(muster_cuda_kernels PRIVATE ${PROJECT_SOURCE_DIR}
  $<TARGET_PROPERTY:muster_worker,INTERFACE_INCLUDE_DIRECTORIES>
  $<TARGET_PROPERTY:muster_rendezvous,INTERFACE_INCLUDE_DIRECTORIES>)
target_compile_options(muster_cuda_kernels PRIVATE
  -Xcompiler=-Wall,-Wextra $<$<BOOL:${MUSTER_WERROR}>:-Werror=all-warnings>)

target_sources(muster_worker PRIVATE
  $<TARGET_OBJECTS:muster_cuda_kernels>
  ${MUSTER_CUDA_DIR}/cuda_blas.cc ${MUSTER_CUDA_DIR}/cuda_device.cc ${MUSTER_CUDA_DIR}/cuda_error.cc)
target_link_libraries(muster_worker PRIVATE CUDA::cudart_static)

find_path(MUSTER_CUDNN_INCLUDE cudnn_graph.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
if(MUSTER_CUDNN_INCLUDE)
  target_include_directories(muster_worker SYSTEM PRIVATE ${MUSTER_CUDNN_INCLUDE})
  target_compile_definitions(muster_worker PRIVATE MUSTER_HAS_CUDNN=1)
  target_sources(muster_worker PRIVATE ${MUSTER_CUDA_DIR}/cuda_dnn.cc)
else()
  message(STATUS "muster: no cudnn_graph.h beside the toolkit; convolutions use muster's own kernels only")
endif()
