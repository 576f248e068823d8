//! Making communicators

use std::ffi::{c_char, c_int};

use weftlink::bootstrap::{Bootstrap, Environment, Network, Rendezvous, Token};
use weftlink::{Communicator, Error};

use crate::comm::weft_comm;
use crate::error::{guard, weft_status};
use crate::options::{settings, weft_options};
use crate::pointer::{check_not_null, rank as number, text};

/// Joins the job of this process, as its launcher describes it: `weft run`, torchrun, mpirun, srun, or
/// the variables WEFT_RENDEZVOUS, RANK and WORLD_SIZE. `options` may be null.
///
/// # Safety
/// `options` is null or initialised, `comm` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_comm_from_environment(
    options: *const weft_options,
    comm: *mut *mut weft_comm,
) -> weft_status {
    guard(|| {
        check_not_null(comm, "comm")?;
        // SAFETY: the caller's.
        let (knobs, options) = unsafe { settings(options) }?;
        let met = Bootstrap::from_environment(&knobs).map_err(Error::from)?;
        let made = weft_comm::new(Communicator::new(met, options)?)?;
        // SAFETY: as above.
        unsafe { comm.write(Box::into_raw(Box::new(made))) };
        Ok(())
    })
}

/// Joins a group that meets at an address, without a launcher. All ranks pass the same address
/// ("10.0.0.1:29500", where rank 0 listens, or another form of WEFT_RENDEZVOUS), secret (16 bytes or
/// more) and size. `options` may be null.
///
/// # Safety
/// `address` and `secret` are null or texts, `options` is null or initialised, `comm` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_comm_meet(
    address: *const c_char,
    secret: *const c_char,
    rank: c_int,
    size: c_int,
    options: *const weft_options,
    comm: *mut *mut weft_comm,
) -> weft_status {
    guard(|| {
        check_not_null(comm, "comm")?;
        // SAFETY: the caller's.
        let (address, secret) = unsafe { (text(address, "address")?, text(secret, "secret")?) };
        let (rank, size) = (number(rank, "rank")?, number(size, "size")?);
        // SAFETY: as above.
        let (knobs, options) = unsafe { settings(options) }?;
        let wrong = |error: weftlink::bootstrap::EnvironmentError| Error::Misuse(error.to_string());
        let address = Environment::address_of(address, rank, size).map_err(wrong)?;
        let token = Token::new(secret).map_err(Error::from)?;
        let meeting = Rendezvous {
            network: Network::of(&knobs),
            ..Rendezvous::new(address, token, size, options.deadline)
        };
        let met = if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) };
        let made = weft_comm::new(Communicator::new(met.map_err(Error::from)?, options)?)?;
        // SAFETY: as above.
        unsafe { comm.write(Box::into_raw(Box::new(made))) };
        Ok(())
    })
}

/// Makes a group whose ranks are threads of this process. Writes `size` communicators, one for each
/// thread. `options` may be null.
///
/// # Safety
/// `options` is null or initialised, `comms` null or has `size` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_comm_threads(
    size: c_int,
    options: *const weft_options,
    comms: *mut *mut weft_comm,
) -> weft_status {
    guard(|| {
        check_not_null(comms, "comms")?;
        let size = number(size, "size")?;
        // SAFETY: the caller's.
        let (_, options) = unsafe { settings(options) }?;
        let made = Communicator::threads(size, options)?.into_iter().map(weft_comm::new);
        for (at, own) in made.collect::<Result<Vec<_>, _>>()?.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { comms.add(at).write(Box::into_raw(Box::new(own))) };
        }
        Ok(())
    })
}
