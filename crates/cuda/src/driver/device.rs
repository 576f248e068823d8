//! The GPUs of this machine that the process can see.

use std::ffi::{CStr, c_char, c_int};

use cudarc::driver::sys::{CUdevice, CUdevice_P2PAttribute, CUdevice_attribute, CUuuid};

use super::Driver;
use crate::error::Error;
use crate::nvrtc::Architecture;

const DEVICES_MAX: c_int = 1024;
const TEXT_BYTES_MAX: usize = 256;

/// A GPU.
#[derive(Clone, Debug)]
pub struct Device {
    driver: Driver,
    handle: CUdevice,
    /// Its number in this process, which depends on `CUDA_VISIBLE_DEVICES`.
    pub ordinal: usize,
    /// Its name: `NVIDIA H200`.
    pub name: String,
    /// Its architecture.
    pub architecture: Architecture,
    /// Its multiprocessors.
    pub multiprocessors: usize,
    /// Its memory.
    pub memory_bytes: usize,
    /// Its identity, the same in every process (with MIG, that of the slice).
    pub uuid: [u8; 16],
    /// Its PCI address: `0000:3b:00.0`, in lower case as in sysfs.
    pub pci: String,
    /// Threads that can be resident on a multiprocessor.
    pub threads_per_multiprocessor: usize,
    /// Shared memory that a block can have, if it asks for it.
    pub shared_bytes_per_block_max: usize,
    /// Whether kernels can be launched whose blocks are all resident.
    pub has_cooperative_launch: bool,
    /// Whether memory can be allocated apart from addresses (`cuMemCreate`).
    pub has_vmm: bool,
    /// Whether such memory can be shared by file descriptors.
    pub has_posix_handles: bool,
    /// Whether such memory can be shared by fabric handles, between hosts too. The driver also needs the service IMEX.
    pub has_fabric_handles: bool,
    /// Whether it can take part in multicast objects.
    pub has_multicast: bool,
    /// Whether atomic operations on host memory are atomic for the CPU too.
    pub has_host_atomics: bool,
    /// Whether this process uses it through an MPS server; drivers before CUDA 12.1 do not say.
    pub is_shared_by_mps: bool,
}

/// How a GPU reaches another's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLink {
    /// The driver's rank of its speed; lower is faster.
    pub performance_rank: i32,
    /// Whether atomic operations on the other's memory work.
    pub has_atomics: bool,
}

impl Driver {
    /// All GPUs that the process can see.
    pub fn devices(self) -> Result<Vec<Device>, Error> {
        let mut count = 0;
        // SAFETY: the address is of an integer.
        self.check(unsafe { (self.cu().cuDeviceGetCount)(&raw mut count) }, || "count the GPUs".to_owned())?;
        (0..count.min(DEVICES_MAX)).map(|ordinal| self.device(ordinal)).collect()
    }

    /// The number of the GPU that is current on this thread, if one is.
    pub fn current_device(self) -> Option<usize> {
        let mut handle: CUdevice = 0;
        // SAFETY: the address is of a handle.
        let code = unsafe { (self.cu().cuCtxGetDevice)(&raw mut handle) };
        let found = self.devices().ok().filter(|_| code == 0)?;
        found.iter().position(|device| device.handle == handle)
    }

    fn device(self, ordinal: c_int) -> Result<Device, Error> {
        use CUdevice_attribute as Attribute;
        let cu = self.cu();
        let describe = || format!("describe GPU {ordinal}");
        let mut handle: CUdevice = 0;
        // SAFETY: the address is of a handle.
        self.check(unsafe { (cu.cuDeviceGet)(&raw mut handle, ordinal) }, describe)?;
        let number = |attribute: Attribute| -> Result<usize, Error> {
            let mut value: c_int = 0;
            // SAFETY: the address is of an integer, the attribute and the device are valid.
            self.check(unsafe { (cu.cuDeviceGetAttribute)(&raw mut value, attribute, handle) }, describe)?;
            Ok(value.try_into().unwrap_or(0))
        };
        // Attributes that an older driver does not know are absent features.
        let has = |attribute: Attribute| number(attribute).is_ok_and(|value| value != 0);
        let mut memory_bytes = 0;
        // SAFETY: the address is of a `size_t`.
        self.check(unsafe { (cu.cuDeviceTotalMem_v2)(&raw mut memory_bytes, handle) }, describe)?;
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: the address is of a structure of 16 bytes.
        self.check(unsafe { (cu.cuDeviceGetUuid_v2)(&raw mut uuid, handle) }, describe)?;
        let major = number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(Device {
            driver: self,
            handle,
            ordinal: ordinal.try_into().unwrap_or(0),
            name: self.text(cu.cuDeviceGetName, handle, describe)?,
            architecture: Architecture((major * 10 + minor) as u32),
            multiprocessors: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            memory_bytes,
            uuid: uuid.bytes.map(|byte| byte as u8),
            pci: self.text(cu.cuDeviceGetPCIBusId, handle, describe)?.to_ascii_lowercase(),
            threads_per_multiprocessor: number(
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
            )?,
            shared_bytes_per_block_max: number(
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            )?,
            has_cooperative_launch: has(Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH),
            has_vmm: has(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
            has_posix_handles: has(
                Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
            ),
            has_fabric_handles: has(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED),
            has_multicast: has(Attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED),
            has_host_atomics: has(Attribute::CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED),
            is_shared_by_mps: has(Attribute::CU_DEVICE_ATTRIBUTE_MPS_ENABLED),
        })
    }

    fn text(
        self,
        read: unsafe extern "C" fn(*mut c_char, c_int, CUdevice) -> u32,
        device: CUdevice,
        attempt: impl FnOnce() -> String,
    ) -> Result<String, Error> {
        let mut bytes = [0_u8; TEXT_BYTES_MAX];
        // SAFETY: the driver writes at most the length it is given, and ends the text with NUL.
        let code = unsafe { read(bytes.as_mut_ptr().cast(), TEXT_BYTES_MAX as c_int, device) };
        self.check(code, attempt)?;
        let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }
}

impl Device {
    /// The driver.
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// Its number for the driver, which is not the ordinal by contract.
    pub(super) fn handle(&self) -> CUdevice {
        self.handle
    }

    /// The UUID as `nvidia-smi -L` prints it.
    pub fn uuid_text(&self) -> String {
        let hex: String = self.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }

    /// How this GPU can read and write the memory of another; nothing if it cannot.
    pub fn link_to(&self, peer: &Device) -> Result<Option<PeerLink>, Error> {
        let cu = self.driver.cu();
        let describe = || format!("ask whether GPU {} reaches GPU {}", self.ordinal, peer.ordinal);
        let mut is_reached = 0;
        // SAFETY: the address is of an integer.
        let code = unsafe { (cu.cuDeviceCanAccessPeer)(&raw mut is_reached, self.handle, peer.handle) };
        self.driver.check(code, describe)?;
        if is_reached == 0 {
            return Ok(None);
        }
        let number = |attribute: CUdevice_P2PAttribute| -> Result<c_int, Error> {
            let mut value = 0;
            // SAFETY: the address is of an integer, and the attribute is valid.
            let code =
                unsafe { (cu.cuDeviceGetP2PAttribute)(&raw mut value, attribute, self.handle, peer.handle) };
            self.driver.check(code, describe).map(|()| value)
        };
        Ok(Some(PeerLink {
            performance_rank: number(CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)?,
            has_atomics: number(CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)? != 0,
        }))
    }
}
