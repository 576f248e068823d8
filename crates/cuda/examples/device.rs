//! Checks the loading layer on a machine with a GPU, and times it:
//!
//!     cargo run -p weftlink-cuda --example device
//!
//! It lists the GPUs, finds NVRTC, compiles a kernel, caches it, launches it in each way on each kind of memory, shares memory by a
//! descriptor within the process, and compares every result. It ends with an error if one is wrong.

#![allow(unsafe_code, reason = "launches a kernel")]

use std::error::Error as AnyError;
use std::ffi::c_void;
use std::os::fd::AsFd;
use std::time::Instant;

use weftlink_cuda::cache::{self, Cache, Origin};
use weftlink_cuda::driver::{
    Allocation, Capture, Context, Device, DeviceAddress, DeviceBuffer, DeviceMemory, Driver, Event, Function,
    HandleKind, IpcHandle, Launch, Mapping, MemoryKind, Module, Parameters, PinnedMemory, Registration,
    RelaxedCapture, Stream,
};
use weftlink_cuda::nvrtc::{Nvrtc, Program};

type Outcome<T> = Result<T, Box<dyn AnyError>>;

const SOURCE: &str = r#"
extern "C" __global__ void add(unsigned int *data, unsigned int count, unsigned int amount) {
    for (unsigned int at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += gridDim.x * blockDim.x) {
        data[at] += amount;
    }
}
"#;
/// Not a multiple of anything, so that the last block is partly idle.
const COUNT: usize = 1_000_003;
const BYTES: usize = COUNT * 4;
const LAUNCHES: u32 = 1000;

fn main() {
    if let Err(error) = run() {
        eprintln!("device: {error}");
        std::process::exit(1);
    }
}

fn run() -> Outcome<()> {
    let driver = timed("load the driver", Driver::load)?;
    let version = driver.version()?;
    println!("driver supports CUDA {}.{}", version / 1000, version % 1000 / 10);
    let devices = driver.devices()?;
    for device in &devices {
        print_device(device);
        for peer in devices.iter().filter(|peer| peer.ordinal != device.ordinal) {
            println!("  to GPU {}: {:?}", peer.ordinal, device.link_to(peer)?);
        }
    }
    let device = devices.first().ok_or("there is no GPU")?;
    let context = timed("retain the primary context", || Context::primary(device))?;
    let function = kernel(&context, version)?;
    let stream = timed("create a stream", || Stream::new(&context))?;
    ensure(stream.capture()? == Capture::None, "the stream is not captured")?;
    launches(&context, &function, &stream)?;
    pinned(&context, &function, &stream)?;
    shared(&context, &function, &stream)?;
    errors(&context, &function, &stream)?;
    println!("all results are correct");
    Ok(())
}

fn print_device(device: &Device) {
    println!(
        "GPU {}: {}, {}, {} multiprocessors, {:.1} GiB, {}, {}",
        device.ordinal,
        device.name,
        device.architecture,
        device.multiprocessors,
        device.memory_bytes as f64 / f64::from(1 << 30),
        device.pci,
        device.uuid_text()
    );
    println!(
        "  {} threads a multiprocessor, {} bytes of shared memory a block; cooperative launch {}, VMM {}, descriptors {}, fabric handles {}, \
         multicast {}, host atomics {}",
        device.threads_per_multiprocessor,
        device.shared_bytes_per_block_max,
        device.has_cooperative_launch,
        device.has_vmm,
        device.has_posix_handles,
        device.has_fabric_handles,
        device.has_multicast,
        device.has_host_atomics
    );
}

/// Compiles the kernel three times: into an empty cache, from it, and through the user's cache.
fn kernel(context: &Context, driver_version: u32) -> Outcome<Function> {
    let architecture = context.device().architecture;
    let nvrtc = timed("find and load NVRTC", || Nvrtc::find(architecture, Some(driver_version)))?;
    println!("NVRTC {} at {}", nvrtc.version(), nvrtc.path().display());
    let target = nvrtc.target_for(architecture).ok_or("NVRTC does not know the GPU")?;
    let program = Program { name: "add.cu", source: SOURCE, options: &[], architecture: target };
    let folder = std::env::temp_dir().join(format!("weft-device-{}", std::process::id()));
    let cache = Cache::at(&folder)?;
    let (cold, origin) = timed("compile, cold", || cache.cubin(&nvrtc, &program))?;
    ensure(origin == Origin::Compiler, "the first cubin is compiled")?;
    let (warm, origin) = timed("compile, warm", || cache.cubin(&nvrtc, &program))?;
    ensure(origin == Origin::Cache && warm == cold, "the second cubin is the first one")?;
    std::fs::remove_dir_all(&folder)?;
    let (_, origin) = timed("compile, through the user's cache", || cache::cubin(&nvrtc, &program))?;
    println!("the user's cache: {origin:?}");
    let module = timed("load the module", || Module::load(context, &warm))?;
    let function = timed("find the kernel", || module.function("add"))?;
    println!(
        "{:?}, {} blocks of 512 threads a multiprocessor",
        function.attributes()?,
        function.blocks_per_multiprocessor(512, 0)?
    );
    Ok(function)
}

/// Each way to launch, on memory from `cuMemAlloc`; the time of a launch.
fn launches(context: &Context, function: &Function, stream: &Stream) -> Outcome<()> {
    let (free, total) = context.memory_info()?;
    println!("{free} of {total} bytes are free");
    let memory = timed("allocate", || DeviceMemory::new(context, BYTES))?;
    memory.write(stream, 0, &bytes_of(&numbers()))?;
    let blocks = context.device().multiprocessors as u32;
    let plain = Launch { blocks, threads: 512, shared_bytes: 0, is_cooperative: false };
    let together = Launch { is_cooperative: true, ..plain };
    let buffer = parameters(memory.address(), 1);
    let (address, count, amount) = (memory.address(), COUNT as u32, 1_u32);
    let pointers: [*const c_void; 3] =
        [(&raw const address).cast(), (&raw const count).cast(), (&raw const amount).cast()];
    let ways = [
        ("plain, buffer", plain, Parameters::Buffer(&buffer)),
        ("plain, pointers", plain, Parameters::Pointers(&pointers)),
        ("cooperative, buffer", together, Parameters::Buffer(&buffer)),
        ("cooperative, pointers", together, Parameters::Pointers(&pointers)),
    ];
    for (added, (what, launch, parameters)) in (1..).zip(ways) {
        let first = || -> Outcome<()> {
            // SAFETY: the arguments are those of the kernel, and the memory lives until the stream is synchronised.
            unsafe { function.launch(stream, launch, parameters) }?;
            Ok(stream.synchronize()?)
        };
        timed(&format!("launch and wait: {what}"), first)?;
        compare(&memory, stream, added)?;
    }
    let empty = Launch { blocks: 1, threads: 32, shared_bytes: 0, is_cooperative: false };
    let nothing = parameters(memory.address(), 0);
    let (start, end) = (Event::with_timing(context)?, Event::with_timing(context)?);
    for (what, launch) in [("plain", empty), ("cooperative", Launch { is_cooperative: true, ..empty })] {
        start.record(stream)?;
        let began = Instant::now();
        for _ in 0..LAUNCHES {
            // SAFETY: as above.
            unsafe { function.launch(stream, launch, Parameters::Buffer(&nothing)) }?;
        }
        let host = began.elapsed() / LAUNCHES;
        end.record(stream)?;
        end.synchronize()?;
        ensure(end.is_done()? && stream.is_idle()?, "the stream is idle")?;
        println!(
            "{what} launches in a row: {host:.2?} each on the host, {:.2?} on the GPU",
            end.elapsed_since(&start)? / LAUNCHES
        );
    }
    let other = Stream::with_high_priority(context)?;
    let ready = Event::new(context)?;
    memory.fill(stream, 0, BYTES, 0)?;
    ready.record(stream)?;
    other.wait_for(&ready)?;
    // SAFETY: as above.
    unsafe { function.launch(&other, plain, Parameters::Buffer(&parameters(memory.address(), 5))) }?;
    let mut result = vec![0; BYTES];
    memory.read(&other, 0, &mut result)?;
    ensure(words_of(&result).all(|word| word == 5), "a stream waits for another")?;
    // SAFETY: both halves lie in the memory, and it lives until the stream is synchronised.
    unsafe { other.fill_words(memory.address(), 9, 100) }?;
    // SAFETY: as above.
    unsafe { other.copy(memory.address() + 400, memory.address(), 400) }?;
    memory.read(&other, 0, &mut result)?;
    ensure(words_of(&result).take(200).all(|word| word == 9), "words are set and copied")?;
    let found = context.driver().pointer(memory.address() + 8)?.ok_or("the driver knows its own memory")?;
    println!("{found:?}");
    ensure(found.kind == MemoryKind::Device && found.start == memory.address(), "the pointer is looked up")?;
    ensure(found.has_legacy_ipc && found.bytes >= BYTES, "its allocation is known")?;
    ensure(context.allocation_of(memory.address() + 8)?.0 == memory.address(), "its range is known")?;
    timed("get an IPC handle", || IpcHandle::of(context, memory.address()))?;
    let began = Instant::now();
    for _ in 0..LAUNCHES {
        context.driver().pointer(memory.address())?;
    }
    println!("a lookup of an address takes {:.2?}", began.elapsed() / LAUNCHES);
    let _relaxed = RelaxedCapture::begin(context.driver())?;
    Ok(())
}

/// Host memory that the driver allocates, and host memory of the process.
fn pinned(context: &Context, function: &Function, stream: &Stream) -> Outcome<()> {
    let launch = Launch { blocks: 64, threads: 512, shared_bytes: 0, is_cooperative: false };
    let memory = timed("allocate pinned memory", || PinnedMemory::new(context, BYTES))?;
    ensure(memory.bytes() == BYTES, "pinned memory has its length")?;
    // SAFETY: the memory has this length, and no kernel uses it yet.
    unsafe { std::slice::from_raw_parts_mut(memory.host(), BYTES) }.copy_from_slice(&bytes_of(&numbers()));
    // SAFETY: the arguments are those of the kernel, and the memory lives until the stream is synchronised.
    unsafe { function.launch(stream, launch, Parameters::Buffer(&parameters(memory.device(), 3))) }?;
    stream.synchronize()?;
    // SAFETY: the kernel has ended.
    let result = unsafe { std::slice::from_raw_parts(memory.host(), BYTES) };
    ensure(words_of(result).eq(numbers().into_iter().map(|number| number + 3)), "pinned memory")?;

    let mut own = bytes_of(&numbers());
    // SAFETY: the vector outlives the registration and is not resized.
    let registration =
        timed("register host memory", || unsafe { Registration::new(context, own.as_mut_ptr(), BYTES) })?;
    ensure(registration.bytes() == BYTES, "the registration has its length")?;
    // SAFETY: as above.
    unsafe { function.launch(stream, launch, Parameters::Buffer(&parameters(registration.device(), 4))) }?;
    stream.synchronize()?;
    drop(registration);
    ensure(words_of(&own).eq(numbers().into_iter().map(|number| number + 4)), "registered memory")?;
    ensure(context.driver().pointer(own.as_ptr().addr() as u64)?.is_none(), "it is not registered any more")
}

/// Memory that is exported and imported: two mappings of the same two allocations, side by side.
fn shared(context: &Context, function: &Function, stream: &Stream) -> Outcome<()> {
    let device = context.device();
    if !device.has_vmm || !device.has_posix_handles {
        println!("this GPU shares no memory by descriptors: skipped");
        return Ok(());
    }
    let kind = HandleKind::PosixDescriptor;
    let granularity = device.granularity(kind)?;
    println!("{granularity:?}");
    let create = || Allocation::create(device, granularity.minimum * 2 - 5, kind);
    let allocations = [timed("create an allocation", create)?, create()?];
    ensure(allocations[0].bytes() == granularity.minimum * 2, "the length is rounded up")?;
    let ours = timed("map two allocations", || {
        Mapping::new(context, &[&allocations[0], &allocations[1]], &[device])
    })?;
    let mut imported = Vec::new();
    for allocation in &allocations {
        let descriptor = timed("export a descriptor", || allocation.export_descriptor())?;
        let import =
            || Allocation::import_descriptor(context.driver(), descriptor.as_fd(), allocation.bytes());
        imported.push(timed("import it", import)?);
    }
    println!("{:?}", imported[0].info()?);
    ensure(
        imported[0].info()?.device == Some(device.ordinal) && imported[0].info()?.has_descriptor,
        "it is described",
    )?;
    let theirs =
        timed("map the imported ones", || Mapping::new(context, &[&imported[0], &imported[1]], &[]))?;
    ensure(ours.bytes() == theirs.bytes() && ours.address() != theirs.address(), "they are two mappings")?;
    ensure(ours.bytes() >= BYTES, "both allocations are used")?;
    // The handles are not needed any more.
    drop((allocations, imported));
    ours.write(stream, 0, &bytes_of(&numbers()))?;
    let launch = Launch { blocks: 64, threads: 512, shared_bytes: 0, is_cooperative: true };
    // SAFETY: the arguments are those of the kernel, and the mapping lives until the stream is synchronised.
    unsafe { function.launch(stream, launch, Parameters::Buffer(&parameters(theirs.address(), 6))) }?;
    stream.synchronize()?;
    compare(&ours, stream, 6)?;
    let (here, there) =
        (context.driver().pointer(ours.address())?, context.driver().pointer(theirs.address())?);
    let (here, there) = (here.ok_or("ours is known")?, there.ok_or("theirs is known")?);
    ensure(here.buffer_id != there.buffer_id && !here.has_legacy_ipc, "mappings have ids of their own")?;
    ensure(IpcHandle::of(context, ours.address()).is_err(), "there is no IPC handle of mapped memory")?;
    let retained = timed("retain by address", || Allocation::retain(context, theirs.address()))?;
    println!("{} bytes behind the first address", retained.bytes());
    let again = Mapping::new(context, &[&retained], &[])?;
    drop(theirs);
    let mut first = [0; 4];
    again.read(stream, 0, &mut first)?;
    ensure(u32::from_le_bytes(first) == numbers()[0] + 6, "memory found by its address")?;
    timed("unmap", || -> Outcome<()> {
        drop((ours, again));
        Ok(())
    })
}

/// Errors are errors.
fn errors(context: &Context, function: &Function, stream: &Stream) -> Outcome<()> {
    let memory = DeviceMemory::new(context, 4096)?;
    expected("a copy past the end", memory.write(stream, 4000, &[0; 100]))?;
    expected("an allocation of 2^60 bytes", DeviceMemory::new(context, 1 << 60))?;
    let blocks = 1 << 20;
    let large = Launch { blocks, threads: 512, shared_bytes: 0, is_cooperative: true };
    // SAFETY: the arguments are those of the kernel, with a count of which none is outside.
    let refused = unsafe {
        function.launch(stream, large, Parameters::Buffer(&parameters_for(memory.address(), 0, 0)))
    };
    expected("a cooperative launch that does not fit", refused)?;
    // SAFETY: the driver compares the length of the buffer with that of the parameters and launches nothing, or the count is 0.
    let short =
        unsafe { function.launch(stream, Launch { blocks: 1, ..large }, Parameters::Buffer(&[0; 32])) };
    println!("a buffer that is too long: {short:?}");
    Ok(stream.synchronize()?)
}

fn expected<T, E: std::fmt::Display>(what: &str, result: Result<T, E>) -> Outcome<()> {
    match result {
        Ok(_) => Err(format!("wrong: {what} succeeded").into()),
        Err(error) => {
            println!("expected error, {what}: {error}");
            Ok(())
        }
    }
}

/// The kernel's parameters as C lays them out.
fn parameters(address: DeviceAddress, amount: u32) -> [u8; 16] {
    parameters_for(address, COUNT as u32, amount)
}

fn parameters_for(address: DeviceAddress, count: u32, amount: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&count.to_le_bytes());
    bytes[12..].copy_from_slice(&amount.to_le_bytes());
    bytes
}

fn numbers() -> Vec<u32> {
    (0..COUNT as u32).map(|at| at.wrapping_mul(2_654_435_761) >> 8).collect()
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words_of(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

fn compare(memory: &impl DeviceBuffer, stream: &Stream, added: u32) -> Outcome<()> {
    let mut result = vec![0; BYTES];
    memory.read(stream, 0, &mut result)?;
    let wrong = words_of(&result).zip(numbers()).filter(|(got, number)| *got != number + added).count();
    ensure(wrong == 0, &format!("{wrong} of {COUNT} elements are wrong"))
}

fn ensure(is_true: bool, what: &str) -> Outcome<()> {
    if is_true { Ok(()) } else { Err(format!("wrong: {what}").into()) }
}

fn timed<T, E>(what: &str, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let start = Instant::now();
    let result = work();
    println!("{what}: {:.2?}", start.elapsed());
    result
}
