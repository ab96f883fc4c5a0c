//! Capacity between nodes, remembering which physical path each unit of it takes.

use std::collections::VecDeque;

/// Some units of capacity along one path.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) units: i64,
    /// All nodes, both ends included; no node twice.
    pub(crate) path: Vec<usize>,
}

/// Capacity between any two nodes as a multiset of routes.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    nodes: usize,
    units: Vec<i64>,
    routes: Vec<VecDeque<Route>>,
}

impl Routes {
    /// The links themselves: `units[from][to]`.
    pub(crate) fn of_links(units: &[Vec<i64>]) -> Routes {
        let nodes = units.len();
        let mut routes =
            Routes { nodes, units: vec![0; nodes * nodes], routes: vec![VecDeque::new(); nodes * nodes] };
        for (from, row) in units.iter().enumerate() {
            for (to, &units) in row.iter().enumerate().filter(|(_, units)| **units > 0) {
                routes.add(from, to, Route { units, path: vec![from, to] });
            }
        }
        routes
    }

    pub(crate) const fn nodes(&self) -> usize {
        self.nodes
    }

    /// Units from one node to another.
    pub(crate) fn units(&self, from: usize, to: usize) -> i64 {
        self.units[from * self.nodes + to]
    }

    fn add(&mut self, from: usize, to: usize, route: Route) {
        let index = from * self.nodes + to;
        self.units[index] += route.units;
        match self.routes[index].iter_mut().find(|known| known.path == route.path) {
            Some(known) => known.units += route.units,
            None => self.routes[index].push_back(route),
        }
    }

    /// Takes units out, oldest routes first.
    fn take(&mut self, from: usize, to: usize, units: i64) -> Vec<Route> {
        let index = from * self.nodes + to;
        self.units[index] -= units;
        let mut left = units;
        let mut taken = Vec::new();
        while left > 0 {
            let Some(first) = self.routes[index].front_mut() else { break };
            let part = left.min(first.units);
            taken.push(Route { units: part, path: first.path.clone() });
            first.units -= part;
            left -= part;
            if first.units == 0 {
                self.routes[index].pop_front();
            }
        }
        taken
    }

    /// Makes `units` of from-via and via-to into units of from-to; straight back (`from == to`) discards them.
    pub(crate) fn splice(&mut self, from: usize, via: usize, to: usize, units: i64) {
        let mut heads = self.take(from, via, units);
        let mut tails = self.take(via, to, units);
        while from != to
            && let (Some(head), Some(tail)) = (heads.last_mut(), tails.last_mut())
        {
            let part = head.units.min(tail.units);
            self.add(from, to, Route { units: part, path: joined(&head.path, &tail.path) });
            head.units -= part;
            tail.units -= part;
            heads.retain(|route| route.units > 0);
            tails.retain(|route| route.units > 0);
        }
    }

    /// Takes up to `units` of one route out: the one that fits best. `None` where nothing is left.
    pub(crate) fn best(&self, from: usize, to: usize, units: i64) -> Option<&Route> {
        let routes = &self.routes[from * self.nodes + to];
        let fits = routes
            .iter()
            .filter(|route| route.units >= units)
            .min_by_key(|route| (route.units, route.path.len()));
        fits.or_else(|| routes.iter().max_by_key(|route| route.units))
    }

    /// Takes units of the route along `path` out.
    pub(crate) fn use_path(&mut self, path: &[usize], units: i64) {
        let (Some(from), Some(to)) = (path.first(), path.last()) else { return };
        let index = from * self.nodes + to;
        if let Some(route) = self.routes[index].iter_mut().find(|route| route.path == path) {
            route.units -= units;
            self.units[index] -= units;
        }
        self.routes[index].retain(|route| route.units > 0);
    }
}

/// Two paths in a row, without the loops that come of passing a node twice.
fn joined(head: &[usize], tail: &[usize]) -> Vec<usize> {
    let mut path: Vec<usize> = head.to_vec();
    for &node in &tail[1..] {
        match path.iter().position(|&seen| seen == node) {
            Some(seen) => path.truncate(seen + 1),
            None => path.push(node),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splicing_concatenates_paths_and_cuts_loops() {
        assert_eq!(joined(&[0, 5, 6], &[6, 5, 1]), [0, 5, 1]);
        let mut units = vec![vec![0; 4]; 4];
        units[0][2] = 5;
        units[2][3] = 3;
        units[3][1] = 4;
        let mut routes = Routes::of_links(&units);
        routes.splice(0, 2, 3, 3);
        routes.splice(0, 3, 1, 2);
        assert_eq!(
            (routes.units(0, 2), routes.units(2, 3), routes.units(0, 3), routes.units(0, 1)),
            (2, 0, 1, 2)
        );
        assert_eq!(routes.best(0, 1, 9).unwrap().path, [0, 2, 3, 1]);
        routes.use_path(&[0, 2, 3, 1], 2);
        assert!(routes.best(0, 1, 1).is_none());
    }
}
