//! scratch
use std::time::Instant;
use weftlink_comm::*;
fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}
fn main() {
    let symmetric = std::env::args().nth(1).is_none_or(|a| a == "2");
    let ranks = Communicator::threads(2, Options::default()).unwrap();
    let threads: Vec<_> = ranks
        .into_iter()
        .map(|mut comm| {
            std::thread::spawn(move || {
                let rank = comm.rank();
                pin(rank);
                let max = 32 << 20;
                let mut a = comm.window(max).unwrap();
                let mut b = comm.window(max).unwrap();
                a.fill(rank as f32 + 1.0);
                b.fill(0.0);
                let pa = vec![rank as f32 + 1.0; max];
                let mut pb = vec![0.0; max];
                for bytes in [8usize, 64, 512, 4096, 32768, 262144, 2 << 20, 16 << 20, 128 << 20] {
                    let n = bytes / 4;
                    let its = if bytes < 65536 {
                        20000
                    } else if bytes < 1 << 20 {
                        2000
                    } else if bytes < 32 << 20 {
                        50
                    } else {
                        5
                    };
                    let mut best = f64::MAX;
                    for _ in 0..5 {
                        for _ in 0..its / 10 + 2 {
                            if symmetric {
                                comm.all_reduce((a.part(0..n), b.part_mut(0..n))).unwrap()
                            } else {
                                comm.all_reduce((&pa[..n], &mut pb[..n])).unwrap()
                            }
                        }
                        let t = Instant::now();
                        for _ in 0..its {
                            if symmetric {
                                comm.all_reduce((a.part(0..n), b.part_mut(0..n))).unwrap()
                            } else {
                                comm.all_reduce((&pa[..n], &mut pb[..n])).unwrap()
                            }
                        }
                        best = best.min(t.elapsed().as_secs_f64() / its as f64 * 1e6);
                    }
                    if symmetric {
                        assert!(b[..n].iter().all(|x| *x == 3.0));
                    } else {
                        assert!(pb[..n].iter().all(|x| *x == 3.0));
                    }
                    if rank == 0 {
                        println!("{bytes:>10} {best:.2} us");
                    }
                }
            })
        })
        .collect();
    for t in threads {
        t.join().unwrap();
    }
}
