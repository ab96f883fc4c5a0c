//! A bar on terminals, for runs that take long.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shows how far a run is, on stderr and only if that is a terminal; nothing in the first second.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    started: std::time::Instant,
}

impl Progress {
    /// A bar for so many steps.
    pub fn new(steps: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} (about {eta} left)");
        bar.set_style(style.expect("a fixed template"));
        Progress { bar, started: std::time::Instant::now() }
    }

    /// Says what comes next.
    pub fn start(&self, what: &str) {
        if self.bar.is_hidden() && self.started.elapsed().as_secs_f64() > 1.0 {
            // indicatif draws nothing where stderr is no terminal.
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_message(what.to_owned());
        self.bar.tick();
    }

    /// Counts a step, and lets something be printed while the bar is away.
    pub fn step<R>(&self, print: impl FnOnce() -> R) -> R {
        let printed = self.bar.suspend(print);
        self.bar.inc(1);
        printed
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
