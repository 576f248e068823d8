//! Memory apart from addresses (virtual memory management): an [`Allocation`] is memory without an address, a [`Mapping`] is addresses with
//! one or more allocations behind them, and a [`Reservation`] is addresses with allocations behind some of them.
//!
//! A rank creates an allocation, exports it as a file descriptor or a fabric handle, and maps it; a peer imports and maps it at addresses of
//! its own. Memory stays as long as any process has it mapped or holds its handle. Mapping and unmapping do not wait for kernels.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use cudarc::driver::sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType, CUmemFabricHandle,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};

use super::{Context, Device, DeviceAddress, DeviceBuffer, Driver};
use crate::error::Error;

/// How an allocation can be shared with other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleKind {
    /// Not at all.
    None,
    /// By a file descriptor, with processes of this host.
    PosixDescriptor,
    /// By a fabric handle, with processes of all hosts of the NVLink domain.
    Fabric,
}

impl HandleKind {
    fn raw(self) -> CUmemAllocationHandleType {
        match self {
            HandleKind::None => CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            HandleKind::PosixDescriptor => {
                CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
            }
            HandleKind::Fabric => CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC,
        }
    }

    pub(super) fn bits(self) -> u64 {
        u64::from(self.raw().0)
    }
}

/// What sizes and offsets of allocations must be multiples of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granularity {
    /// What the driver accepts.
    pub minimum: usize,
    /// What is fastest.
    pub recommended: usize,
}

impl Device {
    /// Whether kernels of this GPU may read and write the mapped allocation at an address. Not for memory of `cuMemAlloc`, which peer access
    /// covers, nor for memory of pools.
    pub fn has_access(&self, address: DeviceAddress) -> bool {
        let (mut flags, place) = (0, location(self));
        // SAFETY: the addresses are of an integer and of a location. Any address may be asked about.
        let code = unsafe { (self.driver().cu().cuMemGetAccess)(&raw mut flags, &raw const place, address) };
        code == 0 && flags == CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as u64
    }
}

/// Memory of a GPU without an address. Dropping it gives up the handle; what is mapped stays.
#[derive(Debug)]
pub struct Allocation {
    driver: Driver,
    handle: CUmemGenericAllocationHandle,
    bytes: usize,
}

/// What an allocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationInfo {
    /// The GPU whose memory it is, by its number in this process; nothing if it is host memory.
    pub device: Option<usize>,
    /// Whether it can be exported as a file descriptor.
    pub has_descriptor: bool,
    /// Whether it can be exported as a fabric handle.
    pub has_fabric_handle: bool,
}

fn properties(device: &Device, kind: HandleKind) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: kind.raw(),
        location: location(device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn location(device: &Device) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device.handle() }
}

impl Device {
    /// The granularity of allocations on this GPU.
    pub fn granularity(&self, kind: HandleKind) -> Result<Granularity, Error> {
        let properties = properties(self, kind);
        let number = |option: CUmemAllocationGranularity_flags| {
            let mut bytes = 0;
            let cu = self.driver().cu();
            // SAFETY: the address is of a `size_t`, and the properties are complete.
            let code =
                unsafe { (cu.cuMemGetAllocationGranularity)(&raw mut bytes, &raw const properties, option) };
            let attempt = || format!("read the granularity of memory of GPU {}", self.ordinal);
            self.driver().check(code, attempt).map(|()| bytes)
        };
        Ok(Granularity {
            minimum: number(CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM)?,
            recommended: number(CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)?,
        })
    }
}

impl Allocation {
    /// Allocates memory of a GPU; the length is rounded up to the minimum granularity.
    pub fn create(device: &Device, bytes: usize, kind: HandleKind) -> Result<Allocation, Error> {
        let driver = device.driver();
        let attempt =
            || format!("allocate {bytes} bytes of memory that can be mapped on GPU {}", device.ordinal);
        let unit = device.granularity(kind)?.minimum.max(1);
        let bytes = bytes
            .max(1)
            .checked_next_multiple_of(unit)
            .ok_or_else(|| Error::Misuse { attempt: attempt(), why: "the length is too large".to_owned() })?;
        let properties = properties(device, kind);
        let mut handle = 0;
        // SAFETY: the address is of a handle, and the properties are complete; the flags must be 0.
        let code = unsafe { (driver.cu().cuMemCreate)(&raw mut handle, bytes, &raw const properties, 0) };
        driver.check(code, attempt)?;
        Ok(Allocation { driver, handle, bytes })
    }

    /// The allocation behind a mapped address, such as one of PyTorch's expandable segments, with its length (that of the mapped part).
    pub fn retain(context: &Context, address: DeviceAddress) -> Result<Allocation, Error> {
        let driver = context.driver();
        let mut handle = 0;
        let place = std::ptr::without_provenance_mut::<c_void>(address as usize);
        // SAFETY: the address is of a handle. Any address may be asked about.
        let code = unsafe { (driver.cu().cuMemRetainAllocationHandle)(&raw mut handle, place) };
        driver.check(code, || format!("find the allocation mapped at address {address:#x}"))?;
        // From here on, an error releases the handle.
        let mut allocation = Allocation { driver, handle, bytes: 0 };
        allocation.bytes = context.allocation_of(address)?.1;
        Ok(allocation)
    }

    /// Imports what [`Allocation::export_descriptor`] exported. The descriptor can be closed afterwards. The length is the exporter's
    /// [`Allocation::bytes`]; mapping fails if it is longer.
    pub fn import_descriptor(
        driver: Driver,
        descriptor: BorrowedFd<'_>,
        bytes: usize,
    ) -> Result<Allocation, Error> {
        let kind = HandleKind::PosixDescriptor;
        // The descriptor itself travels in the pointer.
        let value = std::ptr::without_provenance_mut::<c_void>(descriptor.as_raw_fd() as usize);
        let mut handle = 0;
        // SAFETY: the address is of a handle, and the descriptor is open.
        let code =
            unsafe { (driver.cu().cuMemImportFromShareableHandle)(&raw mut handle, value, kind.raw()) };
        driver.check(code, || "import memory of another process by its descriptor".to_owned())?;
        Ok(Allocation { driver, handle, bytes })
    }

    /// Imports what [`Allocation::export_fabric`] exported. Not run on hardware yet.
    pub fn import_fabric(driver: Driver, exported: &[u8; 64], bytes: usize) -> Result<Allocation, Error> {
        let mut fabric = CUmemFabricHandle { data: *exported };
        let mut handle = 0;
        // SAFETY: the addresses are of a handle and of a structure of 64 bytes, which the driver checks.
        let code = unsafe {
            (driver.cu().cuMemImportFromShareableHandle)(
                &raw mut handle,
                (&raw mut fabric).cast(),
                HandleKind::Fabric.raw(),
            )
        };
        driver.check(code, || "import memory of another process by its fabric handle".to_owned())?;
        Ok(Allocation { driver, handle, bytes })
    }

    /// A descriptor for another process of this host. It is closed on exec.
    pub fn export_descriptor(&self) -> Result<OwnedFd, Error> {
        let mut descriptor: RawFd = -1;
        // SAFETY: with this kind, the driver writes an integer.
        unsafe { self.export((&raw mut descriptor).cast(), HandleKind::PosixDescriptor) }?;
        let attempt = || "export memory as a descriptor".to_owned();
        if descriptor < 0 {
            return Err(Error::Misuse {
                attempt: attempt(),
                why: "the driver returned no descriptor".to_owned(),
            });
        }
        // SAFETY: the driver has opened it for us.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC)
            .map_err(|error| Error::Misuse { attempt: attempt(), why: error.to_string() })?;
        Ok(descriptor)
    }

    /// A handle for processes of the NVLink domain. Not run on hardware yet.
    pub fn export_fabric(&self) -> Result<[u8; 64], Error> {
        let mut exported = CUmemFabricHandle { data: [0; 64] };
        // SAFETY: with this kind, the driver writes a structure of 64 bytes.
        unsafe { self.export((&raw mut exported).cast(), HandleKind::Fabric) }?;
        Ok(exported.data)
    }

    /// # Safety
    /// The target has room for a handle of this kind.
    unsafe fn export(&self, target: *mut c_void, kind: HandleKind) -> Result<(), Error> {
        // SAFETY: the handle is valid, the target the caller's; the flags must be 0.
        let code =
            unsafe { (self.driver.cu().cuMemExportToShareableHandle)(target, self.handle, kind.raw(), 0) };
        self.driver.check(code, || match kind {
            HandleKind::Fabric => {
                "export memory as a fabric handle (IMEX must run, and the memory be made for it)".to_owned()
            }
            _ => "export memory as a descriptor (it must be made for it)".to_owned(),
        })
    }

    /// What it is.
    pub fn info(&self) -> Result<AllocationInfo, Error> {
        let mut properties = MaybeUninit::<CUmemAllocationProp>::zeroed();
        let place = properties.as_mut_ptr();
        // SAFETY: the address is of the structure, and the handle is valid.
        let code = unsafe { (self.driver.cu().cuMemGetAllocationPropertiesFromHandle)(place, self.handle) };
        self.driver.check(code, || "describe an allocation".to_owned())?;
        // SAFETY: all fields were zero and are integers where they are read; enums are read as such, since later drivers know more values.
        let (kind, id, handles) = unsafe {
            let location = &raw const (*place).location;
            let kind = (&raw const (*location).type_).cast::<u32>().read();
            let handles = (&raw const (*place).requestedHandleTypes).cast::<u32>().read();
            (kind, (*location).id, handles)
        };
        let is_device = kind == CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as u32;
        let has = |wanted: HandleKind| u64::from(handles) & wanted.bits() != 0;
        Ok(AllocationInfo {
            device: usize::try_from(id).ok().filter(|_| is_device),
            has_descriptor: has(HandleKind::PosixDescriptor),
            has_fabric_handle: has(HandleKind::Fabric),
        })
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn raw(&self) -> CUmemGenericAllocationHandle {
        self.handle
    }

    pub(super) fn from_raw(driver: Driver, handle: CUmemGenericAllocationHandle, bytes: usize) -> Allocation {
        Allocation { driver, handle, bytes }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: the value owns this reference to the handle.
        let code = unsafe { (self.driver.cu().cuMemRelease)(self.handle) };
        self.driver.released(code, || "release an allocation".to_owned());
    }
}

/// Reserved addresses, with allocations behind parts of them. Dropping it unmaps them, at once: no kernel may use them any more.
#[derive(Debug)]
pub struct Reservation {
    context: Context,
    address: DeviceAddress,
    bytes: usize,
    /// Length of each part that is mapped, by offset.
    parts: BTreeMap<usize, usize>,
}

impl Reservation {
    /// Reserves addresses without memory.
    pub fn new(context: &Context, bytes: usize) -> Result<Reservation, Error> {
        let _entered = context.enter()?;
        let mut address = 0;
        // SAFETY: the address is of an integer; no address or alignment is asked for, and the flags must be 0.
        let code = unsafe { (context.driver().cu().cuMemAddressReserve)(&raw mut address, bytes, 0, 0, 0) };
        context.check(code, || format!("reserve {bytes} bytes of addresses"))?;
        Ok(Reservation { context: context.clone(), address, bytes, parts: BTreeMap::new() })
    }

    /// The first address.
    pub fn address(&self) -> DeviceAddress {
        self.address
    }

    /// Maps an allocation at an offset, where nothing is mapped. GPUs get access by [`Reservation::allow`].
    pub fn map(&mut self, offset: usize, allocation: &Allocation) -> Result<(), Error> {
        let bytes = allocation.bytes;
        let attempt = || format!("map {bytes} bytes of memory at offset {offset}");
        let end = offset.checked_add(bytes).filter(|end| *end <= self.bytes);
        let before = self.parts.range(..end.unwrap_or(0)).next_back();
        if end.is_none() || before.is_some_and(|(other, other_bytes)| other + other_bytes > offset) {
            let why = format!("{} bytes are reserved, and parts may not overlap", self.bytes);
            return Err(Error::Misuse { attempt: attempt(), why });
        }
        let _entered = self.context.enter()?;
        let place = self.address + offset as u64;
        // SAFETY: the addresses are reserved and not mapped; the driver checks length and granularity. Offset and flags must be 0.
        let code = unsafe { (self.context.driver().cu().cuMemMap)(place, bytes, 0, allocation.handle, 0) };
        self.context.check(code, attempt)?;
        self.parts.insert(offset, bytes);
        Ok(())
    }

    /// Unmaps the part at an offset. No kernel may use it any more.
    pub fn unmap(&mut self, offset: usize) {
        let Some(bytes) = self.parts.remove(&offset) else { return };
        let cu = self.context.driver().cu();
        // SAFETY: the part was mapped by `map`, with this length.
        let unmap = || unsafe { (cu.cuMemUnmap)(self.address + offset as u64, bytes) };
        self.context.release(unmap, || format!("unmap {bytes} bytes of memory"));
    }

    /// Lets GPUs, that of the context included, read and write a range that is mapped.
    pub fn allow(&self, offset: usize, bytes: usize, readers: &[&Device]) -> Result<(), Error> {
        let _entered = self.context.enter()?;
        let mut devices = vec![self.context.device()];
        devices.extend(readers.iter().filter(|device| device.handle() != self.context.device().handle()));
        let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access: Vec<CUmemAccessDesc> =
            devices.iter().map(|device| CUmemAccessDesc { location: location(device), flags }).collect();
        let (cu, place) = (self.context.driver().cu(), self.address + offset as u64);
        // SAFETY: the driver refuses ranges that are not mapped, and the array has this many elements.
        let code = unsafe { (cu.cuMemSetAccess)(place, bytes, access.as_ptr(), access.len()) };
        self.context.check(code, || {
            let names: Vec<String> = devices.iter().map(|device| device.ordinal.to_string()).collect();
            format!("give GPUs {} access to memory", names.join(", "))
        })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        while let Some((&offset, _)) = self.parts.first_key_value() {
            self.unmap(offset);
        }
        let cu = self.context.driver().cu();
        // SAFETY: the range was reserved by `new`, and nothing in it is mapped any more.
        let free = || unsafe { (cu.cuMemAddressFree)(self.address, self.bytes) };
        self.context.release(free, || format!("free {} bytes of addresses", self.bytes));
    }
}

/// Addresses with allocations behind all of them, side by side.
#[derive(Debug)]
pub struct Mapping {
    range: Reservation,
}

impl Mapping {
    /// Maps allocations one after another. The GPUs of `readers` and that of the context can read and write them.
    pub fn new(
        context: &Context,
        allocations: &[&Allocation],
        readers: &[&Device],
    ) -> Result<Mapping, Error> {
        let bytes = allocations.iter().map(|allocation| allocation.bytes).sum();
        let mut range = Reservation::new(context, bytes)?;
        let mut offset = 0;
        for allocation in allocations {
            range.map(offset, allocation)?;
            offset += allocation.bytes;
        }
        let mapping = Mapping { range };
        mapping.allow(readers)?;
        Ok(mapping)
    }

    /// Lets GPUs, that of the context included, read and write all that is mapped.
    pub fn allow(&self, readers: &[&Device]) -> Result<(), Error> {
        self.range.allow(0, self.range.bytes, readers)
    }
}

impl DeviceBuffer for Mapping {
    fn context(&self) -> &Context {
        &self.range.context
    }

    fn address(&self) -> DeviceAddress {
        self.range.address
    }

    fn bytes(&self) -> usize {
        self.range.bytes
    }
}
