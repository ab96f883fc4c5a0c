//! The conformance suite on CPU ranks: once with a thread for each rank, once from one thread with groups.

mod conformance;

use conformance::cpu::Cpu;

conformance_tests!(threads, Cpu { grouped: false });

mod one_thread {
    use super::*;
    use conformance::suite;

    #[test]
    fn every_call() {
        suite::every_call::<f32, _>(&Cpu { grouped: true });
        suite::every_call::<u8, _>(&Cpu { grouped: true });
    }

    #[test]
    fn a_thousand_mixed_calls() {
        suite::a_thousand_mixed_calls(&Cpu { grouped: true });
    }
}
