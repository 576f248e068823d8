//! Multicast objects (NVLS): one address through which the NVLink switch writes to, or reduces from, the memory of several GPUs.
//!
//! Unverified: no machine with NVLink switches has run this file. It follows the documentation of the driver.
//!
//! One rank creates the object and shares it as a descriptor; every rank adds its GPU; when all have, every rank binds memory and maps the
//! object.

use cudarc::driver::sys::{CUmulticastGranularity_flags, CUmulticastObjectProp};

use super::{Allocation, Device, Driver, HandleKind};
use crate::error::Error;

/// A multicast object.
#[derive(Debug)]
pub struct Multicast {
    driver: Driver,
    /// What is mapped: [`Mapping::new`](super::Mapping::new) takes it like memory.
    object: Allocation,
    /// The GPU and the range of what this process has bound.
    bound: Vec<(Device, usize, usize)>,
}

impl Multicast {
    /// An object for this number of GPUs; the length is rounded up to the recommended granularity.
    pub fn create(driver: Driver, devices: u32, bytes: usize, kind: HandleKind) -> Result<Multicast, Error> {
        let functions = driver.multicast()?;
        let attempt = || format!("create a multicast object of {bytes} bytes for {devices} GPUs");
        let mut properties =
            CUmulticastObjectProp { numDevices: devices, size: bytes, handleTypes: kind.bits(), flags: 0 };
        let option = CUmulticastGranularity_flags::CU_MULTICAST_GRANULARITY_RECOMMENDED;
        let mut unit: usize = 0;
        // SAFETY: the address is of a `size_t`, and the properties are complete.
        let code =
            unsafe { (functions.cuMulticastGetGranularity)(&raw mut unit, &raw const properties, option) };
        driver.check(code, attempt)?;
        properties.size = bytes
            .max(1)
            .checked_next_multiple_of(unit.max(1))
            .ok_or_else(|| Error::Misuse { attempt: attempt(), why: "the length is too large".to_owned() })?;
        let mut handle = 0;
        // SAFETY: the address is of a handle, and the properties are complete.
        let code = unsafe { (functions.cuMulticastCreate)(&raw mut handle, &raw const properties) };
        driver.check(code, attempt)?;
        let object = Allocation::from_raw(driver, handle, properties.size);
        Ok(Multicast { driver, object, bound: Vec::new() })
    }

    /// An object that another process has shared, imported as an allocation.
    pub fn imported(driver: Driver, object: Allocation) -> Multicast {
        Multicast { driver, object, bound: Vec::new() }
    }

    /// Adds a GPU. All GPUs must be added before any memory is bound.
    pub fn add(&self, device: &Device) -> Result<(), Error> {
        let functions = self.driver.multicast()?;
        // SAFETY: object and device are valid.
        let code = unsafe { (functions.cuMulticastAddDevice)(self.object.raw(), device.handle()) };
        self.driver.check(code, || format!("add GPU {} to a multicast object", device.ordinal))
    }

    /// Puts all of an allocation on `device` behind the object, from `offset` on.
    pub fn bind(&mut self, device: &Device, allocation: &Allocation, offset: usize) -> Result<(), Error> {
        let functions = self.driver.multicast()?;
        let bytes = allocation.bytes();
        // SAFETY: object and allocation are valid; the driver checks the range. The flags must be 0.
        let code = unsafe {
            (functions.cuMulticastBindMem)(self.object.raw(), offset, allocation.raw(), 0, bytes, 0)
        };
        self.driver
            .check(code, || format!("bind {bytes} bytes of GPU {} to a multicast object", device.ordinal))?;
        self.bound.push((device.clone(), offset, bytes));
        Ok(())
    }

    /// The object, to be exported and mapped.
    pub fn object(&self) -> &Allocation {
        &self.object
    }
}

impl Drop for Multicast {
    fn drop(&mut self) {
        let Ok(functions) = self.driver.multicast() else { return };
        for (device, offset, bytes) in &self.bound {
            // SAFETY: the range was bound by `bind`.
            let code =
                unsafe { (functions.cuMulticastUnbind)(self.object.raw(), device.handle(), *offset, *bytes) };
            self.driver.released(code, || format!("unbind memory of GPU {}", device.ordinal));
        }
    }
}
