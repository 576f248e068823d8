//! Faults drawn from seeds: a rank is killed, stopped, leaves, calls something else, is late, or aborts. Every other rank must return an error
//! that names it, within a bound, or succeed if the fault is harmless. Survivors then make a smaller communicator, whose calls must be right;
//! where their contexts are lost, a new job must work. To repeat a fault alone, set `SEED`, `RANKS` and the number of faults.
//!
//! - `draw`: a fault of a seed. `rank`: what each rank does. `judge`: whether ranks said what they must.
//! - `job`: starts ranks and runs faults. `wire`: between the test and processes. `mps`: a daemon for a test.
//! - `gpu`: calls on a GPU. `stand_in`: calls without one, by which all of this is tested anywhere.

mod draw;
mod gpu;
mod job;
mod judge;
mod mps;
mod rank;
mod stand_in;
mod wire;

use std::path::Path;

use draw::Place;
use gpu::Gpu;
use job::{Settings, run, run_rank};
use mps::Mps;
use rank::Backend;
use stand_in::StandIn;

/// The first seed.
const SEED: u64 = 0;
/// Faults of each place: 100 on GPUs.
const ON_THREADS: u64 = 40;
const ON_PROCESSES: u64 = 30;
const UNDER_MPS: u64 = 30;
/// Every kind twice.
const WITHOUT_GPU: u64 = 24;
/// Ranks of a new job.
const RANKS: usize = 3;

fn settings(test: &'static str, place: Place) -> Settings {
    Settings { test, place, ranks: RANKS, environment: Vec::new() }
}

/// Runs faults, or a rank of the processes that a test has started.
fn faults<B: Backend + 'static>(settings: &Settings, faults: u64) {
    if !run_rank::<B>(settings) {
        run::<B>(settings, SEED..SEED + faults);
    }
}

#[test]
#[ignore = "needs a GPU: `make gpu-test`"]
fn faults_of_threads() {
    faults::<Gpu>(&settings("gpu_tests::faults::faults_of_threads", Place::Threads), ON_THREADS);
}

#[test]
#[ignore = "needs a GPU: `make gpu-test`"]
fn faults_of_processes() {
    faults::<Gpu>(&settings("gpu_tests::faults::faults_of_processes", Place::Processes), ON_PROCESSES);
}

#[test]
#[ignore = "needs a GPU: `make gpu-test`"]
fn faults_of_processes_under_mps() {
    let mut settings = settings("gpu_tests::faults::faults_of_processes_under_mps", Place::Mps);
    if run_rank::<Gpu>(&settings) {
        return;
    }
    match Mps::start(Path::new(mps::CONTROL)) {
        Ok(mps) => {
            settings.environment.push((mps::PIPES, mps.folder.display().to_string()));
            run::<Gpu>(&settings, SEED..SEED + UNDER_MPS);
        }
        Err(why) => println!("skipped: faults under MPS: {why}"),
    }
}

#[test]
fn faults_of_stand_ins_as_threads() {
    let test = "gpu_tests::faults::faults_of_stand_ins_as_threads";
    faults::<StandIn>(&settings(test, Place::Threads), WITHOUT_GPU);
}

#[test]
fn faults_of_stand_ins_as_processes() {
    let test = "gpu_tests::faults::faults_of_stand_ins_as_processes";
    faults::<StandIn>(&settings(test, Place::Processes), WITHOUT_GPU);
}

#[test]
fn faults_of_stand_ins_that_lose_contexts() {
    let test = "gpu_tests::faults::faults_of_stand_ins_that_lose_contexts";
    faults::<StandIn>(&settings(test, Place::Mps), WITHOUT_GPU);
}
