/* What the tests need of NCCL's interface, written for them: names, numbers and layouts as a program of NCCL 2.30 has them. */
#pragma once
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef void* ncclComm_t;
typedef void* ncclWindow_t;
typedef void* cudaStream_t;
typedef struct { char internal[128]; } ncclUniqueId;

typedef enum {
    ncclSuccess, ncclUnhandledCudaError, ncclSystemError, ncclInternalError, ncclInvalidArgument, ncclInvalidUsage, ncclRemoteError,
    ncclInProgress, ncclTimeout, ncclNumResults
} ncclResult_t;
typedef enum { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg, ncclNumOps } ncclRedOp_t;
typedef enum {
    ncclInt8, ncclUint8, ncclInt32, ncclUint32, ncclInt64, ncclUint64, ncclFloat16, ncclFloat32, ncclFloat64, ncclBfloat16, ncclFloat8e4m3,
    ncclFloat8e5m2, ncclNumTypes
} ncclDataType_t;
typedef enum { ncclScalarDevice, ncclScalarHostImmediate } ncclScalarResidence_t;

typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char* netName;
    int splitShare, trafficClass;
    const char* commName;
    int collnetEnable, CTAPolicy, shrinkShare, nvlsCTAs, nChannelsPerNetPeer, nvlinkCentricSched, graphUsageMode, numRmaCtx, maxP2pPeers,
        graphStreamOrdering;
} ncclConfig_t;
#define UNSET INT_MIN
#define NCCL_CONFIG_INITIALIZER {sizeof(ncclConfig_t), 0xcafebeef, 23007, UNSET, UNSET, UNSET, UNSET, NULL, UNSET, UNSET, NULL, UNSET, UNSET, UNSET, \
    UNSET, UNSET, UNSET, UNSET, UNSET, UNSET, UNSET}

typedef struct { size_t size; unsigned magic, version; float estimatedTime; } ncclSimInfo_t;
typedef struct { int nRanks, rank, stride; } ncclTeam_t;
typedef struct { int opCnt, peer, sigIdx, ctx; } ncclWaitSignalDesc_t;
typedef enum { ncclStatGpuMemSuspend, ncclStatGpuMemSuspended, ncclStatGpuMemPersist, ncclStatGpuMemTotal } ncclCommMemStat_t;
typedef struct {
    size_t size;
    unsigned magic, version;
    int rank, nRanks, cudaDev, nvmlDev;
    bool deviceApiSupport, multimemSupport;
    int ginType, nLsaTeams;
    bool hostRmaSupport;
    int railedGinType;
} ncclCommProperties_t;

#define F(name, ...) ncclResult_t name(__VA_ARGS__);
F(ncclGetVersion, int*)
F(ncclGetUniqueId, ncclUniqueId*)
F(ncclCommInitRank, ncclComm_t*, int, ncclUniqueId, int)
F(ncclCommInitRankConfig, ncclComm_t*, int, ncclUniqueId, int, ncclConfig_t*)
F(ncclCommInitRankScalable, ncclComm_t*, int, int, int, ncclUniqueId*, ncclConfig_t*)
F(ncclCommInitAll, ncclComm_t*, int, const int*)
F(ncclCommFinalize, ncclComm_t)
F(ncclCommDestroy, ncclComm_t)
F(ncclCommAbort, ncclComm_t)
F(ncclCommRevoke, ncclComm_t, int)
F(ncclCommSplit, ncclComm_t, int, int, ncclComm_t*, ncclConfig_t*)
F(ncclCommShrink, ncclComm_t, int*, int, ncclComm_t*, ncclConfig_t*, int)
F(ncclCommGetUniqueId, ncclComm_t, ncclUniqueId*)
F(ncclCommGrow, ncclComm_t, int, const ncclUniqueId*, int, ncclComm_t*, ncclConfig_t*)
F(ncclCommGetAsyncError, ncclComm_t, ncclResult_t*)
F(ncclCommCount, ncclComm_t, int*)
F(ncclCommUserRank, ncclComm_t, int*)
F(ncclCommCuDevice, ncclComm_t, int*)
F(ncclCommRegister, ncclComm_t, void*, size_t, void**)
F(ncclCommDeregister, ncclComm_t, void*)
F(ncclCommWindowRegister, ncclComm_t, void*, size_t, ncclWindow_t*, int)
F(ncclCommWindowDeregister, ncclComm_t, ncclWindow_t)
F(ncclWinGetUserPtr, ncclComm_t, ncclWindow_t, void**)
F(ncclMemAlloc, void**, size_t)
F(ncclMemFree, void*)
F(ncclRedOpCreatePreMulSum, ncclRedOp_t*, void*, ncclDataType_t, ncclScalarResidence_t, ncclComm_t)
F(ncclRedOpDestroy, ncclRedOp_t, ncclComm_t)
F(ncclAllReduce, const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t)
F(ncclReduce, const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t)
F(ncclBroadcast, const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)
F(ncclBcast, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)
F(ncclReduceScatter, const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t)
F(ncclAllGather, const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t)
F(ncclAlltoAll, const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t)
F(ncclGather, const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)
F(ncclScatter, const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)
F(ncclSend, const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)
F(ncclRecv, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)
F(ncclPutSignal, const void*, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int, unsigned, ncclComm_t, cudaStream_t)
F(ncclSignal, int, int, int, unsigned, ncclComm_t, cudaStream_t)
F(ncclWaitSignal, int, ncclWaitSignalDesc_t*, ncclComm_t, cudaStream_t)
F(ncclCommMemStats, ncclComm_t, ncclCommMemStat_t, uint64_t*)
F(ncclCommSuspend, ncclComm_t, int)
F(ncclGroupStart, void)
F(ncclGroupEnd, void)
F(ncclGroupSimulateEnd, ncclSimInfo_t*)
F(ncclCommQueryProperties, ncclComm_t, ncclCommProperties_t*)
F(ncclDevCommCreate, ncclComm_t, const void*, void*)
F(ncclParamGetParameter, const char*, const char**, int*)
F(ncclParamGetAllParameterKeys, const char***, int*)
const char* ncclGetErrorString(ncclResult_t);
const char* ncclGetLastError(ncclComm_t);
ncclTeam_t ncclTeamWorld(ncclComm_t);
int ncclTeamRankToWorld(ncclComm_t, ncclTeam_t, int);
F(pncclAllReduce, const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t)
#undef F
#ifdef __cplusplus
}
#endif
