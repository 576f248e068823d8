//! Checks that the two ends of every FIFO match, for mismatches that a file can have but a plan cannot express.

use std::collections::BTreeMap;

use super::error::{At, MscclError};
use super::program::{Block, Kind, Program};

/// An end of a FIFO: a tb, and its steps in order, each with its number of chunks.
struct End {
    tb: u32,
    steps: Vec<(At, u32)>,
}

/// By source, target and channel.
type Ends = BTreeMap<(u32, u32, u32), End>;

/// Refuses a FIFO with two tbs at an end, with no tb at the other, or with messages that differ between its ends.
pub(super) fn check(program: &Program) -> Result<(), MscclError> {
    let (mut sent, mut received) = (Ends::new(), Ends::new());
    for (gpu, content) in (0..).zip(&program.gpus) {
        for (tb, block) in (0..).zip(&content.blocks) {
            let at = At { gpu: Some(gpu), tb: Some(tb), step: None };
            for peer in [block.send, block.receive].into_iter().flatten() {
                if peer as usize >= program.gpus.len() {
                    let count = program.gpus.len();
                    return Err(at.error(format!("its peer is gpu {peer}, but there are {count} gpus")));
                }
            }
            if let Some(peer) = block.send {
                let earlier = sent.insert((gpu, peer, block.channel), end(at, block, Kind::sends));
                sole(at, "send", peer, block, earlier)?;
            }
            if let Some(peer) = block.receive {
                let earlier = received.insert((peer, gpu, block.channel), end(at, block, Kind::receives));
                sole(at, "recv", peer, block, earlier)?;
            }
        }
    }
    for (key, taken) in &received {
        agree(*key, &taken.steps, &sent, &received)?;
    }
    for ((_, target, channel), end) in sent.iter().filter(|(key, _)| !received.contains_key(*key)) {
        if let Some((at, _)) = end.steps.first() {
            let reason =
                format!("it sends to gpu {target} on channel {channel}, which has no tb that receives it");
            return Err(at.error(reason));
        }
    }
    Ok(())
}

fn end(at: At, block: &Block, moves: fn(Kind) -> bool) -> End {
    let steps = (0..).zip(&block.steps).filter(|(_, step)| moves(step.kind) && step.count > 0);
    let steps = steps.map(|(index, step)| (At { step: Some(index), ..at }, step.count)).collect();
    End { tb: at.tb.unwrap_or_default(), steps }
}

/// Refuses a second tb at the same end.
fn sole(at: At, which: &str, peer: u32, block: &Block, earlier: Option<End>) -> Result<(), MscclError> {
    let Some(End { tb, .. }) = earlier else { return Ok(()) };
    let channel = block.channel;
    Err(at.error(format!(
        "tb {tb} also has {which} {peer} on channel {channel}, so their messages would mix; give one of them another channel"
    )))
}

/// Refuses messages that differ between the two ends.
fn agree(key: (u32, u32, u32), taken: &[(At, u32)], sent: &Ends, received: &Ends) -> Result<(), MscclError> {
    let (source, target, channel) = key;
    let given = sent.get(&key).map_or(&[][..], |end| &end.steps);
    for ((from, sends), (at, receives)) in given.iter().zip(taken) {
        if sends != receives {
            return Err(at.error(format!(
                "it receives {receives} chunks of {from}, which sends {sends}; a message has the same cnt at both ends"
            )));
        }
    }
    if let Some((at, _)) = taken.get(given.len()) {
        // If one end names the wrong peer, suggest the tb that may be meant.
        let astray = sent.iter().filter(|(key, end)| !received.contains_key(*key) && !end.steps.is_empty());
        let mut astray =
            astray.filter(|((from, to, on), _)| *on == channel && (*from == source || *to == target));
        let hint = astray.next().map_or(String::new(), |((_, to, _), end)| {
            format!("; {} sends to gpu {to}, which does not receive it", end.steps[0].0)
        });
        let count = given.len();
        return Err(at.error(format!(
            "it receives from gpu {source} on channel {channel}, where {count} messages are sent to it{hint}"
        )));
    }
    if let Some((at, _)) = given.get(taken.len()) {
        let count = taken.len();
        return Err(at.error(format!(
            "it sends to gpu {target} on channel {channel}, which receives {count} messages from gpu {source} there"
        )));
    }
    Ok(())
}
