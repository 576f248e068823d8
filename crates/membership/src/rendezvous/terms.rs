//! What all ranks of a job must have in common, by name.

/// The first term in which another process differs: its name, theirs, ours.
pub fn difference(
    theirs: &[(String, String)],
    ours: &[(String, String)],
) -> Option<(String, String, String)> {
    let value = |terms: &[(String, String)], name: &str| {
        terms.iter().find(|(other, _)| other == name).map_or("unset".to_owned(), |(_, value)| value.clone())
    };
    let names = ours.iter().chain(theirs).map(|(name, _)| name);
    names.map(|name| (name, value(theirs, name), value(ours, name))).find_map(|(name, theirs, ours)| {
        (theirs != ours && !mutant!("terms-not-compared")).then(|| (name.clone(), theirs, ours))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_differing_setting_is_named() {
        let terms = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
        };
        let ours = terms(&[("a", "1"), ("b", "2")]);
        assert_eq!(difference(&ours, &ours), None);
        assert_eq!(
            difference(&terms(&[("a", "1"), ("b", "3")]), &ours),
            Some(("b".into(), "3".into(), "2".into()))
        );
        assert_eq!(
            difference(&terms(&[("a", "1"), ("b", "2"), ("c", "4")]), &ours),
            Some(("c".into(), "4".into(), "unset".into()))
        );
    }
}
