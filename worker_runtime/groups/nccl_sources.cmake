# SPDX-License-Identifier: Apache-2.0
# The NCCL group compiles everywhere: NCCL is opened at run time and its binary interface is declared in nccl/nccl_abi.h.
# Only its device needs the toolkit.
target_sources(muster_worker PRIVATE
  ../core/shared_library.cc nccl/nccl_api.cc nccl/nccl_comm_thread.cc nccl/nccl_group.cc nccl/nccl_lifecycle.cc nccl/nccl_single_group.cc)
target_link_libraries(muster_worker PRIVATE ${CMAKE_DL_LIBS} Threads::Threads)
if(MUSTER_HAS_CUDA)
  target_sources(muster_worker PRIVATE nccl/nccl_cuda_device.cc)
  find_path(MUSTER_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(MUSTER_NCCL_INCLUDE)
    target_include_directories(muster_worker SYSTEM PRIVATE ${MUSTER_NCCL_INCLUDE})
    target_sources(muster_worker PRIVATE nccl/nccl_abi_check.cc)
  endif()
endif()
