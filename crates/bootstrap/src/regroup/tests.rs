#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::monitor::tests::{AMPLE, monitor, until};

#[test]
fn a_refused_probe_beside_an_open_connection_is_reported_late() {
    let (zero, one) = (monitor(), monitor());
    let contacts = [&zero, &one].map(|monitor| monitor.contact(Vec::new()));
    let link = Introduction::Link { group: 1, from: 1 };
    let channel = one.dial(&contacts[0], &link, Deadline::new(AMPLE)).unwrap();
    let children = until(|| Some(zero.children(1, |_| true)).filter(|links| !links.is_empty()));
    let old = Group::new(1, 0, None, children);
    old.set_members(contacts.map(|contact| Member { contact, host: 0 }).into(), tree::Shape::Binomial);
    zero.watch(&old);
    // As if the process of rank 1 had ended and a child that it forked kept its connection.
    drop(one);
    let lineage = Lineage::new(&old);
    let mut driver = Driver::new(&old, &zero, &lineage, AMPLE).unwrap();
    driver.add_probe(1, None);
    let began = Instant::now();
    driver.probe();
    let refused = Input::Probed(1, Probe::Refused);
    until(|| {
        driver.collect();
        let probed = driver.inputs.drain(..).find(|input| matches!(input, Input::Probed(..)))?;
        assert_eq!(probed, refused);
        Some(())
    });
    assert!(began.elapsed() >= PROBE, "its last messages had less than {PROBE:?} to arrive");
    // Once they have been read, there is nothing to wait for.
    drop(channel);
    until(|| (!old.is_neighbour(1)).then_some(()));
    driver.unread.clear();
    driver.add_probe(1, None);
    driver.probe();
    assert_eq!(driver.inputs, [refused]);
}
