// A stand-in for NCCL, between threads of one process and on the emulator's streams. As with the real one, a call returns when its work is on
// the stream, where it waits for the other ranks' calls. What the real one would not notice, or not in every case, is an error here: memory that is not the
// communicator's device's, and ranks that call different things. Names are those of NCCL 2.28.
#pragma once

#include "cuda_runtime.h"

struct EmulatedComm;
using ncclComm_t = EmulatedComm*;
struct ncclUniqueId {
    char internal[128];
};
enum ncclResult_t { ncclSuccess = 0, ncclInvalidArgument = 4, ncclInvalidUsage = 5, ncclRemoteError = 6, ncclInProgress = 7 };
enum ncclRedOp_t { ncclSum, ncclProd, ncclMax, ncclMin };
enum ncclDataType_t {
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclInt64 = 4,
    ncclFloat16 = 6,
    ncclFloat32 = 7,
    ncclFloat64 = 8,
    ncclBfloat16 = 9,
};

ncclResult_t ncclGetVersion(int* version);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t comm);

ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream);
ncclResult_t ncclSend(const void* in, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void* out, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();

namespace emulator {

// For tests.
/// Collectives that devices have computed.
int collectives_run();
/// ncclGetVersion() says that there is none.
void hide_nccl(bool is_hidden);
/// The next call of a rank of this device returns this error; of -1: the next ncclGetUniqueId().
void fail_next_collective(int device, ncclResult_t error);
/// The communicators of a device have lost another rank, as ncclCommGetAsyncError() tells, and do nothing any more.
void lose_peers(int device);

}  // namespace emulator
