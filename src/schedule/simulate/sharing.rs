//! Bandwidth shared fairly among transfers.
//!
//! Transfers on the same path by workers of as many lanes always move at the same rate, so they form a *class*. A class
//! counts the bytes that each of its transfers would have moved had it been there from the beginning; a transfer ends
//! when that count reaches what it was at its start plus its size. So time passes for a class, not for each transfer.
//! A transfer of `L` lanes is `L` transfers side by side, and gets as many shares.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::Network;

/// What makes transfers a class: the resources they pass and the shares each gets.
pub(super) type ClassKey = (Vec<usize>, u32);

/// Moments nearer to each other than this many microseconds are the same.
pub(super) const SAME_US: f64 = 1e-6;

/// A number that can be sorted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ordered(pub(super) f64);

impl Eq for Ordered {}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Default)]
struct Class {
    resources: Vec<usize>,
    shares: u64,
    /// Bytes a microsecond for each transfer.
    rate: f64,
    moved: f64,
    /// Where `moved` will be at the end of each transfer, and whose it is.
    ends: BinaryHeap<Reverse<(Ordered, usize)>>,
}

/// All transfers that are under way.
pub(super) struct Sharing {
    classes: Vec<Class>,
    active: Vec<usize>,
    /// Bytes a microsecond.
    bandwidth: Vec<f64>,
    stale: bool,
    // Kept between calls of `settle` to save the allocation.
    left: Vec<f64>,
    load: Vec<u64>,
    tight: Vec<bool>,
    open: Vec<usize>,
}

impl Sharing {
    pub(super) fn new(network: &Network, classes: Vec<ClassKey>) -> Self {
        let class = |(resources, shares)| Class { resources, shares: u64::from(shares), ..Class::default() };
        Sharing {
            classes: classes.into_iter().map(class).collect(),
            active: Vec::new(),
            bandwidth: network.resources.iter().map(|r| r.gbs * 1e3).collect(),
            stale: false,
            left: Vec::new(),
            load: vec![0; network.resources.len()],
            tight: vec![false; network.resources.len()],
            open: Vec::new(),
        }
    }

    /// Starts a transfer in a class; false if nothing slows it, so that it has ended already.
    pub(super) fn start(&mut self, class: usize, bytes: f64, owner: usize) -> bool {
        let c = &mut self.classes[class];
        if c.resources.is_empty() {
            return false;
        }
        if c.ends.is_empty() {
            c.moved = 0.0;
            self.active.push(class);
        }
        c.ends.push(Reverse((Ordered(c.moved + bytes), owner)));
        self.stale = true;
        true
    }

    /// Microseconds until the next transfer ends; infinite if there is none.
    pub(super) fn next_end(&mut self) -> f64 {
        self.settle();
        let until = |&c: &usize| {
            let class = &self.classes[c];
            class.ends.peek().map_or(f64::INFINITY, |Reverse((end, _))| (end.0 - class.moved) / class.rate)
        };
        self.active.iter().map(until).fold(f64::INFINITY, f64::min).max(0.0)
    }

    /// Lets time pass, and collects the owners of the transfers that end.
    pub(super) fn advance(&mut self, us: f64, ended: &mut Vec<usize>) {
        let classes = &mut self.classes;
        let stale = &mut self.stale;
        self.active.retain(|&c| {
            let class = &mut classes[c];
            class.moved += class.rate * us;
            let reached = class.moved + class.rate * SAME_US;
            while class.ends.peek().is_some_and(|Reverse((end, _))| end.0 <= reached) {
                ended.extend(class.ends.pop().map(|Reverse((_, owner))| owner));
                *stale = true;
            }
            !class.ends.is_empty()
        });
    }

    /// Computes the max-min fair rates by progressive filling: the resource with the least to give for each share
    /// fixes the rate of its transfers; what they leave on other resources is for the rest.
    fn settle(&mut self) {
        if !std::mem::replace(&mut self.stale, false) {
            return;
        }
        self.left.clone_from(&self.bandwidth);
        self.load.fill(0);
        self.open.clone_from(&self.active);
        for &c in &self.active {
            for &r in &self.classes[c].resources {
                self.load[r] += self.classes[c].shares * self.classes[c].ends.len() as u64;
            }
        }
        while !self.open.is_empty() {
            let each = |r: usize| match self.load[r] {
                0 => f64::INFINITY,
                n => self.left[r].max(0.0) / n as f64,
            };
            let least = (0..self.load.len()).map(each).fold(f64::INFINITY, f64::min);
            for r in 0..self.tight.len() {
                self.tight[r] =
                    self.load[r] > 0 && self.left[r] <= least * self.load[r] as f64 * (1.0 + 1e-12);
            }
            let (classes, left, load, tight) =
                (&mut self.classes, &mut self.left, &mut self.load, &self.tight);
            self.open.retain(|&c| {
                let class = &mut classes[c];
                if !class.resources.iter().any(|&r| tight[r]) {
                    return true;
                }
                class.rate = least * class.shares as f64;
                for &r in &class.resources {
                    left[r] -= class.rate * class.ends.len() as f64;
                    load[r] -= class.shares * class.ends.len() as u64;
                }
                false
            });
        }
    }
}
