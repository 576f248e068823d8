//! A custom all-reduce: every rank sends to rank 0, which sums and sends the result back. The plan is verified, then run.
//!
//! `cargo run --release -p weftlink --example 03-own-plan`

use weftlink::plan::plan::{Input, Output, Place, Protocol, Step};
use weftlink::plan::{Collective, Plan, verify};
use weftlink::{Reduction, Request};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mine, keep) = (|| Input::Local(Place::input(0)), || Output::Local(Place::output(0)));
    let star =
        Plan::outline("star", Collective::AllReduce, 4, 1).channel(Protocol::Simple, 2).steps(|rank| {
            if rank == 0 {
                let parts = [mine()].into_iter().chain((1..4).map(Input::received)).collect();
                return vec![Step::reduce(parts).to(keep()).to_all((1..4).map(Output::sent))];
            }
            vec![Step::copy(mine()).to(Output::sent(0)), Step::copy(Input::received(0)).to(keep())]
        });

    let mut broken = star.clone();
    broken.programs[0].lanes[0].nodes.pop();
    println!("{}", verify(broken).expect_err("rank 0 has no step in this plan"));

    let star = verify(star)?;
    let sums = weftlink::on_threads(4, |mut comm| {
        let plan = comm.load(star.clone())?;
        let mut values = [comm.rank() as f32; 1000];
        comm.run(Request::new(&Collective::AllReduce, &mut values).with(Reduction::Sum).by(plan))?;
        Ok(values[999])
    })?;
    println!("verified; every rank holds 0 + 1 + 2 + 3 = {sums:?}");
    Ok(())
}
