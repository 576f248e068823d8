//! Every rank announces its buffers to each peer with the addresses that this peer uses, as ranks in different processes need it.
//!
//! Here a rank's buffers are other memory for each peer, with other values, so an access with another peer's address shows in the results.

use weftlink_plan::{Algorithm, Aliasing, Collective, DataType, Reduction, Shape, verify};

use super::{Build, Library, TIMEOUT_NS, arenas_in, parameters};
use crate::program::{Compiler, Program, Sequences, Spread};
use crate::records;
use crate::source::Specialisation;

const RANKS: usize = 3;
const COUNT: usize = 300;
const SPREAD: Spread = Spread { slices: 2, threads: 4, chunk_bytes: 256 };
const CANARY: f32 = -1.0;

/// The value of an element of an owner's input, as a reader sees it.
fn value(owner: usize, reader: usize, at: usize) -> f32 {
    (owner * 1000 + reader * 100_000 + at) as f32
}

#[test]
fn each_peer_uses_the_addresses_meant_for_it() {
    for is_fixed in [false, true] {
        let plan = Algorithm::TwoShot.flat(&Collective::AllReduce, RANKS as u32, 1).unwrap();
        let plan = verify(plan).unwrap();
        let compilers: Vec<_> =
            (0..plan.ranks).map(|rank| Compiler::new(plan.clone(), rank, SPREAD.slices)).collect();
        let memory: Vec<Vec<u128>> = compilers
            .iter()
            .map(|compiler| vec![0; (compiler.arena.bytes + compiler.arena.private_bytes) as usize / 16])
            .collect();
        let shape = Shape { aliasing: Aliasing::OutOfPlace, element_bytes: 4, count: COUNT, uneven: None };
        let programs: Vec<_> = std::iter::zip(&compilers, arenas_in(&compilers, &memory))
            .map(|(compiler, arenas)| compiler.compile(&shape, SPREAD, &arenas).unwrap())
            .collect();
        let library = |program: &Program| {
            let sequences = if is_fixed { program.sequences.clone() } else { Sequences::none() };
            let (data_type, reduction) = (DataType::F32, Reduction::Sum);
            let is_in_shared = program.is_in_shared;
            let kernel = Specialisation { data_type, reduction, sequences, is_in_shared, is_one_gpu: false };
            Library::new(&kernel, Build::Plain)
        };
        let libraries: Vec<_> = programs.iter().map(library).collect();
        // By owner, then by reader.
        let inputs: Vec<Vec<Vec<f32>>> = (0..RANKS)
            .map(|owner| {
                let of = |reader| (0..COUNT).map(|at| value(owner, reader, at)).collect();
                (0..RANKS).map(of).collect()
            })
            .collect();
        let mut outputs = vec![vec![vec![CANARY; COUNT]; RANKS]; RANKS];
        let presence = [0_u32; RANKS];
        let mut reports = vec![records::Report::default(); 64 * RANKS];
        let mut calls = Vec::new();
        for (owner, program) in programs.iter().enumerate() {
            let views: Vec<records::View> = (0..RANKS)
                .map(|reader| records::View {
                    input: inputs[owner][reader].as_ptr().addr() as u64,
                    output: outputs[owner][reader].as_mut_ptr().addr() as u64,
                })
                .collect();
            let header = records::CallHeader {
                signature: 1,
                input: views[owner].input,
                output: views[owner].output,
                presence: presence.as_ptr().addr() as u64,
                reports: (&raw mut reports[64 * owner]).addr() as u64,
                timeout_ns: TIMEOUT_NS,
                ..program.header
            };
            let mut call = bytemuck::bytes_of(&header).to_vec();
            views.iter().for_each(|view| call.extend(bytemuck::bytes_of(view)));
            call.extend(&program.bytes);
            calls.push(parameters(call));
        }
        let launches: Vec<_> = std::iter::zip(&libraries, std::iter::zip(&calls, &programs))
            .map(|(library, (call, program))| library.launch(call, program, SPREAD.threads))
            .collect();
        // SAFETY: the calls have all that the kernels read, and every address in them is valid until the end of this function.
        unsafe { libraries[0].run(&launches, 7) };
        assert!(reports.iter().all(|report| report.kind == 0));
        for (owner, outputs) in outputs.iter().enumerate() {
            (0..COUNT).for_each(|at| {
                let written: Vec<usize> =
                    (0..RANKS).filter(|reader| outputs[*reader][at] != CANARY).collect();
                assert_eq!(written.len(), 1, "rank {owner}, element {at}: written by {written:?}");
                let sum: f32 = (0..RANKS).map(|source| value(source, written[0], at)).sum();
                assert_eq!(outputs[written[0]][at], sum, "rank {owner}, element {at}");
            });
            // Every rank reduces a part.
            assert!(outputs.iter().all(|output| output.iter().any(|value| *value != CANARY)), "rank {owner}");
        }
    }
}
