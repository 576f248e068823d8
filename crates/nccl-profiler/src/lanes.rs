//! Rows for slices: viewers draw the slices of a row inside each other, so two that overlap otherwise need two rows.

/// The ends of the open slices of each row, the outermost first.
#[derive(Default)]
pub(crate) struct Lanes(Vec<Vec<u64>>);

impl Lanes {
    /// The row for a slice. Slices come in the order of their beginnings, longer ones first.
    pub(crate) fn row(&mut self, begin: u64, end: u64) -> usize {
        for (row, open) in self.0.iter_mut().enumerate() {
            while open.last().is_some_and(|last| *last <= begin) {
                open.pop();
            }
            if open.last().is_none_or(|last| end <= *last) {
                open.push(end);
                return row;
            }
        }
        self.0.push(vec![end]);
        self.0.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_a_row_are_apart_or_inside_each_other() {
        let slices = [(0, 100), (0, 40), (10, 20), (30, 50), (40, 60), (90, 120), (100, 110), (130, 131)];
        let mut lanes = Lanes::default();
        let rows: Vec<usize> = slices.iter().map(|(begin, end)| lanes.row(*begin, *end)).collect();
        assert_eq!(rows, [0, 0, 0, 1, 0, 1, 0, 0]);
        for (at, one) in slices.iter().enumerate() {
            for (other_at, other) in slices.iter().enumerate().skip(at + 1) {
                let overlap = other.0 < one.1 && other.1 > one.1;
                assert!(rows[at] != rows[other_at] || !overlap, "{one:?} {other:?}");
            }
        }
    }
}
