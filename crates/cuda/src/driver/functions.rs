//! The functions of libcuda.so.1 that Weft calls, loaded at run time.
//!
//! Types and signatures are cudarc's: each declaration below is compared with cudarc's binding when the crate is compiled. The functions are
//! loaded here, because cudarc's wrappers panic where the library or a function is missing, prefer the toolkit's stub `libcuda.so`, and
//! turn error numbers that a later driver may add into values of an enum that has no such value.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{self, *};
use libloading::os::unix;

/// A function's number of its result; 0 is success.
pub(super) type Code = u32;

macro_rules! functions {
    ($(#[$meta:meta])* $table:ident { $($name:ident($($type:ty),*);)* }) => {
        $(#[$meta])*
        #[allow(non_snake_case, reason = "the names of C")]
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($type),*) -> Code,)*
        }

        impl $table {
            /// All functions, or the first that the library lacks.
            #[allow(non_snake_case, reason = "the names of C")]
            pub(super) fn of(library: &unix::Library) -> Result<$table, &'static str> {
                $(
                    // SAFETY: the type is the function's; see `compared` and the comment at tables without it.
                    let $name = unsafe { library.get::<unsafe extern "C" fn($($type),*) -> Code>(stringify!($name)) };
                    let $name = *$name.map_err(|_| stringify!($name))?;
                )*
                Ok($table { $($name,)* })
            }
        }
    };
    (compared $(#[$meta:meta])* $table:ident { $($name:ident($($type:ty),*);)* }) => {
        $(const _: unsafe fn($($type),*) -> CUresult = sys::$name;)*
        functions! { $(#[$meta])* $table { $($name($($type),*);)* } }
    };
}

functions! { compared
    /// What every supported driver has.
    Functions {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut CUdevice, c_int);
        cuDeviceGetName(*mut c_char, c_int, CUdevice);
        cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
        cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
        cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice);
        cuDeviceTotalMem_v2(*mut usize, CUdevice);
        cuDeviceCanAccessPeer(*mut c_int, CUdevice, CUdevice);
        cuDeviceGetP2PAttribute(*mut c_int, CUdevice_P2PAttribute, CUdevice, CUdevice);
        cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        cuDevicePrimaryCtxRelease_v2(CUdevice);
        cuCtxGetCurrent(*mut CUcontext);
        cuCtxGetDevice(*mut CUdevice);
        cuCtxSetCurrent(CUcontext);
        cuCtxPushCurrent_v2(CUcontext);
        cuCtxPopCurrent_v2(*mut CUcontext);
        cuCtxSynchronize();
        cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
        cuCtxEnablePeerAccess(CUcontext, c_uint);
        cuStreamCreateWithPriority(*mut CUstream, c_uint, c_int);
        cuStreamDestroy_v2(CUstream);
        cuStreamSynchronize(CUstream);
        cuStreamQuery(CUstream);
        cuStreamWaitEvent(CUstream, CUevent, c_uint);
        cuStreamIsCapturing(CUstream, *mut CUstreamCaptureStatus);
        cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
        cuStreamEndCapture(CUstream, *mut CUgraph);
        cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong);
        cuGraphDestroy(CUgraph);
        cuGraphExecDestroy(CUgraphExec);
        cuGraphLaunch(CUgraphExec, CUstream);
        cuThreadExchangeStreamCaptureMode(*mut CUstreamCaptureMode);
        cuEventCreate(*mut CUevent, c_uint);
        cuEventDestroy_v2(CUevent);
        cuEventRecord(CUevent, CUstream);
        cuEventQuery(CUevent);
        cuEventSynchronize(CUevent);
        cuModuleLoadData(*mut CUmodule, *const c_void);
        cuModuleUnload(CUmodule);
        cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
        cuFuncGetAttribute(*mut c_int, CUfunction_attribute, CUfunction);
        cuFuncSetAttribute(CUfunction, CUfunction_attribute, c_int);
        cuOccupancyMaxActiveBlocksPerMultiprocessor(*mut c_int, CUfunction, c_int, usize);
        cuLaunchKernel(CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void);
        cuLaunchKernelEx(*const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void);
        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuMemAlloc_v2(*mut CUdeviceptr, usize);
        cuMemFree_v2(CUdeviceptr);
        cuMemcpyAsync(CUdeviceptr, CUdeviceptr, usize, CUstream);
        cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
        cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
        cuMemsetD8Async(CUdeviceptr, c_uchar, usize, CUstream);
        cuMemsetD32Async(CUdeviceptr, c_uint, usize, CUstream);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemFreeHost(*mut c_void);
        cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        cuMemHostUnregister(*mut c_void);
        cuMemHostGetDevicePointer_v2(*mut CUdeviceptr, *mut c_void, c_uint);
        cuMemGetAllocationGranularity(*mut usize, *const CUmemAllocationProp, CUmemAllocationGranularity_flags);
        cuMemCreate(*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong);
        cuMemRelease(CUmemGenericAllocationHandle);
        cuMemExportToShareableHandle(*mut c_void, CUmemGenericAllocationHandle, CUmemAllocationHandleType, c_ulonglong);
        cuMemImportFromShareableHandle(*mut CUmemGenericAllocationHandle, *mut c_void, CUmemAllocationHandleType);
        cuMemRetainAllocationHandle(*mut CUmemGenericAllocationHandle, *mut c_void);
        cuMemGetAllocationPropertiesFromHandle(*mut CUmemAllocationProp, CUmemGenericAllocationHandle);
        cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
        cuMemAddressFree(CUdeviceptr, usize);
        cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
        cuMemUnmap(CUdeviceptr, usize);
        cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
        cuMemGetAccess(*mut c_ulonglong, *const CUmemLocation, CUdeviceptr);
        cuMemGetAddressRange_v2(*mut CUdeviceptr, *mut usize, CUdeviceptr);
        cuPointerGetAttributes(c_uint, *mut CUpointer_attribute, *mut *mut c_void, CUdeviceptr);
        cuIpcGetMemHandle(*mut CUipcMemHandle, CUdeviceptr);
        cuIpcOpenMemHandle_v2(*mut CUdeviceptr, CUipcMemHandle, c_uint);
        cuIpcCloseMemHandle(CUdeviceptr);
    }
}

functions! { compared
    /// Multicast objects (NVLS), from CUDA 12.1 on.
    MulticastFunctions {
        cuMulticastCreate(*mut CUmemGenericAllocationHandle, *const CUmulticastObjectProp);
        cuMulticastAddDevice(CUmemGenericAllocationHandle, CUdevice);
        cuMulticastBindMem(CUmemGenericAllocationHandle, usize, CUmemGenericAllocationHandle, usize, usize, c_ulonglong);
        cuMulticastUnbind(CUmemGenericAllocationHandle, CUdevice, usize, usize);
        cuMulticastGetGranularity(*mut usize, *const CUmulticastObjectProp, CUmulticastGranularity_flags);
    }
}

// Names of errors take the number of an error that cudarc may not know. The unversioned function of elapsed times is in every driver;
// cudarc's is in those from CUDA 12.8 on. The signatures are those of cuda.h.
functions! {
    /// What cudarc declares otherwise.
    OtherFunctions {
        cuGetErrorName(Code, *mut *const c_char);
        cuGetErrorString(Code, *mut *const c_char);
        cuEventElapsedTime(*mut f32, CUevent, CUevent);
    }
}

// cudarc's is the third version, in drivers from CUDA 12.3 on; the second is in all from 11.3 on. The signature is that of cuda.h.
functions! {
    /// Which graph a stream is captured into.
    CaptureFunctions {
        cuStreamGetCaptureInfo_v2(CUstream, *mut CUstreamCaptureStatus, *mut cuuint64_t, *mut CUgraph, *mut *const CUgraphNode, *mut usize);
    }
}
