//! Cheap Hamiltonian cycles: exact by dynamic programming on few GPUs (Held and Karp 1962), else by local search.

/// The most GPUs for which all cycles are considered.
const EXACT: usize = 10;

/// The most GPUs from which a local search starts.
const STARTS: usize = 8;

/// A cycle through all GPUs, starting at 0, that costs little; the cheapest on up to [`EXACT`] GPUs. `cost[from][to]` is
/// infinite where one cannot follow the other. `None` where no cycle was found; on up to [`EXACT`] GPUs none exists.
pub(crate) fn cheapest_cycle(cost: &[Vec<f64>]) -> Option<Vec<usize>> {
    match cost.len() {
        0 | 1 => None,
        ..=EXACT => held_karp(cost),
        _ => local_search(cost),
    }
}

/// What a cycle costs.
pub(crate) fn cycle_cost(cost: &[Vec<f64>], order: &[usize]) -> f64 {
    (0..order.len()).map(|at| cost[order[at]][order[(at + 1) % order.len()]]).sum()
}

fn held_karp(cost: &[Vec<f64>]) -> Option<Vec<usize>> {
    // best[set][last]: the cheapest way from 0 through all of `set` (GPUs 1 and up, bit i for GPU i + 1) to `last`.
    let others = cost.len() - 1;
    let mut best = vec![vec![f64::INFINITY; others]; 1 << others];
    for last in 0..others {
        best[1 << last][last] = cost[0][last + 1];
    }
    for set in 1usize..1 << others {
        for last in (0..others).filter(|last| set >> last & 1 == 1) {
            let so_far = best[set][last];
            if so_far.is_finite() {
                for next in (0..others).filter(|next| set >> next & 1 == 0) {
                    let total = so_far + cost[last + 1][next + 1];
                    let entry = &mut best[set | 1 << next][next];
                    *entry = entry.min(total);
                }
            }
        }
    }
    let mut set = (1usize << others) - 1;
    let closing = |last: usize| best[set][last] + cost[last + 1][0];
    let mut last = (0..others).min_by(|&a, &b| closing(a).total_cmp(&closing(b)))?;
    if !closing(last).is_finite() {
        return None;
    }
    let mut order = vec![last + 1];
    while set.count_ones() > 1 {
        set &= !(1 << last);
        let via = |before: usize| best[set][before] + cost[before + 1][last + 1];
        last =
            (0..others).filter(|before| set >> before & 1 == 1).min_by(|&a, &b| via(a).total_cmp(&via(b)))?;
        order.push(last + 1);
    }
    order.push(0);
    order.reverse();
    Some(order)
}

/// From some starts: the nearest GPU next, then better by turning round pieces (2-opt) and moving single GPUs.
fn local_search(cost: &[Vec<f64>]) -> Option<Vec<usize>> {
    // A price for impossible steps, so that searches that start with one can get rid of it.
    let finite = || cost.iter().flatten().copied().filter(|cost| cost.is_finite());
    let forbidden = 1e3 * (1.0 + finite().sum::<f64>());
    let priced: Vec<Vec<f64>> =
        cost.iter().map(|row| row.iter().map(|cost| cost.min(forbidden)).collect()).collect();
    let mut best: Option<(f64, Vec<usize>)> = None;
    let starts = STARTS.min(cost.len());
    for start in (0..starts).map(|index| index * cost.len() / starts) {
        let mut order = improve(&priced, nearest(&priced, start));
        let total = cycle_cost(cost, &order);
        if total.is_finite() && best.as_ref().is_none_or(|(least, _)| total < *least - 1e-12) {
            let zero = order.iter().position(|&gpu| gpu == 0).unwrap_or(0);
            order.rotate_left(zero);
            best = Some((total, order));
        }
    }
    best.map(|(_, order)| order)
}

fn nearest(cost: &[Vec<f64>], start: usize) -> Vec<usize> {
    let mut order = vec![start];
    let mut left: Vec<usize> = (0..cost.len()).filter(|&gpu| gpu != start).collect();
    let mut last = start;
    while let Some(index) =
        (0..left.len()).min_by(|&a, &b| cost[last][left[a]].total_cmp(&cost[last][left[b]]))
    {
        last = left.swap_remove(index);
        order.push(last);
    }
    order
}

fn improve(cost: &[Vec<f64>], mut order: Vec<usize>) -> Vec<usize> {
    let count = order.len();
    let mut total = cycle_cost(cost, &order);
    // Each pass must gain, so this ends; the limit only bounds the time.
    for _ in 0..20 {
        let before = total;
        for first in 0..count {
            for last in first + 1..count {
                let mut turned = order.clone();
                turned[first..=last].reverse();
                let mut moved = order.clone();
                let gpu = moved.remove(first);
                moved.insert(last, gpu);
                for candidate in [turned, moved] {
                    let cost = cycle_cost(cost, &candidate);
                    if cost < total - 1e-12 {
                        (order, total) = (candidate, cost);
                    }
                }
            }
        }
        if total >= before {
            break;
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_a_circle(count: usize) -> Vec<Vec<f64>> {
        // Places that jump around a circle; the best cycle visits them in circular order.
        let place = |gpu: usize| (gpu * 7 % count) as f64 / count as f64 * std::f64::consts::TAU;
        let distance =
            |a: usize, b: usize| (place(a).cos() - place(b).cos()).hypot(place(a).sin() - place(b).sin());
        (0..count).map(|a| (0..count).map(|b| distance(a, b)).collect()).collect()
    }

    #[test]
    fn finds_the_circle_exactly_and_by_search() {
        for count in [2, 3, 9, 10, 16] {
            let cost = on_a_circle(count);
            let order = cheapest_cycle(&cost).unwrap();
            let mut seen = order.clone();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..count));
            let around = count as f64 * 2.0 * (std::f64::consts::PI / count as f64).sin();
            assert!((cycle_cost(&cost, &order) - around).abs() < 1e-9, "{count}: {order:?}");
        }
    }

    #[test]
    fn there_is_no_cycle_through_a_pendant() {
        let mut cost = vec![vec![1.0; 4]; 4];
        for (a, b) in [(3, 0), (0, 3), (3, 1), (1, 3)] {
            cost[a][b] = f64::INFINITY;
        }
        assert_eq!(cheapest_cycle(&cost), None);
    }
}
