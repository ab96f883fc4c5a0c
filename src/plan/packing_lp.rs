//! Fractional packing by column generation: maximise the sum of weights so that no row is used beyond its capacity.
//!
//! There are far too many columns (all rings) to list, so the revised simplex method asks for one when it needs one:
//! given a price for each row, the caller finds the cheapest column; once even that costs 1 or more, the packing is
//! optimal. In floating point: the caller rounds weights and checks them on integers.

const EPSILON: f64 = 1e-9;

/// How often each row is used by a column: `(row, times)`.
pub(crate) type Column = Vec<(usize, f64)>;

/// A packing: columns with positive weights.
pub(crate) struct Packing<T> {
    /// The columns in use, with what the caller attached to them.
    pub(crate) columns: Vec<(T, f64)>,
}

/// Packs columns into rows of the given capacities (all positive). `cheapest` gets a price per row and returns the cheapest
/// column, with what to remember it by, or `None` where there is no column at all.
pub(crate) fn pack<T: Clone>(
    capacities: &[f64],
    rounds: usize,
    mut cheapest: impl FnMut(&[f64]) -> Option<(Column, T)>,
) -> Packing<T> {
    let rows = capacities.len();
    let largest = capacities.iter().copied().fold(1.0, f64::max);
    // Slightly uneven capacities keep the method from going in circles between equal solutions.
    let mut value: Vec<f64> = capacities
        .iter()
        .enumerate()
        .map(|(row, capacity)| capacity / largest * (1.0 + 1e-8 * ((row * 7919) % 101) as f64))
        .collect();
    let mut inverse: Vec<Vec<f64>> =
        (0..rows).map(|row| (0..rows).map(|other| if row == other { 1.0 } else { 0.0 }).collect()).collect();
    // What each row of the basis is: a column, or unused capacity.
    let mut basis: Vec<Option<T>> = vec![None; rows];
    for _ in 0..rounds {
        let mut price = vec![0.0; rows];
        for (row, _) in inverse.iter().zip(&basis).filter(|(_, column)| column.is_some()) {
            price.iter_mut().zip(row).for_each(|(price, entry)| *price += entry);
        }
        let unused =
            (0..rows).min_by(|&a, &b| price[a].total_cmp(&price[b])).filter(|&row| price[row] < -EPSILON);
        let (entering, column) = match unused {
            Some(row) => (vec![(row, 1.0)], None),
            None => {
                price.iter_mut().for_each(|price| *price = price.max(0.0));
                let Some((entering, column)) = cheapest(&price) else { break };
                let cost: f64 = entering.iter().map(|&(row, times)| price[row] * times).sum();
                if cost > 1.0 - 1e-7 {
                    break;
                }
                (entering, Some(column))
            }
        };
        let direction: Vec<f64> = inverse
            .iter()
            .map(|row| entering.iter().map(|&(index, times)| row[index] * times).sum())
            .collect();
        let leaving = (0..rows)
            .filter(|&row| direction[row] > EPSILON)
            .min_by(|&a, &b| (value[a] / direction[a]).total_cmp(&(value[b] / direction[b])));
        let Some(leaving) = leaving else { break };
        let pivot = direction[leaving];
        value[leaving] /= pivot;
        inverse[leaving].iter_mut().for_each(|entry| *entry /= pivot);
        let (pivot_row, pivot_value) = (inverse[leaving].clone(), value[leaving]);
        for row in (0..rows).filter(|&row| row != leaving && direction[row] != 0.0) {
            value[row] = (value[row] - direction[row] * pivot_value).max(0.0);
            inverse[row]
                .iter_mut()
                .zip(&pivot_row)
                .for_each(|(entry, pivot)| *entry -= direction[row] * pivot);
        }
        basis[leaving] = column;
    }
    let columns = basis.into_iter().zip(value).filter_map(|(column, value)| Some((column?, value * largest)));
    Packing { columns: columns.filter(|(_, weight)| *weight > 0.0).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_pairs_share_three_rows() {
        let pairs = [[0, 1], [1, 2], [0, 2]];
        let packing = pack(&[2.0, 2.0, 2.0], 100, |price| {
            let cost = |pair: &[usize; 2]| pair.iter().map(|&row| price[row]).sum::<f64>();
            let pair = *pairs.iter().min_by(|a, b| cost(a).total_cmp(&cost(b)))?;
            Some((pair.iter().map(|&row| (row, 1.0)).collect(), pair))
        });
        let total: f64 = packing.columns.iter().map(|(_, weight)| weight).sum();
        assert!((total - 3.0).abs() < 1e-4, "{total}");
    }

    #[test]
    fn nothing_to_pack_is_an_empty_packing() {
        assert!(pack::<()>(&[1.0], 10, |_| None).columns.is_empty());
        assert!(pack(&[], 10, |_| Some((vec![], ()))).columns.is_empty());
    }
}
